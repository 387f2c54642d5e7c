// The k coefficients of largest magnitude without a sort: a threshold is found by halving the range
// of magnitudes bit by bit and counting, then one pass collects what is not below it.
#if defined(ISTHMUS_KERNELS_CPU_SELECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_KERNELS_CPU_SELECT_INL_H_
#undef ISTHMUS_KERNELS_CPU_SELECT_INL_H_
#else
#define ISTHMUS_KERNELS_CPU_SELECT_INL_H_
#endif

#include "base/check.h"
#include "kernels/chunk.h"
#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus {
namespace HWY_NAMESPACE {

// Magnitudes are compared as integers: the bits of finite floats without their sign are in the
// order of the numbers.
constexpr int32_t kMagnitudeBits = 0x7fffffff;
constexpr int kTopBit = 30;

HWY_INLINE IntVec MagnitudesAt(const float* values) {
  const IntTag di;
  const auto bits = hn::BitCast(di, hn::LoadU(FloatTag(), values));
  return hn::And(bits, hn::Set(di, kMagnitudeBits));
}

HWY_INLINE int32_t MagnitudeOf(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits & kMagnitudeBits;
}

HWY_INLINE size_t CountFrom(const float* values, size_t padded, int32_t threshold) {
  const IntTag di;
  const IntVec limit = hn::Set(di, threshold - 1);
  size_t count = 0;
  for (size_t i = 0; i < padded; i += kLanes) {
    count += hn::CountTrue(di, hn::Gt(MagnitudesAt(values + i), limit));
  }
  return count;
}

// The largest number, of those whose bits below `lowest_bit` are zero, that at least k magnitudes
// reach; or a smaller one that exactly k reach. `padded` is a multiple of the vector's length.
HWY_INLINE int32_t ThresholdFor(const float* values, size_t padded, uint32_t k, int lowest_bit) {
  int32_t threshold = 0;
  for (int bit = kTopBit; bit >= lowest_bit; --bit) {
    const int32_t higher = threshold | (int32_t{1} << bit);
    const size_t count = CountFrom(values, padded, higher);
    if (count < k) continue;
    threshold = higher;
    if (count == k) break;
  }
  return threshold;
}

// A number that at least k of the magnitudes reach, and not many more where k is small: each lane
// keeps the largest of every kGroups-th vector, and the k-th largest of these groups is such a one.
constexpr size_t kGroups = 256 / kLanes;

HWY_INLINE int32_t RoughThreshold(const float* values, size_t padded, uint32_t k) {
  const FloatTag d;
  HWY_ALIGN float largest[kGroups * kLanes];
  for (size_t i = 0; i < kGroups; ++i) {
    FloatVec most = hn::Abs(hn::LoadU(d, values + i * kLanes));
    for (size_t at = (i + kGroups) * kLanes; at < padded; at += kGroups * kLanes) {
      most = hn::Max(most, hn::Abs(hn::LoadU(d, values + at)));
    }
    hn::Store(most, d, largest + i * kLanes);
  }
  constexpr int kRoughBit = 16;  // seven bits of the mantissa: within 1 % of the group's value
  return ThresholdFor(largest, kGroups * kLanes, k, kRoughBit);
}

// Collects, in order, index and value of what reaches the threshold; returns how many. Both outputs
// have room for one vector more.
HWY_INLINE size_t CollectDense(const float* values, size_t padded, int32_t threshold,
                               uint32_t* HWY_RESTRICT index, float* HWY_RESTRICT value) {
  const FloatTag d;
  const IntTag di;
  const IntVec limit = hn::Set(di, threshold - 1);
  IntVec at = hn::Iota(di, 0);
  size_t count = 0;
  for (size_t i = 0; i < padded; i += kLanes) {
    const auto taken = hn::Gt(MagnitudesAt(values + i), limit);
    const FloatVec kept = hn::Compress(hn::LoadU(d, values + i), hn::RebindMask(d, taken));
    hn::StoreU(kept, d, value + count);
    hn::StoreU(hn::Compress(at, taken), di, reinterpret_cast<int32_t*>(index + count));
    at = hn::Add(at, hn::Set(di, static_cast<int32_t>(kLanes)));
    count += hn::CountTrue(di, taken);
  }
  return count;
}

// The same where few are expected: vectors without any are passed over.
HWY_INLINE size_t CollectSparse(const float* values, size_t padded, int32_t threshold,
                                uint32_t* HWY_RESTRICT index, float* HWY_RESTRICT value) {
  const IntTag di;
  const IntVec limit = hn::Set(di, threshold - 1);
  constexpr size_t kBytes = kLanes < 8 ? 1 : kLanes / 8;
  constexpr size_t kStep = 64 / kLanes;
  size_t count = 0;
  for (size_t word = 0; word < padded; word += 64) {
    uint64_t taken = 0;
    HWY_UNROLL(16)
    for (size_t i = 0; i < kStep; ++i) {
      const size_t from = word + i * kLanes;
      if (from >= padded) break;
      uint8_t bits[8] = {};
      hn::StoreMaskBits(di, hn::Gt(MagnitudesAt(values + from), limit), bits);
      uint64_t part = bits[0];
      if (kBytes > 1) part |= uint64_t{bits[1]} << 8;
      taken |= part << (i * kLanes);
    }
    for (; taken != 0; taken &= taken - 1) {
      const size_t at = word + hwy::Num0BitsBelowLS1Bit_Nonzero64(taken);
      index[count] = static_cast<uint32_t>(at);
      value[count] = values[at];
      ++count;
    }
  }
  return count;
}

// Where only so many are too many, each is looked for by itself.
constexpr size_t kFewTooMany = 8;

// Takes out the smallest of `count`, of equal ones the last.
HWY_INLINE void DropOne(size_t count, uint32_t* index, float* value) {
  size_t smallest = 0;
  int32_t magnitude = MagnitudeOf(value[0]);
  for (size_t i = 1; i < count; ++i) {
    const int32_t other = MagnitudeOf(value[i]);
    smallest = other <= magnitude ? i : smallest;
    magnitude = std::min(other, magnitude);
  }
  std::copy(index + smallest + 1, index + count, index + smallest);
  std::copy(value + smallest + 1, value + count, value + smallest);
}

// Keeps the k largest of `count` collected ones, of equal magnitudes the first. `value` has room
// for one vector more.
HWY_INLINE void DropSmallest(size_t count, uint32_t k, uint32_t* index, float* value) {
  if (count - k <= kFewTooMany) {
    for (; count > k; --count) DropOne(count, index, value);
    return;
  }
  const size_t padded = (count + kLanes - 1) / kLanes * kLanes;
  std::fill(value + count, value + padded, 0.0f);
  const int32_t threshold = ThresholdFor(value, padded, k, 0);
  const size_t above = threshold == kMagnitudeBits ? 0 : CountFrom(value, padded, threshold + 1);
  size_t equal_left = k - std::min<size_t>(above, k);
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t magnitude = MagnitudeOf(value[i]);
    if (magnitude < threshold) continue;
    // Where exactly k reach the threshold, it may lie between two magnitudes.
    if (magnitude == threshold) {
      if (equal_left == 0) continue;
      --equal_left;
    }
    index[kept] = index[i];
    value[kept++] = value[i];
  }
  ISTHMUS_CHECK(kept == k);
}

