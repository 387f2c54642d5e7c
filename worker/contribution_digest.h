// The digest of a contribution whose pieces lie on several ranks. It is SHA-256 over the SHA-256 of
// the blocks (spec/piece.h PayloadDigest), so each rank hashes its own blocks and they join them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "spec/grid.h"

namespace isthmus {

// 32 bytes for each block of the grid, in order; zeros where the pieces do not hold the block.
// INVALID_ARGUMENT: a damaged piece, or one that holds a part of a block.
absl::StatusOr<std::string> BlockHashes(const Grid& grid, const std::vector<std::string>& pieces);

// Of the hashes of all blocks: the digest.
std::string DigestOfBlocks(const std::string& block_hashes);

}  // namespace isthmus
