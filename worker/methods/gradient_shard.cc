#include "worker/methods/gradient_shard.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "spec/piece.h"
#include "worker/methods/contribution_writer.h"

namespace isthmus {

absl::StatusOr<GradientShard> GradientShard::Make(
    const MethodOptions& options, const std::vector<TensorPart<const float>>& parts) {
  ISTHMUS_ASSIGN_OR_RETURN(MethodParts made, MakeMethodParts(options, parts));
  ISTHMUS_CHECK(options.codec.kind() == v1::CODEC_KIND_DENSE ||
                options.codec.kind() == v1::CODEC_KIND_NONE);
  return GradientShard(std::move(made.options), std::move(made.held), std::move(made.step));
}

absl::StatusOr<GradientShard::Values> GradientShard::CopyGradients(
    const std::vector<TensorPart<const float>>& gradients) const {
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<absl::Span<const float>> data,
                           held_->MatchParts(gradients));
  Values values;
  for (size_t i = 0; i < data.size(); ++i) {
    const HeldBlocks::Part& part = held_->parts()[i];
    for (size_t e = 0; e < data[i].size(); ++e) {
      if (std::isfinite(data[i][e])) continue;
      return NonFiniteGradient(grid().tensor_name(part.tensor), part.first_element + e, data[i][e]);
    }
    values.emplace_back(data[i].begin(), data[i].end());
    values.back().resize(part.elements);
  }
  return values;
}

void GradientShard::AppendBlock(const HeldBlock& held, const Values& values,
                                std::vector<Components>* components) const {
  const Block& block = held_->BlockOf(held);
  for (uint64_t c = 0; c < block.chunks; ++c) {
    const ChunkPlace place = grid().Place(block.first_chunk + c);
    const float* const first = values[held.part].data() + held_->OffsetInPart(held, place);
    Components* const sent = &(*components)[held.first_slot + c];
    for (uint32_t j = 0; j < place.shape.rows; ++j) {
      const float* const row = first + j * place.stride;
      sent->value.insert(sent->value.end(), row, row + place.shape.cols);
    }
    sent->index.resize(sent->value.size());
    for (uint32_t i = 0; i < sent->index.size(); ++i) sent->index[i] = i;
  }
}

absl::StatusOr<std::vector<std::string>> GradientShard::Encode(
    uint64_t round, float, const std::vector<TensorPart<const float>>& gradients) {
  ISTHMUS_RETURN_IF_ERROR(CheckMayEncode(round, pending_.count(round) > 0, pending_.size()));
  ISTHMUS_ASSIGN_OR_RETURN(Values values, CopyGradients(gradients));
  std::vector<Components> components(held_->slots());
  if (options_.codec.kind() == v1::CODEC_KIND_NONE) {
    pending_[round] = std::move(values);
  } else {
    const std::vector<HeldBlock>& blocks = held_->blocks();
    ParallelFor(blocks.size(), threads(),
                [&](size_t i) { AppendBlock(blocks[i], values, &components); });
  }
  return WriteComponents(*held_, ContributionLayout(options_.codec), options_.piece_bytes_max,
                         components);
}

void GradientShard::Settle(uint64_t round, bool included) {
  const auto found = pending_.find(round);
  if (found == pending_.end()) return;
  if (included) own_ = std::move(found->second);
  pending_.erase(found);
}

absl::Status GradientShard::Apply(const UpdateRates& rates,
                                  absl::Span<const std::string* const> update,
                                  const std::vector<TensorPart<float>>& parameters) {
  if (update.empty()) return absl::OkStatus();
  if (options_.codec.kind() == v1::CODEC_KIND_DENSE) return step_.Apply(rates, update, parameters);
  const std::optional<Values> own = std::exchange(own_, std::nullopt);
  return own.has_value() ? step_.ApplyOwn(rates, *own, parameters) : absl::OkStatus();
}

}  // namespace isthmus
