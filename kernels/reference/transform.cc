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

}  // namespace

void EncodeChunk(ChunkShape shape, const float* x, size_t stride, absl::Span<float> coefficients) {
  CheckShape(shape);
  ISTHMUS_CHECK(coefficients.size() == shape.elements());
  const uint32_t rows = shape.rows;
  const uint32_t cols = shape.cols;
  // Along the columns: by_row[j][e] = sum over l of x[j][l] * F_cols[l][e].
  float by_row[kChunkElementsMax];
  std::fill(by_row, by_row + shape.elements(), 0.0f);
  const float* basis = DctBasis(cols).data();
  for (uint32_t j = 0; j < rows; ++j) {
    for (uint32_t l = 0; l < cols; ++l) {
      Accumulate(cols, x[j * stride + l], basis + l * cols, by_row + j * cols);
    }
  }
  // Along the rows: c[b][e] = sum over j of F_rows[j][b] * by_row[j][e].
  std::fill(coefficients.begin(), coefficients.end(), 0.0f);
  basis = DctBasis(rows).data();
  for (uint32_t j = 0; j < rows; ++j) {
    for (uint32_t b = 0; b < rows; ++b) {
      Accumulate(cols, basis[j * rows + b], by_row + j * cols, coefficients.data() + b * cols);
    }
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
