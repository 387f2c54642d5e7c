// Pieces cut down to some chunks: what one rank keeps of pieces that ranks of another cut made.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "spec/grid.h"

namespace isthmus {

// Of each piece what lies in `ranges` (half-open chunk ranges; ascending, disjoint, merged), in the
// order of chunks. A piece that lies in them as a whole stays as it is, byte for byte; the coded
// bytes of chunks never change. INVALID_ARGUMENT: a damaged piece.
absl::StatusOr<std::vector<std::string>> CutPieces(
    const Grid& grid, const std::vector<std::pair<uint64_t, uint64_t>>& ranges,
    std::vector<std::string> pieces);

}  // namespace isthmus
