// DCT-II of a tile. Sides that are a power of two have a fast algorithm; the others are products
// with the basis. Neither is bit-equal class: multiply and add may be fused here.
#if defined(ISTHMUS_KERNELS_CPU_DCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_KERNELS_CPU_DCT_INL_H_
#undef ISTHMUS_KERNELS_CPU_DCT_INL_H_
#else
#define ISTHMUS_KERNELS_CPU_DCT_INL_H_
#endif

#include <algorithm>

#include "base/limits.h"
#include "kernels/chunk.h"
#include "kernels/cpu/dct_angles.h"
#include "kernels/cpu/vectors-inl.h"
#include "kernels/demo.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus {
namespace HWY_NAMESPACE {

// Sums without the factors s_b, for a lane of its own in each column:
//   DCT-II: y[b] = sum over j of x[j] * cos(pi * (2j + 1) * b / (2n))
//   DCT-IV: y[b] = sum over j of x[j] * cos(pi * (2j + 1) * (2b + 1) / (4n))
// by the recursion of Plonka and Tasche ("Fast and numerically stable algorithms for discrete
// cosine transforms", 2005): only plane rotations and butterflies, so round-off stays small.
template <size_t n>
struct Dct2;

template <size_t n>
struct Dct4 {
  static constexpr size_t half = n / 2;
  static HWY_INLINE void Run(const FloatVec* HWY_RESTRICT x, FloatVec* HWY_RESTRICT y) {
    const FloatTag d;
    FloatVec a[half], b[half], u[half], w[half];
    HWY_UNROLL(128)
    for (size_t j = 0; j < half; ++j) {
      const FloatVec cosine = hn::Set(d, kDctAngles<n>.cosine[j]);
      const FloatVec sine = hn::Set(d, kDctAngles<n>.sine[j]);
      const FloatVec front = x[j];
      const FloatVec back = x[n - 1 - j];
      a[j] = hn::MulAdd(front, cosine, hn::Mul(back, sine));
      b[j] = j % 2 == 0 ? hn::MulSub(front, sine, hn::Mul(back, cosine))
                        : hn::MulSub(back, cosine, hn::Mul(front, sine));
    }
    Dct2<half>::Run(a, u);
    Dct2<half>::Run(b, w);
    y[0] = u[0];
    y[n - 1] = w[0];
    HWY_UNROLL(128)
    for (size_t k = 1; k < half; ++k) {
      y[2 * k - 1] = hn::Add(u[k], w[half - k]);
      y[2 * k] = hn::Sub(u[k], w[half - k]);
    }
  }
};

template <>
struct Dct4<1> {
  static HWY_INLINE void Run(const FloatVec* HWY_RESTRICT x, FloatVec* HWY_RESTRICT y) {
    y[0] = hn::Mul(x[0], hn::Set(FloatTag(), kDctAngles<1>.cosine[0]));
  }
};

template <size_t n>
struct Dct2 {
  static constexpr size_t half = n / 2;
  static HWY_INLINE void Run(const FloatVec* HWY_RESTRICT x, FloatVec* HWY_RESTRICT y) {
    FloatVec sum[half], difference[half], even[half], odd[half];
    HWY_UNROLL(128)
    for (size_t j = 0; j < half; ++j) {
      sum[j] = hn::Add(x[j], x[n - 1 - j]);
      difference[j] = hn::Sub(x[j], x[n - 1 - j]);
    }
    Dct2<half>::Run(sum, even);
    Dct4<half>::Run(difference, odd);
    HWY_UNROLL(128)
    for (size_t b = 0; b < half; ++b) {
      y[2 * b] = even[b];
      y[2 * b + 1] = odd[b];
    }
  }
};

template <>
struct Dct2<1> {
  static HWY_INLINE void Run(const FloatVec* HWY_RESTRICT x, FloatVec* HWY_RESTRICT y) {
    y[0] = x[0];
  }
};

// The DCT-II of one vector of columns of n elements, rows of `from` being `stride` elements apart;
// rows of `to` follow each other.
template <size_t n>
HWY_NOINLINE void FastColumns(const float* HWY_RESTRICT from, size_t stride,
                              float* HWY_RESTRICT to) {
  const FloatTag d;
  const FloatVec scale0 = hn::Set(d, SqrtOfOneOver(n));
  const FloatVec scale = hn::Set(d, SqrtOfOneOver(n / 2));
  FloatVec x[n], y[n];
  HWY_UNROLL(128)
  for (size_t j = 0; j < n; ++j) x[j] = hn::LoadU(d, from + j * stride);
  Dct2<n>::Run(x, y);
  hn::StoreU(hn::Mul(y[0], scale0), d, to);
  HWY_UNROLL(128)
  for (size_t b = 1; b < n; ++b) hn::StoreU(hn::Mul(y[b], scale), d, to + b * kLanes);
}

// kOutputs rows of the product of `weights` (rows of n) and `from`, for one vector of columns.
// Eight terms at a time: short sums halve the round-off of adding one by one.
template <size_t kOutputs>
HWY_INLINE void WeightedSums(size_t n, const float* HWY_RESTRICT weights,
                             const float* HWY_RESTRICT from, size_t stride,
                             float* HWY_RESTRICT to) {
  const FloatTag d;
  FloatVec total[kOutputs];
  HWY_UNROLL(4)
  for (size_t o = 0; o < kOutputs; ++o) total[o] = hn::Zero(d);
  for (size_t j = 0; j < n; j += 8) {
    const size_t end = std::min(n, j + 8);
    FloatVec sum[kOutputs];
    HWY_UNROLL(4)
    for (size_t o = 0; o < kOutputs; ++o) sum[o] = hn::Zero(d);
    for (size_t i = j; i < end; ++i) {
      const FloatVec row = hn::LoadU(d, from + i * stride);
      HWY_UNROLL(4)
      for (size_t o = 0; o < kOutputs; ++o) {
        sum[o] = hn::MulAdd(hn::Set(d, weights[o * n + i]), row, sum[o]);
      }
    }
    HWY_UNROLL(4)
    for (size_t o = 0; o < kOutputs; ++o) total[o] = hn::Add(total[o], sum[o]);
  }
  HWY_UNROLL(4)
  for (size_t o = 0; o < kOutputs; ++o) hn::StoreU(total[o], d, to + o * kLanes);
}

HWY_NOINLINE void ProductColumns(size_t n, const float* HWY_RESTRICT from, size_t stride,
                                 float* HWY_RESTRICT to) {
  const float* weights = DctBasisTransposed(static_cast<uint32_t>(n)).data();
  size_t b = 0;
  for (; b + 4 <= n; b += 4) WeightedSums<4>(n, weights + b * n, from, stride, to + b * kLanes);
  for (; b < n; ++b) WeightedSums<1>(n, weights + b * n, from, stride, to + b * kLanes);
}

HWY_INLINE void DctColumns(size_t n, const float* HWY_RESTRICT from, size_t stride,
                           float* HWY_RESTRICT to) {
  switch (n) {
    case 8:
      return FastColumns<8>(from, stride, to);
    case 16:
      return FastColumns<16>(from, stride, to);
    case 32:
      return FastColumns<32>(from, stride, to);
    case 64:
      return FastColumns<64>(from, stride, to);
    case 128:
      return FastColumns<128>(from, stride, to);
    default:
      return ProductColumns(n, from, stride, to);
  }
}

// The DCT-II of `width` columns of n elements, turned: each comes out as a row of PaddedSide(n),
// and rows of `from` are PaddedSide(width) long. Zeros behind the n coefficients.
HWY_INLINE void TransformAndTurn(size_t n, size_t width, const float* HWY_RESTRICT from,
                                 float* HWY_RESTRICT to) {
  const size_t padded = PaddedSide(n);
  const size_t stride = PaddedSide(width);
  HWY_ALIGN float column[kChunkSideMax * kLanes];
  std::fill(column + n * kLanes, column + padded * kLanes, 0.0f);
  for (size_t v = 0; v < width; v += kLanes) {
    DctColumns(n, from + v, stride, column);
    Transpose(padded, kLanes, column, kLanes, to + v * padded, padded);
  }
}

// Coefficients, dense and in order, into scratch->third of the tile in scratch->first (rows of
// PaddedSide(cols) elements), which stays.
HWY_INLINE void EncodeTile(ChunkShape shape, ChunkScratch* scratch) {
  const size_t padded = PaddedSide(shape.cols);
  TransformAndTurn(shape.rows, shape.cols, scratch->first, scratch->second);
  TransformAndTurn(shape.cols, shape.rows, scratch->second, scratch->third);
  if (padded == shape.cols) return;
  for (size_t b = 1; b < shape.rows; ++b) {
    const float* row = scratch->third + b * padded;
    std::copy(row, row + shape.cols, scratch->third + b * shape.cols);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace isthmus
HWY_AFTER_NAMESPACE();

#endif  // ISTHMUS_KERNELS_CPU_DCT_INL_H_
