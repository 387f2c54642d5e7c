// The functions of kernels/demo.h that work on a chunk, for each target of Highway; the best one
// that this machine has is chosen when the program runs.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/chunk_kernels.cc"
#include <algorithm>
#include <memory>

#include "base/check.h"
#include "base/limits.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// It comes before all that is included once a target.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/dct-inl.h"
#include "kernels/cpu/decode-inl.h"
#include "kernels/cpu/runs-inl.h"
#include "kernels/cpu/select-inl.h"
#include "kernels/cpu/vectors-inl.h"
#include "kernels/demo.h"
#include "kernels/reference/reference.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus {
namespace HWY_NAMESPACE {

// A run is handled as the only one of its batch.
void Encode(ChunkShape shape, const float* x, size_t stride, ChunkScratch* scratch) {
  const size_t padded = PaddedSide(shape.cols);
  float* HWY_RESTRICT tile = scratch->first;
  for (size_t j = 0; j < shape.rows; ++j) {
    float* HWY_RESTRICT row = tile + j * padded;
    std::copy_n(x + j * stride, shape.cols, row);
    std::fill(row + shape.cols, row + padded, 0.0f);
  }
  if (shape.rows == 1) return EncodeRuns(shape.cols, scratch);
  EncodeTile(shape, scratch);
}

void Select(size_t size, uint32_t k, ChunkScratch* scratch, Components* out) {
  SelectInto(scratch->third, size, k, scratch->index, scratch->second, out);
}

void Decode(ChunkShape shape, const Components& components, float* y, float* x) {
  DecodeTile(shape, components, y, [=](size_t j, size_t l, FloatVec sum, size_t left) {
    StorePart(sum, x + j * shape.cols + l, left);
  });
}

// A chunk's gradient; null stands for zeros.
struct Gradient {
  const float* g;
  size_t stride;
};

// tile <- beta * d + eta * g, each row padded with zeros. What lies `ahead` elements further on is
// asked for, unless that is 0.
template <bool has_gradient>
HWY_INLINE void MomentumOfRows(ChunkShape shape, const ReserveRule& rule, Gradient gradient,
                               const float* d, size_t stride, size_t ahead,
                               float* HWY_RESTRICT tile) {
  const FloatTag tag;
  const FloatVec beta = hn::Set(tag, rule.beta);
  const FloatVec eta = hn::Set(tag, rule.eta);
  const size_t padded = PaddedSide(shape.cols);
  for (size_t j = 0; j < shape.rows; ++j, d += stride, tile += padded) {
    const float* g = has_gradient ? gradient.g + j * gradient.stride : nullptr;
    for (size_t l = 0; l < shape.cols; l += kLanes) {
      const size_t left = shape.cols - l;
      const FloatVec from = has_gradient ? LoadPart(g + l, left) : hn::Zero(tag);
      const FloatVec decayed = hn::Mul(beta, LoadPart(d + l, left));
      hn::StoreU(hn::Add(decayed, hn::Mul(eta, from)), tag, tile + l);
      if (ahead == 0) continue;
      hwy::Prefetch(d + l + ahead);
      if (has_gradient) hwy::Prefetch(g + l + ahead);
    }
    std::fill(tile + shape.cols, tile + padded, 0.0f);
  }
}

HWY_INLINE void Momentum(ChunkShape shape, const ReserveRule& rule, Gradient gradient,
                         const float* d, size_t stride, size_t ahead, float* tile) {
  if (gradient.g != nullptr) {
    MomentumOfRows<true>(shape, rule, gradient, d, stride, ahead, tile);
  } else {
    MomentumOfRows<false>(shape, rule, gradient, d, stride, ahead, tile);
  }
}

// What takes decoded sums out of the momentum: d <- tile - alpha * sum, `tile` being padded.
// What lies `ahead` elements further on is asked for, unless that is 0.
struct Subtraction {
  float alpha;
  const float* tile;
  size_t tile_stride;
  float* d;
  size_t stride;
  Gradient gradient;
  size_t ahead;

