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
#include "kernels/cpu/select-inl.h"
#include "kernels/cpu/vectors-inl.h"
#include "kernels/demo.h"
#include "kernels/reference/reference.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus {
namespace HWY_NAMESPACE {

void Encode(ChunkShape shape, const float* x, size_t stride, ChunkScratch* scratch) {
  const size_t padded = PaddedSide(shape.cols);
  for (size_t j = 0; j < shape.rows; ++j) {
    float* HWY_RESTRICT row = scratch->first + j * padded;
    std::copy_n(x + j * stride, shape.cols, row);
    std::fill(row + shape.cols, row + padded, 0.0f);
  }
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

// d <- beta * d + eta * g, and a copy of it as a padded tile in scratch->first. The chunk to the
// right is most likely the next one: its rows are asked for while this one is computed.
HWY_INLINE void MomentumOfChunk(ChunkShape shape, const ReserveRule& rule, const float* g,
                                size_t g_stride, float* d, size_t stride, ChunkScratch* scratch) {
  const FloatTag tag;
  const FloatVec beta = hn::Set(tag, rule.beta);
  const FloatVec eta = hn::Set(tag, rule.eta);
  const size_t padded = PaddedSide(shape.cols);
  constexpr size_t kLine = 64 / sizeof(float);
  for (size_t j = 0; j < shape.rows; ++j) {
    float* row = d + j * stride;
    const float* gradient = g == nullptr ? nullptr : g + j * g_stride;
    float* HWY_RESTRICT tile = scratch->first + j * padded;
    for (size_t l = 0; l < padded; l += kLanes) {
      const size_t left = l < shape.cols ? shape.cols - l : 0;
      const FloatVec from = gradient == nullptr ? hn::Zero(tag) : LoadPart(gradient + l, left);
      const FloatVec decayed = hn::Mul(beta, LoadPart(row + l, left));
      const FloatVec momentum = hn::Add(decayed, hn::Mul(eta, from));
      hn::StoreU(momentum, tag, tile + l);
      StorePart(momentum, row + l, left);
      if (shape.rows > 1 && l % kLine == 0) {
        hwy::Prefetch(row + shape.cols + l);
        if (gradient != nullptr) hwy::Prefetch(gradient + shape.cols + l);
      }
    }
  }
}

void Reserve(ChunkShape shape, const ReserveRule& rule, const float* g, size_t g_stride, float* d,
             size_t stride, ChunkScratch* scratch, Components* sent) {
  MomentumOfChunk(shape, rule, g, g_stride, d, stride, scratch);
  EncodeTile(shape, scratch);
  Select(shape.elements(), rule.k, scratch, sent);
  const FloatVec scale = hn::Set(FloatTag(), -rule.alpha);
  DecodeTile(shape, *sent, scratch->first, [=](size_t j, size_t l, FloatVec sum, size_t left) {
    float* at = d + j * stride + l;
    StorePart(hn::Add(LoadPart(at, left), hn::Mul(scale, sum)), at, left);
  });
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
HWY_EXPORT(Step);

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
  HWY_DYNAMIC_DISPATCH(Reserve)(shape, rule, g, g_stride, d, stride, scratch, sent);
}

void StepChunk(ChunkShape shape, const StepRule& rule, const Components& merged, float* p,
               size_t stride, ChunkScratch* scratch) {
  CheckShape(shape);
  ISTHMUS_CHECK(shape.rows == 1 || stride >= shape.cols);
  HWY_DYNAMIC_DISPATCH(Step)(shape, rule, merged, p, stride, scratch);
}

}  // namespace isthmus
#endif  // HWY_ONCE
