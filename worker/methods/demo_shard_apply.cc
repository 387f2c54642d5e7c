// The update's way into the parameters: the same bits on every node, whatever it holds.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "kernels/demo.h"
#include "spec/piece.h"
#include "worker/methods/demo_shard.h"

namespace isthmus {
namespace {

absl::Status CheckRates(float eta, float weight_decay) {
  if (eta >= 0.0f && std::isfinite(eta) && weight_decay >= 0.0f && std::isfinite(weight_decay)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("the learning rate is ", eta,
                                                 " and the weight decay ", weight_decay,
                                                 "; give finite numbers, 0 or more"));
}

}  // namespace

absl::StatusOr<std::vector<Components>> DemoShard::ReadUpdate(
    absl::Span<const std::string* const> update) const {
  const Grid& grid = *options_.grid;
  ChunkRanges covered;
  std::vector<PieceView> wanted;
  for (const std::string* bytes : update) {
    ISTHMUS_ASSIGN_OR_RETURN(const PieceView piece, OpenPiece(grid, *bytes));
    if (!covered.Add(piece.first_chunk, piece.end_chunk)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the update has twice a chunk of ", piece.first_chunk, " to before ",
                       piece.end_chunk, " (", grid.Describe(piece.first_chunk), ")"));
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
                     grid.Describe(begin), " on), which are held here; fetch it again"));
  }
  std::vector<Components> components(slots_);
  std::vector<absl::Status> read(wanted.size());
  ParallelFor(wanted.size(), options_.threads, [&](size_t i) {
    read[i] = ForEachChunk(grid, wanted[i], [&](uint64_t chunk, const Components& merged) {
      const uint32_t block = grid.BlockOfChunk(chunk);
      const auto held =
          std::lower_bound(held_.begin(), held_.end(), block,
                           [](const HeldBlock& h, uint32_t b) { return h.block < b; });
      if (held != held_.end() && held->block == block) {
        components[held->first_slot + (chunk - grid.blocks()[block].first_chunk)] = merged;
      }
      return absl::OkStatus();
    });
  });
  for (const absl::Status& status : read) ISTHMUS_RETURN_IF_ERROR(status);
  return components;
}

void DemoShard::ApplyBlock(const HeldBlock& held, float eta, float weight_decay,
                           const std::vector<Components>& components,
                           absl::Span<float> data) const {
  const Grid& grid = *options_.grid;
  const Block& block = grid.blocks()[held.block];
  if (weight_decay != 0.0f) {
    DecayInPlace(DecayFactor(eta, weight_decay), data.subspan(held.offset, block.elements));
  }
  std::vector<float> u;
  for (uint64_t c = 0; c < block.chunks; ++c) {
    const ChunkPlace place = grid.Place(block.first_chunk + c);
    u.resize(place.shape.elements());
    DecodeComponents(place.shape, components[held.first_slot + c], absl::MakeSpan(u));
    if (options_.codec.sign()) SignInPlace(absl::MakeSpan(u));
    const uint64_t first = OffsetInPart(held, place);
    for (uint32_t j = 0; j < place.shape.rows; ++j) {
      SgdStep(eta, absl::MakeConstSpan(u).subspan(j * place.shape.cols, place.shape.cols),
              data.subspan(first + j * place.stride, place.shape.cols));
    }
  }
}

absl::Status DemoShard::Apply(float eta, float weight_decay,
                              absl::Span<const std::string* const> update,
                              const std::vector<TensorPart<float>>& parameters) {
  ISTHMUS_RETURN_IF_ERROR(CheckRates(eta, weight_decay));
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<absl::Span<float>> data, MatchParts(parameters));
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (data[i].size() == parts_[i].residual.size()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the part of '", options_.grid->tensor_name(parts_[i].tensor), "' from element ",
        parts_[i].first_element, " on is missing; an update applies to all parts at once"));
  }
  if (update.empty()) return absl::OkStatus();  // void: the step passes and p stays
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<Components> components, ReadUpdate(update));
  ParallelFor(held_.size(), options_.threads, [&](size_t i) {
    ApplyBlock(held_[i], eta, weight_decay, components, data[held_[i].part]);
  });
  return absl::OkStatus();
}

}  // namespace isthmus
