// The DCT-II basis and its transpose, expanded once per side from checked-in constants.
//
// The constants in dct_tables_*.inc are written by tools/make_dct_tables.py (run it from the root
// of the project to make them anew). They are rounded once from 50 digits, so the tables are the
// same on every machine and no library's cosine decides a bit of an update.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace isthmus {

// The transpose of DctBasis(n) (kernels/demo.h): row-major [frequency b][position j]. One row is
// one cosine, which is the order in which decoding reads it. Same lifetime and thread-safety.
absl::Span<const float> DctBasisTransposed(uint32_t n);

}  // namespace isthmus