// The first k of the collected ones; `index` and `value` have room for one vector more.
HWY_INLINE void CopyOut(const uint32_t* HWY_RESTRICT index, const float* HWY_RESTRICT value,
                        uint32_t k, Components* out) {
  out->index.resize(k);
  out->value.resize(k);
  uint32_t* HWY_RESTRICT to_index = out->index.data();
  float* HWY_RESTRICT to_value = out->value.data();
  for (uint32_t i = 0; i < k; ++i) {
    to_index[i] = index[i];
    to_value[i] = value[i];
  }
}

// Whether a vector can be stored in part without touching what lies behind it.
constexpr bool kStoresParts = kLanes == 16;

// CollectDense where exactly k reach the threshold, straight into `out`.
HWY_INLINE void CollectExactly(const float* values, size_t padded, uint32_t k, int32_t threshold,
                               Components* out) {
  const FloatTag d;
  const IntTag di;
  out->index.resize(k);
  out->value.resize(k);
  int32_t* HWY_RESTRICT index = reinterpret_cast<int32_t*>(out->index.data());
  float* HWY_RESTRICT value = out->value.data();
  const IntVec limit = hn::Set(di, threshold - 1);
  IntVec at = hn::Iota(di, 0);
  for (size_t i = 0; i < padded; i += kLanes) {
    const auto taken = hn::Gt(MagnitudesAt(values + i), limit);
    const size_t count = hn::CountTrue(di, taken);
    const FloatVec kept = hn::Compress(hn::LoadU(d, values + i), hn::RebindMask(d, taken));
    hn::BlendedStore(kept, hn::FirstN(d, count), d, value);
    hn::BlendedStore(hn::Compress(at, taken), hn::FirstN(di, count), di, index);
    at = hn::Add(at, hn::Set(di, static_cast<int32_t>(kLanes)));
    index += count;
    value += count;
  }
}

// Takes the k largest of those that reach the threshold, which are at least k of the `size`
// coefficients. Behind them are zeros up to a whole vector.
HWY_INLINE void TakeFrom(const float* values, size_t size, uint32_t k, int32_t threshold,
                         uint32_t* HWY_RESTRICT index, float* HWY_RESTRICT value, Components* out) {
  const size_t padded = (size + kLanes - 1) / kLanes * kLanes;
  if (kStoresParts && CountFrom(values, padded, threshold) == k) {
    return CollectExactly(values, padded, k, threshold, out);
  }
  // Zeros behind the end reach a threshold of 0; they are last.
  const size_t count = std::min(size, CollectDense(values, padded, threshold, index, value));
  if (count > k) DropSmallest(count, k, index, value);
  CopyOut(index, value, k, out);
}

// SelectTopK of the `size` coefficients at `values`, which has room for whole vectors: what is
// behind them is overwritten with zeros. `index` and `value` are working memory of size + one
// vector.
HWY_INLINE void SelectInto(float* values, size_t size, uint32_t k, uint32_t* HWY_RESTRICT index,
                           float* HWY_RESTRICT value, Components* out) {
  const size_t padded = (size + kLanes - 1) / kLanes * kLanes;
  std::fill(values + size, values + padded, 0.0f);
  // Groups of several, and few enough of the groups asked for: else the rough threshold is no help.
  if (size < 4 * kGroups * kLanes || k > kGroups * kLanes / 2) {
    return TakeFrom(values, size, k, ThresholdFor(values, padded, k, 0), index, value, out);
  }
  const int32_t threshold = RoughThreshold(values, padded, k);
  const size_t count = std::min(size, CollectSparse(values, padded, threshold, index, value));
  if (count > k) DropSmallest(count, k, index, value);
  CopyOut(index, value, k, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace isthmus
HWY_AFTER_NAMESPACE();

#endif  // ISTHMUS_KERNELS_CPU_SELECT_INL_H_
