// DCT-II of a chunk and the inverse of a few components: plain loops. The innermost one always runs
// over columns, so that the compiler makes vector instructions of it without changing any order.
#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "kernels/dct_tables.h"
#include "kernels/reference/reference.h"

namespace isthmus {
namespace reference {
namespace {

constexpr size_t kChunkElementsMax = size_t{kChunkSideMax} * kChunkSideMax;

void CheckShape(ChunkShape shape) {
  ISTHMUS_CHECK(shape.rows >= 1 && shape.rows <= kChunkSideMax);
  ISTHMUS_CHECK(shape.cols >= 1 && shape.cols <= kChunkSideMax);
}

// to <- to + scale * from
inline void Accumulate(uint32_t count, float scale, const float* __restrict from,
                       float* __restrict to) {
  for (uint32_t i = 0; i < count; ++i) to[i] += scale * from[i];
}

// Row o of `to` <- sum over i of weights[o * weights_stride + i] * (row i of `rows`), for kOutputs
// rows that share what is loaded. Eight rows at a time, in pairs of pairs: the sums stay short,
// which halves the round-off of adding them one by one.
template <uint32_t kOutputs>
void WeightedSums(uint32_t count, uint32_t cols, const float* weights, size_t weights_stride,
                  const float* __restrict rows, float* __restrict to) {
  std::fill(to, to + kOutputs * cols, 0.0f);
  uint32_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const float* __restrict r = rows + i * cols;
    float w[kOutputs][8];
    for (uint32_t o = 0; o < kOutputs; ++o) {
      std::copy_n(weights + o * weights_stride + i, 8, w[o]);
    }
    for (uint32_t e = 0; e < cols; ++e) {
      const float r0 = r[e], r1 = r[cols + e], r2 = r[2 * cols + e], r3 = r[3 * cols + e];
      const float r4 = r[4 * cols + e], r5 = r[5 * cols + e];
      const float r6 = r[6 * cols + e], r7 = r[7 * cols + e];
      for (uint32_t o = 0; o < kOutputs; ++o) {
        to[o * cols + e] += ((w[o][0] * r0 + w[o][1] * r1) + (w[o][2] * r2 + w[o][3] * r3)) +
                            ((w[o][4] * r4 + w[o][5] * r5) + (w[o][6] * r6 + w[o][7] * r7));
      }
    }
  }
  for (; i < count; ++i) {
    for (uint32_t o = 0; o < kOutputs; ++o) {
      Accumulate(cols, weights[o * weights_stride + i], rows + i * cols, to + o * cols);
    }
  }
}

// The product of `weights` (outputs x count) and `rows` (count x cols).
void Multiply(uint32_t outputs, uint32_t count, uint32_t cols, const float* weights,
              size_t weights_stride, const float* rows, float* to) {
  uint32_t o = 0;
  for (; o + 4 <= outputs; o += 4) {
    WeightedSums<4>(count, cols, weights + o * weights_stride, weights_stride, rows, to + o * cols);
  }
  for (; o < outputs; ++o) {
    WeightedSums<1>(count, cols, weights + o * weights_stride, weights_stride, rows, to + o * cols);
  }
}

}  // namespace

void EncodeChunk(ChunkShape shape, const float* x, size_t stride, absl::Span<float> coefficients) {
  CheckShape(shape);
  ISTHMUS_CHECK(coefficients.size() == shape.elements());
  const uint32_t rows = shape.rows;
  const uint32_t cols = shape.cols;
  // Along the columns: by_row[j][e] = sum over l of x[j][l] * F_cols[l][e].
  float by_row[kChunkElementsMax];
  Multiply(rows, cols, cols, x, stride, DctBasis(cols).data(), by_row);
  // Along the rows: c[b][e] = sum over j of F_rows[j][b] * by_row[j][e].
  Multiply(rows, rows, cols, DctBasisTransposed(rows).data(), rows, by_row, coefficients.data());
}

void DecodeComponents(ChunkShape shape, const Components& components, absl::Span<float> x) {
  CheckShape(shape);
  ISTHMUS_CHECK(x.size() == shape.elements());
  ISTHMUS_CHECK(components.index.size() == components.value.size());
  const uint32_t rows = shape.rows;
  const uint32_t cols = shape.cols;
  const float* cosines_of_cols = DctBasisTransposed(cols).data();
  const float* cosines_of_rows = DctBasisTransposed(rows).data();
  std::fill(x.begin(), x.end(), 0.0f);
  float y[kChunkSideMax];
  for (size_t i = 0; i < components.size();) {
    // All components of row frequency b. Ascending indices are ascending column frequencies.
    const uint32_t b = components.index[i] / cols;
    ISTHMUS_CHECK(b < rows);
    std::fill(y, y + cols, 0.0f);
    for (; i < components.size() && components.index[i] / cols == b; ++i) {
      const uint32_t e = components.index[i] % cols;
      Accumulate(cols, components.value[i], cosines_of_cols + e * cols, y);
    }
    // For one row F is the number 1, and +0 + 1 * y has the bits of y: a run is its y[0].
    for (uint32_t j = 0; j < rows; ++j) {
      Accumulate(cols, cosines_of_rows[b * rows + j], y, x.data() + j * cols);
    }
  }
}

}  // namespace reference
}  // namespace isthmus
