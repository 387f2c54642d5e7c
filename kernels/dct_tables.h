// The DCT-II basis and its transpose, expanded once per side from checked-in constants.
//
// The constants in dct_tables_*.inc are written by tools/make_dct_tables.py (run it from the root
// of the project to make them anew). They are rounded once from 50 digits, so the tables are the
// same on every machine and no library's cosine decides a bit of an update.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace isthmus {

// The transpose of DctBasis(n) (kernels/demo.h): row-major [frequency b][position j]. One row is
// one cosine, which is the order in which decoding reads it. Same lifetime and thread-safety.
absl::Span<const float> DctBasisTransposed(uint32_t n);

// Rows of the padded tables, and of tiles in working memory, are a multiple of so many elements
// long: the widest vector of any target.
inline constexpr size_t kDctPadding = 16;

// `n` rounded up to a multiple of kDctPadding.
constexpr size_t PaddedSide(size_t n) { return (n + kDctPadding - 1) / kDctPadding * kDctPadding; }

// The same two tables with rows of PaddedSide(n) elements, zeros behind the first n, that begin on
// a multiple of 64 bytes.
struct PaddedDctBasis {
  const float* by_position;   // [position j][frequency b]
  const float* by_frequency;  // [frequency b][position j]
};
PaddedDctBasis DctBasisPadded(uint32_t n);

}  // namespace isthmus
