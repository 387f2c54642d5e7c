#include "worker/methods/held_blocks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "spec/piece.h"

namespace isthmus {

absl::StatusOr<HeldBlocks> HeldBlocks::Make(const Grid* grid,
                                            const std::vector<TensorPart<const float>>& parts) {
  ISTHMUS_CHECK(grid != nullptr);
  HeldBlocks held;
  held.grid_ = grid;
  for (const TensorPart<const float>& part : parts) {
    ISTHMUS_ASSIGN_OR_RETURN(
        const BlockSpan blocks,
        BlocksOfPart(*grid, {part.tensor, part.first_element, part.data.size()}));
    const auto number = static_cast<uint32_t>(held.parts_.size());
    if (!part.data.empty())
      held.part_at_.emplace(std::pair(part.tensor, part.first_element), number);
    for (uint32_t b = blocks.first; b < blocks.end; ++b) {
      held.blocks_.push_back({b, number, grid->blocks()[b].first_element - part.first_element, 0});
    }
    held.parts_.push_back({part.tensor, part.first_element, part.data.size()});
  }
  std::sort(held.blocks_.begin(), held.blocks_.end(),
            [](const HeldBlock& a, const HeldBlock& b) { return a.block < b.block; });
  for (size_t i = 0; i < held.blocks_.size(); ++i) {
    const Block& block = grid->blocks()[held.blocks_[i].block];
    if (i > 0 && held.blocks_[i].block == held.blocks_[i - 1].block) {
      return absl::InvalidArgumentError(
          absl::StrCat("two parts hold ", grid->Describe(block.first_chunk), "; name it once"));
    }
    held.blocks_[i].first_slot = held.slots_;
    held.slots_ += block.chunks;
    if (held.ranges_.empty() || held.ranges_.back().second != block.first_chunk) {
      held.ranges_.emplace_back(block.first_chunk, block.first_chunk);
    }
    held.ranges_.back().second = block.first_chunk + block.chunks;
  }
  return held;
}

const HeldBlock* HeldBlocks::Find(uint32_t block) const {
  const auto found = std::lower_bound(blocks_.begin(), blocks_.end(), block,
                                      [](const HeldBlock& h, uint32_t b) { return h.block < b; });
  return found != blocks_.end() && found->block == block ? &*found : nullptr;
}

uint64_t HeldBlocks::RunsFrom(uint64_t chunk) const {
  const ChunkPlace first = grid_->Place(chunk);
  if (first.shape.rows != 1) return 1;
  const Block& block = grid_->blocks()[first.block];
  const uint64_t last = block.first_chunk + block.chunks - 1;
  // All chunks of a block but its last have one shape.
  const bool last_differs = !(grid_->Place(last).shape == first.shape);
  return std::max<uint64_t>(1, last - chunk + (last_differs ? 0 : 1));
}

template <typename T>
absl::StatusOr<std::vector<absl::Span<T>>> HeldBlocks::MatchParts(
    const std::vector<TensorPart<T>>& given) const {
  std::vector<absl::Span<T>> data(parts_.size());
  for (const TensorPart<T>& part : given) {
    const auto found = part_at_.find({part.tensor, part.first_element});
    if (found == part_at_.end() && part.data.empty()) continue;
    if (found == part_at_.end() || part.data.size() != parts_[found->second].elements ||
        !data[found->second].empty()) {
      const std::string name = part.tensor < grid_->tensors()
                                   ? grid_->tensor_name(part.tensor)
                                   : absl::StrCat("number ", part.tensor);
      return absl::InvalidArgumentError(
          absl::StrCat("a part of tensor '", name, "' has ", part.data.size(), " elements from ",
                       part.first_element, " on; give each part as it was named at Make, once"));
    }
    data[found->second] = part.data;
  }
  return data;
}

template <typename T>
absl::StatusOr<std::vector<absl::Span<T>>> HeldBlocks::MatchAllParts(
    const std::vector<TensorPart<T>>& given) const {
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<absl::Span<T>> data, MatchParts(given));
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (data[i].size() == parts_[i].elements) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the part of '", grid_->tensor_name(parts_[i].tensor), "' from element ",
                     parts_[i].first_element, " on is missing; all parts are needed at once"));
  }
  return data;
}

template absl::StatusOr<std::vector<absl::Span<const float>>> HeldBlocks::MatchParts(
    const std::vector<TensorPart<const float>>&) const;
template absl::StatusOr<std::vector<absl::Span<float>>> HeldBlocks::MatchAllParts(
    const std::vector<TensorPart<float>>&) const;

absl::StatusOr<std::vector<Components>> HeldBlocks::ReadUpdate(
    absl::Span<const std::string* const> update, int threads) const {
  ChunkRanges covered;
  std::vector<PieceView> wanted;
  v1::PayloadCodec layout = v1::PAYLOAD_CODEC_UNSPECIFIED;
  for (const std::string* bytes : update) {
    ISTHMUS_ASSIGN_OR_RETURN(const PieceView piece, OpenPiece(*grid_, *bytes));
    if (covered.chunks() > 0 && piece.codec != layout) {
      return absl::InvalidArgumentError(absl::StrCat("the update has pieces of layouts ", layout,
                                                     " and ", piece.codec, "; all have one"));
    }
    layout = piece.codec;
    if (!covered.Add(piece.first_chunk, piece.end_chunk)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the update has twice a chunk of ", piece.first_chunk, " to before ",
                       piece.end_chunk, " (", grid_->Describe(piece.first_chunk), ")"));
    }
    const bool overlaps = std::any_of(ranges_.begin(), ranges_.end(), [&](const auto& range) {
      return piece.first_chunk < range.second && range.first < piece.end_chunk;
    });
    if (overlaps) wanted.push_back(piece);
  }
  for (const auto& [begin, end] : ranges_) {
    if (covered.Contains(begin, end)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the update does not cover chunks ", begin, " to before ", end, " (from ",
                     grid_->Describe(begin), " on), which are held here; fetch it again"));
  }
  std::vector<Components> components(slots_);
  std::vector<absl::Status> read(wanted.size());
  ParallelFor(wanted.size(), threads, [&](size_t i) {
    read[i] = ForEachChunk(*grid_, wanted[i], [&](uint64_t chunk, const Components& merged) {
      const HeldBlock* held = Find(grid_->BlockOfChunk(chunk));
      if (held == nullptr) return absl::OkStatus();
      components[held->first_slot + (chunk - BlockOf(*held).first_chunk)] = merged;
      return absl::OkStatus();
    });
  });
  for (const absl::Status& status : read) ISTHMUS_RETURN_IF_ERROR(status);
  return components;
}

}  // namespace isthmus
