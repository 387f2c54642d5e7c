// The inverse transform of a few components, bit-equal: vectors lie across columns, and each
// element is summed in the order that kernels/demo.h states.
#if defined(ISTHMUS_KERNELS_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_KERNELS_CPU_DECODE_INL_H_
#undef ISTHMUS_KERNELS_CPU_DECODE_INL_H_
#else
#define ISTHMUS_KERNELS_CPU_DECODE_INL_H_
#endif

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "kernels/chunk.h"
#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus {
namespace HWY_NAMESPACE {

// Vectors of columns that are summed side by side.
constexpr size_t kColumnVectors = 4;

// The row frequencies that have components.
struct PresentRows {
  uint32_t count = 0;
  uint32_t frequency[kChunkSideMax];
};

// sum over components [begin, end), all of the row that begins at index `row_begin`, of value *
// cosine, for `vectors` vectors of columns from `cosines` on.
template <size_t vectors>
HWY_INLINE void SumOfRow(const Components& components, size_t begin, size_t end, uint32_t row_begin,
                         const float* HWY_RESTRICT cosines, size_t stride,
                         FloatVec* HWY_RESTRICT sum) {
  const FloatTag d;
  const uint32_t* HWY_RESTRICT index = components.index.data();
  const float* HWY_RESTRICT value = components.value.data();
  HWY_UNROLL(4)
  for (size_t v = 0; v < vectors; ++v) sum[v] = hn::Zero(d);
  for (size_t i = begin; i < end; ++i) {
    const float* HWY_RESTRICT cosine = cosines + (index[i] - row_begin) * stride;
    const FloatVec weight = hn::Set(d, value[i]);
    HWY_UNROLL(4)
    for (size_t v = 0; v < vectors; ++v) {
      sum[v] = hn::Add(sum[v], hn::Mul(weight, hn::LoadU(d, cosine + v * kLanes)));
    }
  }
}

HWY_INLINE void CheckRun(uint32_t cols, const Components& components) {
  ISTHMUS_CHECK(components.index.size() == components.value.size());
  uint32_t last = 0;
  for (const uint32_t e : components.index) last = std::max(last, e);
  ISTHMUS_CHECK(last < cols);
}

// Calls sink(0, l, vector of sums, columns left) for `vectors` vectors from column l on, but for
// those in the padding.
template <size_t vectors, class Sink>
HWY_INLINE void PassOn(const FloatVec* sum, size_t l, size_t cols, Sink& sink) {
  HWY_UNROLL(4)
  for (size_t v = 0; v < vectors; ++v) {
    const size_t at = l + v * kLanes;
    if (at < cols) sink(0, at, sum[v], cols - at);
  }
}

// A run: calls sink(0, l, sums of columns l and on, how many of them) for all columns.
template <class Sink>
HWY_INLINE void DecodeRun(uint32_t cols, const Components& components, Sink&& sink) {
  CheckRun(cols, components);
  const size_t stride = PaddedSide(cols);
  const float* HWY_RESTRICT cosines = DctBasisPadded(cols).by_frequency;
  size_t l = 0;
  for (; l + kColumnVectors * kLanes <= stride; l += kColumnVectors * kLanes) {
    FloatVec sum[kColumnVectors];
    SumOfRow<kColumnVectors>(components, 0, components.size(), 0, cosines + l, stride, sum);
    PassOn<kColumnVectors>(sum, l, cols, sink);
  }
  for (; l < cols; l += kLanes) {
    FloatVec sum[1];
    SumOfRow<1>(components, 0, components.size(), 0, cosines + l, stride, sum);
    PassOn<1>(sum, l, cols, sink);
  }
}

// The cosine of position n - 1 - j is that of position j for an even frequency, and its negative
// for an odd one, to the bit (kernels/dct_tables.cc makes both from one constant). So positions
// that mirror each other share a product p, and the mirrored one adds p * 1 or p * -1. That product
// is exact: with a fused multiply-add too the sum is rounded once, as the stated order wants it. A
// sum that began at +0 is never -0, so the sign of a product that is zero does not matter.
HWY_INLINE FloatVec AddMirrored(FloatVec sum, FloatVec product, float sign) {
  return hn::MulAdd(product, hn::Set(FloatTag(), sign), sum);
}

// +1 and -1 for even and odd frequencies.
constexpr float kMirrorSign[2] = {1.0f, -1.0f};

// The sums of one run for `vectors` vectors of columns from `cosines` on, and for those that mirror
// them, the lanes in the order of the former.
template <size_t vectors>
struct MirroredSums {
  FloatVec front[vectors];
  FloatVec back[vectors];

