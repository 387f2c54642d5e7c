// Aggregation (kernels/aggregate.h) for each target of Highway. Bit-equal: each operation is one
// instruction with one rounding.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/aggregate.cc"
#include <algorithm>
#include <cfloat>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/limits.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// It comes before all that is included once a target.
#include "hwy/highway.h"
#include "kernels/aggregate.h"
#include "kernels/cpu/vectors-inl.h"

#ifndef ISTHMUS_KERNELS_CPU_AGGREGATE_ONCE_
#define ISTHMUS_KERNELS_CPU_AGGREGATE_ONCE_
namespace isthmus {
// Positions that are compared and, if need be, exchanged, in order.
using SortingNetwork = std::vector<std::pair<uint16_t, uint16_t>>;
}  // namespace isthmus
#endif

HWY_BEFORE_NAMESPACE();
namespace isthmus {
namespace HWY_NAMESPACE {

template <bool first>
void FoldSome(float factor, const float* HWY_RESTRICT values, float* HWY_RESTRICT sum,
              size_t size) {
  const FloatVec factors = hn::Set(FloatTag(), factor);
  for (size_t i = 0; i < size; i += kLanes) {
    const FloatVec value = hn::Mul(factors, LoadPart(values + i, size - i));
    StorePart(first ? value : hn::Add(LoadPart(sum + i, size - i), value), sum + i, size - i);
  }
}

void FoldAny(bool first, float factor, const float* values, float* sum, size_t size) {
  if (first) return FoldSome<true>(factor, values, sum, size);
  FoldSome<false>(factor, values, sum, size);
}

HWY_INLINE FloatVec FiniteOf(FloatVec v) {
  const FloatTag d;
  return hn::Max(hn::Min(v, hn::Set(d, FLT_MAX)), hn::Set(d, -FLT_MAX));
}

void FinishSome(AggregateKind kind, uint32_t count, float* HWY_RESTRICT sum, size_t size) {
  const FloatVec counts = hn::Set(FloatTag(), static_cast<float>(count));
  const bool divides = kind != AggregateKind::kWeightedMean && kind != AggregateKind::kMajority;
  const bool sign = kind == AggregateKind::kSignOfMean || kind == AggregateKind::kMajority;
  for (size_t i = 0; i < size; i += kLanes) {
    FloatVec v = LoadPart(sum + i, size - i);
    if (divides) v = hn::Div(v, counts);
    StorePart(sign ? SignOf(v) : FiniteOf(v), sum + i, size - i);
  }
}

HWY_INLINE FloatVec OfSortedRows(const AggregateSettings& settings, const FloatVec* v,
                                 size_t count) {
  const FloatTag d;
  if (settings.kind == AggregateKind::kMedian) {
    if (count % 2 == 1) return v[count / 2];
    return hn::Div(hn::Add(v[count / 2 - 1], v[count / 2]), hn::Set(d, 2.0f));
  }
  FloatVec sum = v[settings.trim];
  for (size_t i = settings.trim + 1; i < count - settings.trim; ++i) sum = hn::Add(sum, v[i]);
  return hn::Div(sum, hn::Set(d, static_cast<float>(count - 2 * settings.trim)));
}

void SortSome(const AggregateSettings& settings, const SortingNetwork& network,
              const float* const* rows, size_t count, float* HWY_RESTRICT out, size_t size) {
  const FloatTag d;
  FloatVec v[kNodesMax];
  for (size_t i = 0; i < size; i += kLanes) {
    for (size_t row = 0; row < count; ++row) {
      // Adding +0 makes +0 of -0: what the smaller of two zeros is would differ by processor.
      v[row] = hn::Add(LoadPart(rows[row] + i, size - i), hn::Zero(d));
    }
    for (const auto& [low, high] : network) {
      const FloatVec smaller = hn::Min(v[low], v[high]);
      v[high] = hn::Max(v[low], v[high]);
      v[low] = smaller;
    }
    StorePart(FiniteOf(OfSortedRows(settings, v, count)), out + i, size - i);
  }
}

// Eight partial sums stand in 8 / kWide vectors.
double SquaresSome(const float* HWY_RESTRICT values, size_t size) {
  double s[8] = {};
#if HWY_TARGET == HWY_SCALAR
  size_t i = 0;
#else
  using WideTag = hn::CappedTag<double, 8>;
  const WideTag wide;
  const hn::Rebind<float, WideTag> narrow;
  constexpr size_t kWide = hn::MaxLanes(WideTag());
  hn::Vec<WideTag> sums[8 / kWide];
  for (auto& sum : sums) sum = hn::Zero(wide);
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    for (size_t part = 0; part < 8 / kWide; ++part) {
      const auto value = hn::PromoteTo(wide, hn::LoadU(narrow, values + i + part * kWide));
      sums[part] = hn::Add(sums[part], hn::Mul(value, value));
    }
  }
  for (size_t part = 0; part < 8 / kWide; ++part) hn::StoreU(sums[part], wide, s + part * kWide);
#endif
  for (; i < size; ++i) {
    const double value = values[i];
    s[i % 8] += value * value;
  }
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

}  // namespace HWY_NAMESPACE
}  // namespace isthmus
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {
namespace {

HWY_EXPORT(FoldAny);
HWY_EXPORT(FinishSome);
HWY_EXPORT(SortSome);
HWY_EXPORT(SquaresSome);

// Sorts any `count` values (Knuth, The Art of Computer Programming 3, algorithm 5.2.2M).
SortingNetwork MakeNetwork(uint32_t count) {
  SortingNetwork network;
  uint32_t top = 1;
  while (top * 2 < count) top *= 2;
  for (uint32_t p = count < 2 ? 0 : top; p > 0; p /= 2) {
    uint32_t remainder = 0, distance = p;
    for (uint32_t q = top;; q /= 2) {
      for (uint32_t i = 0; i + distance < count; ++i) {
        if ((i & p) == remainder) network.emplace_back(i, i + distance);
      }
      if (q == p) break;
      distance = q - p;
      remainder = p;
    }
  }
  return network;
}

}  // namespace

void Fold(bool first, float factor, absl::Span<const float> values, absl::Span<float> sum) {
  ISTHMUS_CHECK(values.size() == sum.size());
  HWY_DYNAMIC_DISPATCH(FoldAny)(first, factor, values.data(), sum.data(), sum.size());
}

void FoldComponents(float factor, const Components& components, absl::Span<float> sum) {
  ISTHMUS_CHECK(components.index.size() == components.value.size());
  const size_t size = sum.size();
  const uint32_t* index = components.index.data();
  const float* value = components.value.data();
  for (size_t i = 0; i < components.size(); ++i) {
    ISTHMUS_CHECK(index[i] < size);
    const float product = factor * value[i];
    sum[index[i]] += product;
  }
}

void FinishFold(const AggregateSettings& settings, uint32_t count, absl::Span<float> sum) {
  ISTHMUS_CHECK(count >= 1 && FoldsOneAtATime(settings.kind));
  HWY_DYNAMIC_DISPATCH(FinishSome)(settings.kind, count, sum.data(), sum.size());
}

double SquaresOf(absl::Span<const float> block) {
  return HWY_DYNAMIC_DISPATCH(SquaresSome)(block.data(), block.size());
}

void AggregateBlock(const AggregateSettings& settings, absl::Span<const float* const> rows,
                    absl::Span<const float> factors, absl::Span<float> out) {
  const uint32_t count = static_cast<uint32_t>(rows.size());
  ISTHMUS_CHECK(count >= 1 && count <= kNodesMax);
  const bool has_factors = settings.kind == AggregateKind::kWeightedMean ||
                           settings.kind == AggregateKind::kNormClippedMean;
  ISTHMUS_CHECK(factors.size() == (has_factors ? count : 0));
  if (FoldsOneAtATime(settings.kind)) {
    for (uint32_t row = 0; row < count; ++row) {
      Fold(row == 0, has_factors ? factors[row] : 1.0f, {rows[row], out.size()}, out);
    }
    return FinishFold(settings, count, out);
  }
  ISTHMUS_CHECK(settings.kind == AggregateKind::kMedian || count > 2 * settings.trim);
  HWY_DYNAMIC_DISPATCH(SortSome)
  (settings, MakeNetwork(count), rows.data(), count, out.data(), out.size());
}

}  // namespace isthmus
#endif  // HWY_ONCE
