// Which rank holds which part of which tensor.
//
// A unit (embedding, one transformer block, head) is what forward and backward gather at once. Its
// blocks, tensor after tensor, are dealt to the ranks as contiguous runs of about equal size; cuts
// are at block boundaries, so a rank always holds whole tiles of the logical matrix. Ranks may get
// nothing (3 blocks on 8 ranks). In the padded form every rank's part has the same length, as
// all-gather and reduce-scatter want it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "spec/grid.h"

namespace isthmus {

// Elements [first_element, first_element + elements) of `tensor`, at `offset` of the rank's own
// part.
struct ShardSlice {
  uint32_t tensor = 0;
  uint64_t first_element = 0;
  uint64_t elements = 0;
  uint32_t first_block = 0;
  uint32_t end_block = 0;
  uint64_t offset = 0;
};

// One unit on all ranks.
struct UnitPlan {
  std::string name;
  std::vector<uint32_t> tensors;                // in order; flat form: one after the other
  uint64_t elements = 0;                        // of the flat form
  uint64_t padded_elements = 0;                 // of each rank's part
  std::vector<uint64_t> rank_elements;          // true length of each rank's part
  std::vector<uint64_t> rank_first_element;     // where each part begins in the flat form
  std::vector<std::vector<ShardSlice>> slices;  // [rank]
};

struct UnitTensors {
  std::string name;
  std::vector<uint32_t> tensors;  // numbers in the grid; every tensor is in exactly one unit
};

// INVALID_ARGUMENT if a tensor is in no unit or in two, or ranks is 0 or above kRanksMax.
absl::StatusOr<std::vector<UnitPlan>> MakeShardPlan(const Grid& grid,
                                                    const std::vector<UnitTensors>& units,
                                                    uint32_t ranks);

// The chunks of one rank over all units, ascending, disjoint, merged.
std::vector<std::pair<uint64_t, uint64_t>> RankChunkRanges(const Grid& grid,
                                                           const std::vector<UnitPlan>& plan,
                                                           uint32_t rank);

}  // namespace isthmus
