#include "worker/methods/demo_shard.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "kernels/demo.h"
#include "spec/piece.h"
#include "spec/run_spec.h"

namespace isthmus {
namespace {

// Every value finite and at most kMomentumMax; also false for NaN.
bool IsAllowed(float value) { return std::abs(value) <= kMomentumMax; }

absl::Status RefuseElement(const std::string& tensor, uint64_t element, float gradient) {
  if (!std::isfinite(gradient)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the gradient of '", tensor, "' is ", gradient, " at element ", element,
                     "; only finite gradients are encoded, abstain from this round"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the gradient of '", tensor, "' is ", gradient, " at element ", element,
      "; it brings the momentum above the limit, ", kMomentumMax, ", abstain from this round"));
}

absl::Status CheckRates(float eta, float weight_decay) {
  if (eta >= 0.0f && std::isfinite(eta) && weight_decay >= 0.0f && std::isfinite(weight_decay)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("the learning rate is ", eta,
                                                 " and the weight decay ", weight_decay,
                                                 "; give finite numbers, 0 or more"));
}

}  // namespace

absl::StatusOr<DemoShard> DemoShard::Make(const DemoShardOptions& options,
                                          const std::vector<TensorPart<const float>>& parts) {
  ISTHMUS_CHECK(options.grid != nullptr);
  ISTHMUS_RETURN_IF_ERROR(CheckCodecSpec(options.codec));
  const Grid& grid = *options.grid;
  DemoShard shard;
  shard.options_ = options;
  if (options.piece_bytes_max == 0) shard.options_.piece_bytes_max = kPieceBytesMax;
  if (options.piece_bytes_max > kPieceBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("piece_bytes_max is ", options.piece_bytes_max,
                                                   "; give at most ", kPieceBytesMax));
  }
  for (const TensorPart<const float>& part : parts) {
    ISTHMUS_ASSIGN_OR_RETURN(
        const BlockSpan blocks,
        BlocksOfPart(grid, {part.tensor, part.first_element, part.data.size()}));
    const auto number = static_cast<uint32_t>(shard.parts_.size());
    if (!part.data.empty())
      shard.part_at_.emplace(std::pair(part.tensor, part.first_element), number);
    for (uint32_t b = blocks.first; b < blocks.end; ++b) {
      shard.held_.push_back({b, number, grid.blocks()[b].first_element - part.first_element, 0});
    }
    shard.parts_.push_back({part.tensor, part.first_element, std::vector<float>(part.data.size())});
  }
  std::sort(shard.held_.begin(), shard.held_.end(),
            [](const HeldBlock& a, const HeldBlock& b) { return a.block < b.block; });
  for (size_t i = 0; i < shard.held_.size(); ++i) {
    const Block& block = grid.blocks()[shard.held_[i].block];
    if (i > 0 && shard.held_[i].block == shard.held_[i - 1].block) {
      return absl::InvalidArgumentError(
          absl::StrCat("two parts hold ", grid.Describe(block.first_chunk), "; name it once"));
    }
    shard.held_[i].first_slot = shard.slots_;
    shard.slots_ += block.chunks;
    if (shard.ranges_.empty() || shard.ranges_.back().second != block.first_chunk) {
      shard.ranges_.emplace_back(block.first_chunk, block.first_chunk);
    }
    shard.ranges_.back().second = block.first_chunk + block.chunks;
  }
  return shard;
}

template <typename T>
absl::StatusOr<std::vector<absl::Span<T>>> DemoShard::MatchParts(
    const std::vector<TensorPart<T>>& given) const {
  std::vector<absl::Span<T>> data(parts_.size());
  for (const TensorPart<T>& part : given) {
    const auto found = part_at_.find({part.tensor, part.first_element});
    if (found == part_at_.end() && part.data.empty()) continue;
    if (found == part_at_.end() || part.data.size() != parts_[found->second].residual.size() ||
        !data[found->second].empty()) {
      const std::string name = part.tensor < options_.grid->tensors()
                                   ? options_.grid->tensor_name(part.tensor)
                                   : absl::StrCat("number ", part.tensor);
      return absl::InvalidArgumentError(
          absl::StrCat("a part of tensor '", name, "' has ", part.data.size(), " elements from ",
                       part.first_element, " on; give each part as it was named at Make, once"));
    }
    data[found->second] = part.data;
  }
  return data;
}

template absl::StatusOr<std::vector<absl::Span<const float>>> DemoShard::MatchParts(
    const std::vector<TensorPart<const float>>&) const;
template absl::StatusOr<std::vector<absl::Span<float>>> DemoShard::MatchParts(
    const std::vector<TensorPart<float>>&) const;

const DemoShard::HeldBlock& DemoShard::HeldBlockOf(uint32_t block) const {
  const auto found = std::lower_bound(held_.begin(), held_.end(), block,
                                      [](const HeldBlock& h, uint32_t b) { return h.block < b; });
  ISTHMUS_CHECK(found != held_.end() && found->block == block);
  return *found;
}

uint64_t DemoShard::OffsetInPart(const HeldBlock& held, const ChunkPlace& place) const {
  return held.offset + place.first_element - options_.grid->blocks()[held.block].first_element;
}

