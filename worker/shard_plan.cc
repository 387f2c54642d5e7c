#include "worker/shard_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

absl::Status CheckUnits(const Grid& grid, const std::vector<UnitTensors>& units) {
  std::vector<const UnitTensors*> unit_of(grid.tensors(), nullptr);
  for (const UnitTensors& unit : units) {
    for (const uint32_t tensor : unit.tensors) {
      if (tensor >= grid.tensors()) {
        return absl::InvalidArgumentError(absl::StrCat("unit '", unit.name,
                                                       "' names tensor number ", tensor,
                                                       "; the model has ", grid.tensors()));
      }
      if (unit_of[tensor] != nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor '", grid.tensor_name(tensor), "' is in unit '",
                         unit_of[tensor]->name, "' and in unit '", unit.name, "'; name it once"));
      }
      unit_of[tensor] = &unit;
    }
  }
  for (uint32_t tensor = 0; tensor < grid.tensors(); ++tensor) {
    if (unit_of[tensor] != nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", grid.tensor_name(tensor), "' is in no unit; name it in one"));
  }
  return absl::OkStatus();
}

// How many parts of at most `most` elements the blocks take when each is filled before the next.
uint64_t PartsNeeded(const std::vector<uint64_t>& sizes, uint64_t most) {
  uint64_t parts = 0;
  uint64_t room = 0;
  for (const uint64_t size : sizes) {
    if (size > room) {
      ++parts;
      room = most;
    }
    room -= size;
  }
  return parts;
}

// The least length of the longest part when the blocks are dealt to `ranks` contiguous runs. This
// is what a gather moves and what a rank stores.
uint64_t LeastLongestPart(const std::vector<uint64_t>& sizes, uint32_t ranks) {
  uint64_t low = 0;
  uint64_t high = 0;
  for (const uint64_t size : sizes) {
    low = std::max(low, size);
    high += size;
  }
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (PartsNeeded(sizes, middle) <= ranks) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

UnitPlan PlanUnit(const Grid& grid, const UnitTensors& unit, uint32_t ranks) {
  UnitPlan plan;
  plan.name = unit.name;
  plan.tensors = unit.tensors;
  plan.rank_elements.resize(ranks);
  plan.rank_first_element.resize(ranks);
  plan.slices.resize(ranks);
  std::vector<uint64_t> sizes;
  for (const uint32_t tensor : unit.tensors) {
    for (uint32_t b = grid.tensor_first_block(tensor); b < grid.tensor_end_block(tensor); ++b) {
      sizes.push_back(grid.blocks()[b].elements);
      plan.elements += sizes.back();
    }
  }
  plan.padded_elements = LeastLongestPart(sizes, ranks);

  uint32_t rank = 0;
  for (const uint32_t tensor : unit.tensors) {
    for (uint32_t b = grid.tensor_first_block(tensor); b < grid.tensor_end_block(tensor); ++b) {
      const Block& block = grid.blocks()[b];
      if (plan.rank_elements[rank] + block.elements > plan.padded_elements) ++rank;
      ISTHMUS_CHECK(rank < ranks);
      std::vector<ShardSlice>& slices = plan.slices[rank];
      if (slices.empty() || slices.back().tensor != tensor) {
        slices.push_back({tensor, block.first_element, 0, b, b, plan.rank_elements[rank]});
      }
      slices.back().elements += block.elements;
      slices.back().end_block = b + 1;
      plan.rank_elements[rank] += block.elements;
    }
  }
  for (uint32_t r = 1; r < ranks; ++r) {
    plan.rank_first_element[r] = plan.rank_first_element[r - 1] + plan.rank_elements[r - 1];
  }
  return plan;
}

}  // namespace

absl::StatusOr<std::vector<UnitPlan>> MakeShardPlan(const Grid& grid,
                                                    const std::vector<UnitTensors>& units,
                                                    uint32_t ranks) {
  if (ranks == 0 || ranks > kRanksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of ranks is ", ranks, "; give 1 to ", kRanksMax));
  }
  ISTHMUS_RETURN_IF_ERROR(CheckUnits(grid, units));
  std::vector<UnitPlan> plan;
  for (const UnitTensors& unit : units) plan.push_back(PlanUnit(grid, unit, ranks));
  return plan;
}

std::vector<std::pair<uint64_t, uint64_t>> RankChunkRanges(const Grid& grid,
                                                           const std::vector<UnitPlan>& plan,
                                                           uint32_t rank) {
  std::vector<std::pair<uint64_t, uint64_t>> pieces;
  for (const UnitPlan& unit : plan) {
    for (const ShardSlice& slice : unit.slices[rank]) {
      const Block& last = grid.blocks()[slice.end_block - 1];
      pieces.emplace_back(grid.blocks()[slice.first_block].first_chunk,
                          last.first_chunk + last.chunks);
    }
  }
  std::sort(pieces.begin(), pieces.end());
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [begin, end] : pieces) {
    if (!ranges.empty() && ranges.back().second == begin) {
      ranges.back().second = end;
    } else {
      ranges.emplace_back(begin, end);
    }
  }
  return ranges;
}

}  // namespace isthmus