  HWY_INLINE void Clear() {
    HWY_UNROLL(4)
    for (size_t v = 0; v < vectors; ++v) front[v] = back[v] = hn::Zero(FloatTag());
  }

  HWY_INLINE void AddFrequency(uint32_t e, float value, const float* HWY_RESTRICT cosines,
                               size_t stride) {
    const FloatTag d;
    const FloatVec weight = hn::Set(d, value);
    HWY_UNROLL(4)
    for (size_t v = 0; v < vectors; ++v) {
      const FloatVec product = hn::Mul(weight, hn::LoadU(d, cosines + e * stride + v * kLanes));
      front[v] = hn::Add(front[v], product);
      back[v] = AddMirrored(back[v], product, kMirrorSign[e % 2]);
    }
  }

  template <class Sink>
  HWY_INLINE void PassOn(size_t l, size_t cols, Sink& sink) const {
    HWY_UNROLL(4)
    for (size_t v = 0; v < vectors; ++v) {
      const size_t at = l + v * kLanes;
      const size_t mirrored = cols - kLanes - at;
      sink(0, at, front[v], cols - at);
      sink(0, mirrored, hn::Reverse(FloatTag(), back[v]), cols - mirrored);
    }
  }
};

// Two runs at once. A sum is a chain of additions, each of which waits for the one before: two
// chains of equal length fill each other's gaps. The order within each is that of DecodeRun.
template <class SinkA, class SinkB>
HWY_INLINE void DecodeTwoRuns(uint32_t cols, const Components& a, const Components& b,
                              SinkA&& sink_a, SinkB&& sink_b) {
  constexpr size_t kVectors = kColumnVectors / 2;
  if (a.size() != b.size() || cols % (2 * kVectors * kLanes) != 0) {
    DecodeRun(cols, a, sink_a);
    DecodeRun(cols, b, sink_b);
    return;
  }
  CheckRun(cols, a);
  CheckRun(cols, b);
  const float* HWY_RESTRICT cosines = DctBasisPadded(cols).by_frequency;
  const uint32_t* HWY_RESTRICT index_a = a.index.data();
  const uint32_t* HWY_RESTRICT index_b = b.index.data();
  const float* HWY_RESTRICT value_a = a.value.data();
  const float* HWY_RESTRICT value_b = b.value.data();
  for (size_t l = 0; l < cols / 2; l += kVectors * kLanes) {
    MirroredSums<kVectors> sums_a, sums_b;
    sums_a.Clear();
    sums_b.Clear();
    for (size_t i = 0; i < a.size(); ++i) {
      sums_a.AddFrequency(index_a[i], value_a[i], cosines + l, cols);
      sums_b.AddFrequency(index_b[i], value_b[i], cosines + l, cols);
    }
    sums_a.PassOn(l, cols, sink_a);
    sums_b.PassOn(l, cols, sink_b);
  }
}

// y[b][l] of each row frequency b that has components, into `y`, rows of PaddedSide(cols).
HWY_INLINE void DecodeRows(ChunkShape shape, const Components& components, float* HWY_RESTRICT y,
                           PresentRows* present) {
  const FloatTag d;
  const uint32_t rows = shape.rows;
  const uint32_t cols = shape.cols;
  const size_t stride = PaddedSide(cols);
  const float* HWY_RESTRICT cosines = DctBasisPadded(cols).by_frequency;
  const size_t count = components.size();
  for (size_t i = 0; i < count;) {
    const uint32_t b = components.index[i] / cols;
    ISTHMUS_CHECK(b < rows);
    // Indices ascend, so there are never more than `rows` of them.
    ISTHMUS_CHECK(present->count < rows);
    const uint32_t row_begin = b * cols;
    size_t end = i + 1;
    while (end < count && components.index[end] - row_begin < cols) ++end;
    float* HWY_RESTRICT to = y + present->count * stride;
    size_t l = 0;
    for (; l + kColumnVectors * kLanes <= stride; l += kColumnVectors * kLanes) {
      FloatVec sum[kColumnVectors];
      SumOfRow<kColumnVectors>(components, i, end, row_begin, cosines + l, stride, sum);
      for (size_t v = 0; v < kColumnVectors; ++v) hn::StoreU(sum[v], d, to + l + v * kLanes);
    }
    for (; l < stride; l += kLanes) {
      FloatVec sum[1];
      SumOfRow<1>(components, i, end, row_begin, cosines + l, stride, sum);
      hn::StoreU(sum[0], d, to + l);
    }
    present->frequency[present->count++] = b;
    i = end;
  }
}

// x[j][l] and x[rows - 1 - j][l] of `pairs` rows from j on and of `vectors` vectors of columns from
// `y` on; see AddMirrored.
template <size_t pairs, size_t vectors>
struct RowSums {
  FloatVec front[pairs][vectors];
  FloatVec back[pairs][vectors];

