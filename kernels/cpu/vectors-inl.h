// What the vector kernels share: parts of vectors at ragged edges, signs, and the transpose of a
// tile.
// Included once for each target (see hwy/foreach_target.h), so its guard is a toggle.
#if defined(ISTHMUS_KERNELS_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_KERNELS_CPU_VECTORS_INL_H_
#undef ISTHMUS_KERNELS_CPU_VECTORS_INL_H_
#else
#define ISTHMUS_KERNELS_CPU_VECTORS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/dct_tables.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Targets whose vectors have no fixed length are not built: arrays of vectors would not exist.
using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::ScalableTag<int32_t>;
using FloatVec = hn::Vec<FloatTag>;
using IntVec = hn::Vec<IntTag>;

constexpr size_t kLanes = hn::MaxLanes(FloatTag());
static_assert(kDctPadding % kLanes == 0, "rows are padded to whole vectors");

// The first `count` lanes from `from`, zeros behind; reads no more than these.
HWY_INLINE FloatVec LoadPart(const float* from, size_t count) {
  const FloatTag d;
  if (HWY_LIKELY(count >= kLanes)) return hn::LoadU(d, from);
  HWY_ALIGN float part[kLanes] = {};
  std::memcpy(part, from, count * sizeof(float));
  return hn::Load(d, part);
}

// Stores the first `count` lanes, no more.
HWY_INLINE void StorePart(FloatVec v, float* to, size_t count) {
  const FloatTag d;
  if (HWY_LIKELY(count >= kLanes)) {
    hn::StoreU(v, d, to);
    return;
  }
  HWY_ALIGN float part[kLanes];
  hn::Store(v, d, part);
  std::memcpy(to, part, count * sizeof(float));
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

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE void Transpose(size_t rows, size_t cols, const float* HWY_RESTRICT from,
                          size_t from_stride, float* HWY_RESTRICT to, size_t to_stride) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) to[c * to_stride + r] = from[r * from_stride + c];
  }
}

#else

// Four elements of each row r = 0, 4, 8, … below `from`, side by side.
template <class Tag>
HWY_INLINE hn::Vec<Tag> LoadFours(Tag d, const float* from, size_t stride) {
  if constexpr (hn::MaxLanes(Tag()) == 4) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<Tag> half;
    constexpr size_t kRowsInHalf = hn::MaxLanes(Tag()) / 2;
    return hn::Combine(d, LoadFours(half, from + kRowsInHalf * stride, stride),
                       LoadFours(half, from, stride));
  }
}

// to[c][r] <- from[r][c] for a matrix of `rows` x `cols`, both multiples of the vector's length
// (padding included).
HWY_INLINE void Transpose(size_t rows, size_t cols, const float* HWY_RESTRICT from,
                          size_t from_stride, float* HWY_RESTRICT to, size_t to_stride) {
  const FloatTag d;
  const hn::Repartition<uint64_t, FloatTag> d64;
  for (size_t c = 0; c < cols; c += 4) {
    for (size_t r = 0; r < rows; r += kLanes) {
      const float* HWY_RESTRICT corner = from + r * from_stride + c;
      const FloatVec v0 = LoadFours(d, corner, from_stride);
      const FloatVec v1 = LoadFours(d, corner + from_stride, from_stride);
      const FloatVec v2 = LoadFours(d, corner + 2 * from_stride, from_stride);
      const FloatVec v3 = LoadFours(d, corner + 3 * from_stride, from_stride);
      const auto lower01 = hn::BitCast(d64, hn::InterleaveLower(d, v0, v1));
      const auto lower23 = hn::BitCast(d64, hn::InterleaveLower(d, v2, v3));
      const auto upper01 = hn::BitCast(d64, hn::InterleaveUpper(d, v0, v1));
      const auto upper23 = hn::BitCast(d64, hn::InterleaveUpper(d, v2, v3));
      float* HWY_RESTRICT out = to + c * to_stride + r;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, lower01, lower23)), d, out);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, lower01, lower23)), d, out + to_stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, upper01, upper23)), d,
                 out + 2 * to_stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, upper01, upper23)), d,
                 out + 3 * to_stride);
    }
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace isthmus
HWY_AFTER_NAMESPACE();

#endif  // ISTHMUS_KERNELS_CPU_VECTORS_INL_H_
