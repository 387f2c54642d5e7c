// DCT-II of a chunk and the inverse of a few components: plain loops. The innermost one always runs
// over columns, so that the compiler makes vector instructions of it without changing any order.
#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "kernels/dct_tables.h"
#include "kernels/demo.h"

namespace isthmus {
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

// to <- sum over i of weights[i] * (row i of `rows`). Eight rows at a time, in pairs of pairs: the
// sums stay short, which halves the round-off of adding them one by one.
void WeightedSumOfRows(uint32_t count, uint32_t cols, const float* weights, const float* rows,
                       float* __restrict to) {
  std::fill(to, to + cols, 0.0f);
  uint32_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const float* w = weights + i;
    const float* __restrict r = rows + i * cols;
    for (uint32_t e = 0; e < cols; ++e) {
      to[e] +=
          ((w[0] * r[e] + w[1] * r[cols + e]) + (w[2] * r[2 * cols + e] + w[3] * r[3 * cols + e])) +
          ((w[4] * r[4 * cols + e] + w[5] * r[5 * cols + e]) +
           (w[6] * r[6 * cols + e] + w[7] * r[7 * cols + e]));
    }
  }
  for (; i < count; ++i) Accumulate(cols, weights[i], rows + i * cols, to);
}

}  // namespace

void EncodeChunk(ChunkShape shape, const float* x, size_t stride, absl::Span<float> coefficients) {
  CheckShape(shape);
  ISTHMUS_CHECK(coefficients.size() == shape.elements());
  const uint32_t rows = shape.rows;
  const uint32_t cols = shape.cols;
  // Along the columns: by_row[j][e] = sum over l of x[j][l] * F_cols[l][e].
  float by_row[kChunkElementsMax];
  const float* basis = DctBasis(cols).data();
  for (uint32_t j = 0; j < rows; ++j) {
    WeightedSumOfRows(cols, cols, x + j * stride, basis, by_row + j * cols);
  }
  // Along the rows: c[b][e] = sum over j of F_rows[j][b] * by_row[j][e].
  const float* transposed = DctBasisTransposed(rows).data();
  for (uint32_t b = 0; b < rows; ++b) {
    WeightedSumOfRows(rows, cols, transposed + b * rows, by_row, coefficients.data() + b * cols);
  }
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

}  // namespace isthmus