absl::Status DemoShard::CheckGradients(float eta,
                                       const std::vector<absl::Span<const float>>& data) const {
  if (!(eta >= 0.0f && std::isfinite(eta))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the learning rate is ", eta, "; give a finite number, 0 or more"));
  }
  const float beta = options_.codec.beta();
  std::vector<absl::Status> found(held_.size());
  ParallelFor(held_.size(), options_.threads, [&](size_t i) {
    const HeldBlock& held = held_[i];
    const absl::Span<const float> g = data[held.part];
    if (g.empty()) return;
    const Part& part = parts_[held.part];
    const uint64_t end = held.offset + options_.grid->blocks()[held.block].elements;
    for (uint64_t e = held.offset; e < end; ++e) {
      // With eta 0 an infinite gradient makes a NaN here, so one test finds both.
      const float step = eta * g[e];
      if (IsAllowed(beta * part.residual[e] + step)) continue;
      found[i] =
          RefuseElement(options_.grid->tensor_name(part.tensor), part.first_element + e, g[e]);
      return;
    }
  });
  for (const absl::Status& status : found) ISTHMUS_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

void DemoShard::EncodeBlock(const HeldBlock& held, float eta, absl::Span<const float> gradient,
                            std::vector<Components>* components) {
  const Grid& grid = *options_.grid;
  const Block& block = grid.blocks()[held.block];
  const absl::Span<float> part = absl::MakeSpan(parts_[held.part].residual);
  // A part without a gradient gets zeros, not a path of its own, so that the bits are the same.
  const std::vector<float> zeros(gradient.empty() ? block.elements : 0);
  UpdateMomentum(options_.codec.beta(), eta,
                 gradient.empty() ? absl::Span<const float>(zeros)
                                  : gradient.subspan(held.offset, block.elements),
                 part.subspan(held.offset, block.elements));
  std::vector<float> scratch;
  for (uint64_t c = 0; c < block.chunks; ++c) {
    const ChunkPlace place = grid.Place(block.first_chunk + c);
    float* const d = part.data() + OffsetInPart(held, place);
    Components* const sent = &(*components)[held.first_slot + c];
    scratch.resize(place.shape.elements());
    EncodeChunk(place.shape, d, place.stride, absl::MakeSpan(scratch));
    SelectTopK(scratch, place.k, sent);
    DecodeComponents(place.shape, *sent, absl::MakeSpan(scratch));
    AddScaledChunk(place.shape, -options_.codec.alpha(), scratch, d, place.stride);
  }
}

absl::StatusOr<std::vector<std::string>> DemoShard::Encode(
    uint64_t round, float eta, const std::vector<TensorPart<const float>>& gradients) {
  if (pending_.count(round) > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("round ", round, " is encoded already; settle it before it is encoded again"));
  }
  if (pending_.size() >= kPendingRoundsMax) {
    return absl::ResourceExhaustedError(absl::StrCat(pending_.size(),
                                                     " rounds are encoded and not settled; the "
                                                     "limit is ",
                                                     kPendingRoundsMax, ", settle the oldest"));
  }
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<absl::Span<const float>> data, MatchParts(gradients));
  ISTHMUS_RETURN_IF_ERROR(CheckGradients(eta, data));

  for (auto& [_, older] : pending_) older.decay *= options_.codec.beta();
  std::vector<Components> components(slots_);
  ParallelFor(held_.size(), options_.threads,
              [&](size_t i) { EncodeBlock(held_[i], eta, data[held_[i].part], &components); });
  PieceWriter writer(options_.grid, v1::PAYLOAD_CODEC_TOPK_F32, options_.piece_bytes_max);
  for (const HeldBlock& held : held_) {
    const Block& block = options_.grid->blocks()[held.block];
    for (uint64_t c = 0; c < block.chunks; ++c) {
      writer.Append(block.first_chunk + c, components[held.first_slot + c]);
    }
  }
  Pending& reserved = pending_[round];
  reserved.pieces = writer.Finish();
  return reserved.pieces;
}

void DemoShard::Settle(uint64_t round, bool included) {
  const auto found = pending_.find(round);
  if (found == pending_.end()) return;
  if (!included) GiveBack(found->second);
  pending_.erase(found);
}

void DemoShard::GiveBack(const Pending& pending) {
  const float scale = pending.decay * options_.codec.alpha();
  ParallelFor(pending.pieces.size(), options_.threads, [&](size_t i) {
    const absl::StatusOr<PieceView> piece = OpenPiece(*options_.grid, pending.pieces[i]);
    ISTHMUS_CHECK(piece.ok());  // our own bytes
    std::vector<float> scratch;
    const absl::Status status =
        ForEachChunk(*options_.grid, *piece, [&](uint64_t chunk, const Components& sent) {
          const ChunkPlace place = options_.grid->Place(chunk);
          const HeldBlock& held = HeldBlockOf(place.block);
          scratch.resize(place.shape.elements());
          DecodeComponents(place.shape, sent, absl::MakeSpan(scratch));
          AddScaledChunk(place.shape, scale, scratch,
                         parts_[held.part].residual.data() + OffsetInPart(held, place),
                         place.stride);
          return absl::OkStatus();
        });
    ISTHMUS_CHECK(status.ok());
  });
}

// From here on the update's way into the parameters: the same bits on every node, whatever it
// holds.

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
