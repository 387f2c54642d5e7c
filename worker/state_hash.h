// Hashing the parts of a state that a process holds (spec/state_hash.h: what is hashed). Each rank
// hashes the blocks that it holds; ranks gather the hashes and combine them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "spec/grid.h"
#include "spec/state_hash.h"
#include "worker/held_part.h"

namespace isthmus {

// The hashes of the blocks of one part, 32 bytes each, in block order. They stand at
// BlocksOfPart().first * 32 of the whole model's hashes. INVALID_ARGUMENT: see BlocksOfPart.
absl::StatusOr<std::string> HashBlocks(const Grid& grid, const TensorPart<const float>& part,
                                       int threads);

// Of a section that is all in one process. INVALID_ARGUMENT when the parts do not cover each block
// once.
absl::StatusOr<std::string> SectionSha256(const Grid& grid,
                                          const std::vector<TensorPart<const float>>& parts,
                                          uint64_t step, int threads);

}  // namespace isthmus
