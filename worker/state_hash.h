// SHA-256 of the replicated state: what must be equal on all nodes at a round. A function of the
// parameters and the step alone; shards and ranks do not change it.
//
//   root = SHA-256( SHA-256(block 0) ... SHA-256(block n-1), step as 8 bytes little endian )
//
// where a block's bytes are its float32 parameters, little endian, in row-major order. Each rank
// hashes the blocks that it holds; ranks gather the hashes and combine them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "spec/grid.h"
#include "worker/held_part.h"

namespace isthmus {

// The hashes of the blocks of one part, 32 bytes each, in block order. They stand at
// BlocksOfPart().first * 32 of the whole model's hashes. INVALID_ARGUMENT: see BlocksOfPart.
absl::StatusOr<std::string> HashBlocks(const Grid& grid, const TensorPart<const float>& part,
                                       int threads);

// The root. `block_hashes`: those of all blocks of the grid in order, 32 bytes each. 32 bytes.
std::string StateRoot(const Grid& grid, absl::string_view block_hashes, uint64_t step);

// The root of a model that is all in one process. INVALID_ARGUMENT when the parts do not cover each
// block once.
absl::StatusOr<std::string> StateSha256(const Grid& grid,
                                        const std::vector<TensorPart<const float>>& parts,
                                        uint64_t step, int threads);

}  // namespace isthmus