  HWY_INLINE void operator()(size_t j, size_t l, FloatVec sum, size_t left) const {
    const FloatTag tag;
    float* at = d + j * stride + l;
    if (ahead != 0) {
      hwy::Prefetch(at + ahead);
      if (gradient.g != nullptr) hwy::Prefetch(gradient.g + j * gradient.stride + l + ahead);
    }
    const FloatVec momentum = hn::LoadU(tag, tile + j * tile_stride + l);
    const FloatVec sent = hn::Mul(hn::Set(tag, -alpha), sum);
    StorePart(hn::Add(momentum, sent), at, left);
  }
};

// Up to kLanes runs side by side. To the momentum they are the rows of one tile. The next batch's
// memory is asked for bit by bit while sums are computed.
HWY_INLINE void ReserveBatch(uint32_t cols, size_t count, const ReserveRule& rule, const float* g,
                             float* d, ChunkScratch* scratch, Components* sent) {
  const size_t padded = PaddedSide(cols);
  Momentum({static_cast<uint32_t>(count), cols}, rule, {g, cols}, d, cols, /*ahead=*/0,
           scratch->first);
  EncodeRuns(cols, scratch);
  SelectOfRuns(cols, count, rule.k, scratch, sent);
  const auto subtraction = [&](size_t i) {
    const Gradient gradient{g == nullptr ? nullptr : g + i * cols, cols};
    return Subtraction{
        rule.alpha,   scratch->first + i * padded, padded, d + i * cols, cols, gradient,
        kLanes * cols};
  };
  size_t i = 0;
  for (; i + 2 <= count; i += 2) {
    DecodeTwoRuns(cols, sent[i], sent[i + 1], subtraction(i), subtraction(i + 1));
  }
  if (i < count) DecodeRun(cols, sent[i], subtraction(i));
}

void ReserveSome(uint32_t cols, size_t count, const ReserveRule& rule, const float* g, float* d,
                 ChunkScratch* scratch, Components* sent) {
  for (size_t i = 0; i < count; i += kLanes) {
    ReserveBatch(cols, std::min(kLanes, count - i), rule, g == nullptr ? g : g + i * cols,
                 d + i * cols, scratch, sent + i);
  }
}

// The tile to the right is most likely the next one. Its rows are short and far from each other, so
// that no hardware looks ahead; asking for them at the beginning was the fastest.
void Reserve(ChunkShape shape, const ReserveRule& rule, const float* g, size_t g_stride, float* d,
             size_t stride, ChunkScratch* scratch, Components* sent) {
  Momentum(shape, rule, {g, g_stride}, d, stride, shape.cols, scratch->first);
  EncodeTile(shape, scratch);
  Select(shape.elements(), rule.k, scratch, sent);
  DecodeTile(shape, *sent, scratch->second,
             Subtraction{rule.alpha, scratch->first, PaddedSide(shape.cols), d, stride,
                         /*gradient=*/{}, /*ahead=*/0});
}

// What moves parameters by decoded sums, and asks for those that come next, `ahead` elements on.
template <bool sign>
struct Stepping {
  const StepRule* rule;
  float* p;
  size_t stride;
  size_t ahead;

