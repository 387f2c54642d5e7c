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
  float* HWY_RESTRICT tile = shape.rows == 1 ? scratch->third : scratch->first;
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

// d <- beta * d + eta * g for one row, and a copy of it in `tile`, padded with zeros. Where memory
// `ahead` of it is wanted next, it is asked for.
template <bool has_gradient, bool prefetch>
HWY_INLINE void MomentumOfRow(const ReserveRule& rule, size_t cols, const float* g, float* d,
                              float* HWY_RESTRICT tile) {
  const FloatTag tag;
  const FloatVec beta = hn::Set(tag, rule.beta);
  const FloatVec eta = hn::Set(tag, rule.eta);
  constexpr size_t kLine = 64 / sizeof(float);
  for (size_t l = 0; l < cols; l += kLanes) {
    const size_t left = cols - l;
    const FloatVec from = has_gradient ? LoadPart(g + l, left) : hn::Zero(tag);
    const FloatVec decayed = hn::Mul(beta, LoadPart(d + l, left));
    const FloatVec momentum = hn::Add(decayed, hn::Mul(eta, from));
    hn::StoreU(momentum, tag, tile + l);
    StorePart(momentum, d + l, left);
    if (prefetch && l % kLine == 0) {
      hwy::Prefetch(d + cols + l);
      if (has_gradient) hwy::Prefetch(g + cols + l);
    }
  }
  std::fill(tile + cols, tile + PaddedSide(cols), 0.0f);
}

// The chunk to the right is most likely the next one: its rows are asked for while this one is
// computed.
HWY_INLINE void MomentumOfTile(ChunkShape shape, const ReserveRule& rule, const float* g,
                               size_t g_stride, float* d, size_t stride, float* tile) {
  const size_t padded = PaddedSide(shape.cols);
  for (size_t j = 0; j < shape.rows; ++j) {
    if (g != nullptr) {
      MomentumOfRow<true, true>(rule, shape.cols, g + j * g_stride, d + j * stride,
                                tile + j * padded);
    } else {
      MomentumOfRow<false, true>(rule, shape.cols, nullptr, d + j * stride, tile + j * padded);
    }
  }
}

// d <- d - alpha * decode(sent)
HWY_INLINE void SubtractSent(ChunkShape shape, float alpha, const Components& sent, float* d,
                             size_t stride, ChunkScratch* scratch) {
  const FloatVec scale = hn::Set(FloatTag(), -alpha);
  DecodeTile(shape, sent, scratch->first, [=](size_t j, size_t l, FloatVec sum, size_t left) {
    float* at = d + j * stride + l;
    StorePart(hn::Add(LoadPart(at, left), hn::Mul(scale, sum)), at, left);
  });
}

// Up to kLanes runs side by side.
HWY_INLINE void ReserveBatch(uint32_t cols, size_t count, const ReserveRule& rule, const float* g,
                             float* d, ChunkScratch* scratch, Components* sent) {
  const size_t padded = PaddedSide(cols);
  for (size_t i = 0; i < count; ++i) {
    float* tile = scratch->third + i * padded;
    if (g != nullptr) {
      MomentumOfRow<true, false>(rule, cols, g + i * cols, d + i * cols, tile);
    } else {
      MomentumOfRow<false, false>(rule, cols, nullptr, d + i * cols, tile);
    }
  }
  EncodeRuns(cols, scratch);
  SelectOfRuns(cols, count, rule.k, scratch, sent);
  for (size_t i = 0; i < count; ++i) {
    SubtractSent({1, cols}, rule.alpha, sent[i], d + i * cols, cols, scratch);
  }
}

void ReserveSome(uint32_t cols, size_t count, const ReserveRule& rule, const float* g, float* d,
                 ChunkScratch* scratch, Components* sent) {
  for (size_t i = 0; i < count; i += kLanes) {
    ReserveBatch(cols, std::min(kLanes, count - i), rule, g == nullptr ? g : g + i * cols,
                 d + i * cols, scratch, sent + i);
  }
}

void Reserve(ChunkShape shape, const ReserveRule& rule, const float* g, size_t g_stride, float* d,
             size_t stride, ChunkScratch* scratch, Components* sent) {
  MomentumOfTile(shape, rule, g, g_stride, d, stride, scratch->first);
  EncodeTile(shape, scratch);
  Select(shape.elements(), rule.k, scratch, sent);
  SubtractSent(shape, rule.alpha, *sent, d, stride, scratch);
}

// -1, 0 or +1; +0 for what is neither above nor below 0.
HWY_INLINE FloatVec SignOf(FloatVec x) {
  const FloatTag d;
  const FloatVec zero = hn::Zero(d);
  const FloatVec one = hn::Set(d, 1.0f);
  const FloatVec positive = hn::IfThenElseZero(hn::Gt(x, zero), one);
  const FloatVec negative = hn::IfThenElseZero(hn::Lt(x, zero), one);
  return hn::Sub(positive, negative);
}

template <bool sign>
HWY_INLINE void StepWith(ChunkShape shape, const StepRule& rule, const Components& merged, float* p,
                         size_t stride, ChunkScratch* scratch) {
  const FloatTag d;
  const FloatVec eta = hn::Set(d, rule.eta);
  const FloatVec factor = hn::Set(d, rule.decay_factor);
  DecodeTile(shape, merged, scratch->first, [=](size_t j, size_t l, FloatVec sum, size_t left) {
    float* at = p + j * stride + l;
    const FloatVec u = sign ? SignOf(sum) : sum;
    const FloatVec kept = hn::Mul(factor, LoadPart(at, left));
    StorePart(hn::Sub(kept, hn::Mul(eta, u)), at, left);
    if (shape.rows > 1) hwy::Prefetch(at + shape.cols);
  });
}

void StepSome(uint32_t cols, size_t count, const StepRule& rule, const Components* merged, float* p,
              ChunkScratch* scratch) {
  for (size_t i = 0; i < count; ++i) {
    if (rule.sign) {
      StepWith<true>({1, cols}, rule, merged[i], p + i * cols, cols, scratch);
    } else {
      StepWith<false>({1, cols}, rule, merged[i], p + i * cols, cols, scratch);
    }
  }
}

void Step(ChunkShape shape, const StepRule& rule, const Components& merged, float* p, size_t stride,
          ChunkScratch* scratch) {
  if (rule.sign) {
    StepWith<true>(shape, rule, merged, p, stride, scratch);
  } else {
    StepWith<false>(shape, rule, merged, p, stride, scratch);
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

void StepRuns(uint32_t cols, size_t count, const StepRule& rule, const Components* merged, float* p,
              ChunkScratch* scratch) {
  CheckShape({1, cols});
  HWY_DYNAMIC_DISPATCH(StepSome)(cols, count, rule, merged, p, scratch);
}

}  // namespace isthmus
#endif  // HWY_ONCE