  HWY_INLINE void Clear() {
    HWY_UNROLL(4)
    for (size_t q = 0; q < pairs; ++q) {
      HWY_UNROLL(4)
      for (size_t v = 0; v < vectors; ++v) front[q][v] = back[q][v] = hn::Zero(FloatTag());
    }
  }

  HWY_INLINE void AddFrequency(uint32_t b, const float* HWY_RESTRICT y,
                               const float* HWY_RESTRICT cosines, size_t rows) {
    const FloatTag d;
    HWY_UNROLL(4)
    for (size_t q = 0; q < pairs; ++q) {
      const FloatVec weight = hn::Set(d, cosines[q * rows + b]);
      HWY_UNROLL(4)
      for (size_t v = 0; v < vectors; ++v) {
        const FloatVec product = hn::Mul(weight, hn::LoadU(d, y + v * kLanes));
        front[q][v] = hn::Add(front[q][v], product);
        back[q][v] = AddMirrored(back[q][v], product, kMirrorSign[b % 2]);
      }
    }
  }

  // `cosines` is the row of the basis of position j, `rows` elements long.
  HWY_INLINE void Run(const PresentRows& present, const float* HWY_RESTRICT y, size_t stride,
                      const float* HWY_RESTRICT cosines, size_t rows) {
    Clear();
    for (uint32_t i = 0; i < present.count; ++i) {
      AddFrequency(present.frequency[i], y + i * stride, cosines, rows);
    }
  }
};

template <size_t pairs, size_t vectors, class Sink>
HWY_INLINE void DecodePairs(ChunkShape shape, const PresentRows& present, const float* y,
                            size_t stride, size_t j, size_t l, Sink& sink) {
  const size_t rows = shape.rows;
  RowSums<pairs, vectors> sums;
  sums.Run(present, y + l, stride, DctBasis(shape.rows).data() + j * rows, rows);
  HWY_UNROLL(4)
  for (size_t q = 0; q < pairs; ++q) {
    const size_t mirrored = rows - 1 - (j + q);
    HWY_UNROLL(4)
    for (size_t v = 0; v < vectors; ++v) {
      const size_t at = l + v * kLanes;
      if (at >= shape.cols) break;
      sink(j + q, at, sums.front[q][v], shape.cols - at);
      if (mirrored != j + q) sink(mirrored, at, sums.back[q][v], shape.cols - at);
    }
  }
}

template <size_t vectors, class Sink>
HWY_INLINE void DecodeColumns(ChunkShape shape, const PresentRows& present, const float* y,
                              size_t stride, size_t l, Sink& sink) {
  // As many as the registers of the target hold.
  constexpr size_t kPairs = kLanes == 16 ? 2 : 1;
  size_t j = 0;
  for (; 2 * (j + kPairs) <= shape.rows; j += kPairs) {
    DecodePairs<kPairs, vectors>(shape, present, y, stride, j, l, sink);
  }
  for (; 2 * j < shape.rows; ++j) {
    DecodePairs<1, vectors>(shape, present, y, stride, j, l, sink);
  }
}

// Calls sink(j, l, x[j][l] and on, elements left in the row) for each vector of the decoded chunk.
// `y` is working memory: rows * PaddedSide(cols).
template <class Sink>
HWY_INLINE void DecodeTile(ChunkShape shape, const Components& components, float* HWY_RESTRICT y,
                           Sink&& sink) {
  if (shape.rows == 1) return DecodeRun(shape.cols, components, sink);
  ISTHMUS_CHECK(components.index.size() == components.value.size());
  PresentRows present;
  DecodeRows(shape, components, y, &present);
  const size_t stride = PaddedSide(shape.cols);
  size_t l = 0;
  for (; l + kColumnVectors * kLanes <= stride; l += kColumnVectors * kLanes) {
    DecodeColumns<kColumnVectors>(shape, present, y, stride, l, sink);
  }
  for (; l < shape.cols; l += kLanes) DecodeColumns<1>(shape, present, y, stride, l, sink);
}

}  // namespace HWY_NAMESPACE
}  // namespace isthmus
HWY_AFTER_NAMESPACE();

#endif  // ISTHMUS_KERNELS_CPU_DECODE_INL_H_
