// Which blocks of the canonical grid a rank holds, and where they lie in its parts. What every
// method needs to go from parts to chunks and from an update's pieces to its own chunks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "spec/grid.h"
#include "worker/held_part.h"

namespace isthmus {

// One block held here. Chunks held are numbered through; the block's begin at `first_slot`.
struct HeldBlock {
  uint32_t block = 0;
  uint32_t part = 0;
  uint64_t offset = 0;  // of its first element in the part
  uint64_t first_slot = 0;
};

class HeldBlocks {
 public:
  struct Part {
    uint32_t tensor = 0;
    uint64_t first_element = 0;
    uint64_t elements = 0;
  };

  // `parts` names what is held; the data is not kept. No parts at all (more ranks than blocks) is
  // well. INVALID_ARGUMENT when a part is not whole blocks, or parts overlap. `grid` outlives it.
  static absl::StatusOr<HeldBlocks> Make(const Grid* grid,
                                         const std::vector<TensorPart<const float>>& parts);

  const Grid& grid() const { return *grid_; }
  const std::vector<Part>& parts() const { return parts_; }
  // Ascending by block.
  const std::vector<HeldBlock>& blocks() const { return blocks_; }
  // Chunks held: how many, and which, as ascending, disjoint, merged ranges.
  uint64_t slots() const { return slots_; }
  const std::vector<std::pair<uint64_t, uint64_t>>& ranges() const { return ranges_; }

  const Block& BlockOf(const HeldBlock& held) const { return grid_->blocks()[held.block]; }
  // The held block with this number, or null.
  const HeldBlock* Find(uint32_t block) const;
  // Where a chunk's first element lies within the part.
  uint64_t OffsetInPart(const HeldBlock& held, const ChunkPlace& place) const {
    return held.offset + place.first_element - BlockOf(held).first_element;
  }

  // How many chunks from `chunk` on, of its block, are runs of one length that follow each other
  // without a gap, so that the kernels take them in one call; 1 where it is a tile.
  uint64_t RunsFrom(uint64_t chunk) const;

  // The data of each part of Make, in that order; empty for one that is not given.
  // INVALID_ARGUMENT: a part that was not named at Make, or that has another size there.
  template <typename T>
  absl::StatusOr<std::vector<absl::Span<T>>> MatchParts(
      const std::vector<TensorPart<T>>& given) const;
  // The same, and every part must be there.
  template <typename T>
  absl::StatusOr<std::vector<absl::Span<T>>> MatchAllParts(
      const std::vector<TensorPart<T>>& given) const;

  // The components of every chunk held (or its values alone: ChunkReader), by slot, from an update
  // whose pieces together cover ranges() (and may cover more). INVALID_ARGUMENT: a damaged piece, a
  // chunk that is missing or there twice, pieces of two layouts.
  absl::StatusOr<std::vector<Components>> ReadUpdate(absl::Span<const std::string* const> update,
                                                     int threads) const;

 private:
  HeldBlocks() = default;

  const Grid* grid_ = nullptr;
  std::vector<Part> parts_;
  std::map<std::pair<uint32_t, uint64_t>, size_t> part_at_;  // (tensor, first element)
  std::vector<HeldBlock> blocks_;
  uint64_t slots_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> ranges_;
};

}  // namespace isthmus
