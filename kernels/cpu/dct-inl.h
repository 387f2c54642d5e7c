// DCT-II of a tile. Sides that are a power of two have a fast algorithm; the others are products
// with the basis. Neither is bit-equal class: multiply and add may be fused here.
#if defined(ISTHMUS_KERNELS_CPU_DCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_KERNELS_CPU_DCT_INL_H_
#undef ISTHMUS_KERNELS_CPU_DCT_INL_H_
#else
#define ISTHMUS_KERNELS_CPU_DCT_INL_H_
#endif

#include <algorithm>

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

// The DCT-II of each of `width` columns of n elements; `width` is a multiple of the vector's
// length, rows of both are `stride` elements apart.
template <size_t n>
HWY_NOINLINE void FastColumns(size_t width, size_t stride, const float* HWY_RESTRICT from,
                              float* HWY_RESTRICT to) {
  const FloatTag d;
  const absl::Span<const float> basis = DctBasis(n);
  const FloatVec scale0 = hn::Set(d, basis[0]);
  const FloatVec scale = hn::Set(d, kDctScale<n>);
  for (size_t v = 0; v < width; v += kLanes) {
    FloatVec x[n], y[n];
    HWY_UNROLL(128)
    for (size_t j = 0; j < n; ++j) x[j] = hn::LoadU(d, from + j * stride + v);
    Dct2<n>::Run(x, y);
    hn::StoreU(hn::Mul(y[0], scale0), d, to + v);
    HWY_UNROLL(128)
    for (size_t b = 1; b < n; ++b) {
      hn::StoreU(hn::Mul(y[b], scale), d, to + b * stride + v);
    }
  }
}

// kOutputs rows of the product of `weights` (rows of n) and `from`, for one vector of columns.
// Eight terms at a time: short sums halve the round-off of adding one by one.
template <size_t kOutputs>
HWY_INLINE void WeightedSums(size_t n, const float* HWY_RESTRICT weights, size_t stride,
                             const float* HWY_RESTRICT from, float* HWY_RESTRICT to) {
  const FloatTag d;
  FloatVec total[kOutputs];
  HWY_UNROLL(128)
  for (size_t o = 0; o < kOutputs; ++o) total[o] = hn::Zero(d);
  for (size_t j = 0; j < n; j += 8) {
    const size_t end = std::min(n, j + 8);
    FloatVec sum[kOutputs];
    HWY_UNROLL(128)
    for (size_t o = 0; o < kOutputs; ++o) sum[o] = hn::Zero(d);
    for (size_t i = j; i < end; ++i) {
      const FloatVec row = hn::LoadU(d, from + i * stride);
      HWY_UNROLL(128)
      for (size_t o = 0; o < kOutputs; ++o) {
        sum[o] = hn::MulAdd(hn::Set(d, weights[o * n + i]), row, sum[o]);
      }
    }
    HWY_UNROLL(128)
    for (size_t o = 0; o < kOutputs; ++o) total[o] = hn::Add(total[o], sum[o]);
  }
  HWY_UNROLL(128)
  for (size_t o = 0; o < kOutputs; ++o) hn::StoreU(total[o], d, to + o * stride);
}

HWY_NOINLINE void ProductColumns(size_t n, size_t width, size_t stride,
                                 const float* HWY_RESTRICT from, float* HWY_RESTRICT to) {
  const float* weights = DctBasisTransposed(static_cast<uint32_t>(n)).data();
  for (size_t v = 0; v < width; v += kLanes) {
    size_t b = 0;
    for (; b + 4 <= n; b += 4) {
      WeightedSums<4>(n, weights + b * n, stride, from + v, to + b * stride + v);
    }
    for (; b < n; ++b) {
      WeightedSums<1>(n, weights + b * n, stride, from + v, to + b * stride + v);
    }
  }
}

HWY_INLINE void DctColumns(size_t n, size_t width, size_t stride, const float* HWY_RESTRICT from,
                           float* HWY_RESTRICT to) {
  switch (n) {
    case 8:
      return FastColumns<8>(width, stride, from, to);
    case 16:
      return FastColumns<16>(width, stride, from, to);
    case 32:
      return FastColumns<32>(width, stride, from, to);
    case 64:
      return FastColumns<64>(width, stride, from, to);
    case 128:
      return FastColumns<128>(width, stride, from, to);
    default:
      return ProductColumns(n, width, stride, from, to);
  }
}

// The tile in scratch->first (rows of PaddedSide(cols) elements) is used up; its coefficients,
// dense and in order, come into scratch->third.
HWY_INLINE void EncodeTile(ChunkShape shape, ChunkScratch* scratch) {
  const size_t rows = shape.rows;
  const size_t cols = shape.cols;
  const size_t padded_rows = PaddedSide(rows);
  const size_t padded_cols = PaddedSide(cols);
  DctColumns(rows, padded_cols, padded_cols, scratch->first, scratch->second);
  Transpose(padded_rows, padded_cols, scratch->second, padded_cols, scratch->first, padded_rows);
  DctColumns(cols, padded_rows, padded_rows, scratch->first, scratch->second);
  if (padded_cols == cols) {
    Transpose(padded_cols, padded_rows, scratch->second, padded_rows, scratch->third, cols);
    return;
  }
  Transpose(padded_cols, padded_rows, scratch->second, padded_rows, scratch->first, padded_cols);
  for (size_t b = 0; b < rows; ++b) {
    std::copy_n(scratch->first + b * padded_cols, cols, scratch->third + b * cols);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace isthmus
HWY_AFTER_NAMESPACE();

#endif  // ISTHMUS_KERNELS_CPU_DCT_INL_H_