  HWY_INLINE void operator()(size_t j, size_t l, FloatVec sum, size_t left) const {
    const FloatTag d;
    float* at = p + j * stride + l;
    hwy::Prefetch(at + ahead);
    const FloatVec u = sign ? SignOf(sum) : sum;
    const FloatVec kept = hn::Mul(hn::Set(d, rule->decay_factor), LoadPart(at, left));
    StorePart(hn::Sub(kept, hn::Mul(hn::Set(d, rule->eta), u)), at, left);
  }
};

template <bool sign>
HWY_INLINE void StepRunsBy(uint32_t cols, size_t count, const StepRule& rule,
                           const Components* merged, float* p) {
  // Runs ahead whose memory is asked for: components lie all over the heap.
  constexpr size_t kAhead = 8;
  const auto stepping = [&](size_t i) {
    return Stepping<sign>{&rule, p + i * cols, cols, kAhead * cols};
  };
  size_t i = 0;
  for (; i + 2 <= count; i += 2) {
    for (size_t next = i + kAhead; next < std::min(i + kAhead + 2, count); ++next) {
      hwy::Prefetch(merged[next].index.data());
      hwy::Prefetch(merged[next].value.data());
    }
    DecodeTwoRuns(cols, merged[i], merged[i + 1], stepping(i), stepping(i + 1));
  }
  if (i < count) DecodeRun(cols, merged[i], stepping(i));
}

void StepSome(uint32_t cols, size_t count, const StepRule& rule, const Components* merged,
              float* p) {
  if (rule.sign) {
    StepRunsBy<true>(cols, count, rule, merged, p);
  } else {
    StepRunsBy<false>(cols, count, rule, merged, p);
  }
}

void Step(ChunkShape shape, const StepRule& rule, const Components& merged, float* p, size_t stride,
          ChunkScratch* scratch) {
  if (rule.sign) {
    DecodeTile(shape, merged, scratch->first, Stepping<true>{&rule, p, stride, shape.cols});
  } else {
    DecodeTile(shape, merged, scratch->first, Stepping<false>{&rule, p, stride, shape.cols});
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace isthmus
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {
namespace {

HWY_EXPORT(Encode);
HWY_EXPORT(Select);
HWY_EXPORT(Decode);
HWY_EXPORT(Reserve);
HWY_EXPORT(ReserveSome);
HWY_EXPORT(Step);
HWY_EXPORT(StepSome);

void CheckShape(ChunkShape shape) {
  ISTHMUS_CHECK(shape.rows >= 1 && shape.rows <= kChunkSideMax);
  ISTHMUS_CHECK(shape.cols >= 1 && shape.cols <= kChunkSideMax);
}

// For the functions that are given none. A thread's is made when it first calls one of them.
ChunkScratch* ThreadScratch() {
  thread_local const std::unique_ptr<ChunkScratch> scratch = std::make_unique<ChunkScratch>();
  return scratch.get();
}

}  // namespace

void EncodeChunk(ChunkShape shape, const float* x, size_t stride, absl::Span<float> coefficients) {
  CheckShape(shape);
  ISTHMUS_CHECK(coefficients.size() == shape.elements());
  ChunkScratch* const scratch = ThreadScratch();
  HWY_DYNAMIC_DISPATCH(Encode)(shape, x, stride, scratch);
  std::copy_n(scratch->third, coefficients.size(), coefficients.data());
}

void SelectTopK(absl::Span<const float> coefficients, uint32_t k, Components* out) {
  ISTHMUS_CHECK(k >= 1 && k <= coefficients.size());
  if (coefficients.size() > size_t{kChunkSideMax} * kChunkSideMax) {
    return reference::SelectTopK(coefficients, k, out);
  }
  ChunkScratch* const scratch = ThreadScratch();
  std::copy(coefficients.begin(), coefficients.end(), scratch->third);
  HWY_DYNAMIC_DISPATCH(Select)(coefficients.size(), k, scratch, out);
}

void DecodeComponents(ChunkShape shape, const Components& components, absl::Span<float> x) {
  CheckShape(shape);
  ISTHMUS_CHECK(x.size() == shape.elements());
  HWY_DYNAMIC_DISPATCH(Decode)(shape, components, ThreadScratch()->first, x.data());
}

void ReserveChunk(ChunkShape shape, const ReserveRule& rule, const float* g, size_t g_stride,
                  float* d, size_t stride, ChunkScratch* scratch, Components* sent) {
  CheckShape(shape);
  ISTHMUS_CHECK(rule.k >= 1 && rule.k <= shape.elements());
  ISTHMUS_CHECK(shape.rows == 1 || stride >= shape.cols);
  ISTHMUS_CHECK(g == nullptr || shape.rows == 1 || g_stride >= shape.cols);
  if (shape.rows == 1) return ReserveRuns(shape.cols, 1, rule, g, d, scratch, sent);
  HWY_DYNAMIC_DISPATCH(Reserve)(shape, rule, g, g_stride, d, stride, scratch, sent);
}

void ReserveRuns(uint32_t cols, size_t count, const ReserveRule& rule, const float* g, float* d,
                 ChunkScratch* scratch, Components* sent) {
  CheckShape({1, cols});
  ISTHMUS_CHECK(rule.k >= 1 && rule.k <= cols);
  HWY_DYNAMIC_DISPATCH(ReserveSome)(cols, count, rule, g, d, scratch, sent);
}

void StepChunk(ChunkShape shape, const StepRule& rule, const Components& merged, float* p,
               size_t stride, ChunkScratch* scratch) {
  CheckShape(shape);
  ISTHMUS_CHECK(shape.rows == 1 || stride >= shape.cols);
  HWY_DYNAMIC_DISPATCH(Step)(shape, rule, merged, p, stride, scratch);
}

void StepRuns(uint32_t cols, size_t count, const StepRule& rule, const Components* merged,
              float* p) {
  CheckShape({1, cols});
  HWY_DYNAMIC_DISPATCH(StepSome)(cols, count, rule, merged, p);
}

}  // namespace isthmus
#endif  // HWY_ONCE
