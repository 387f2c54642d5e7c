#include "worker/methods/demo_shard.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "kernels/component_code.h"
#include "kernels/demo.h"
#include "spec/piece.h"
#include "spec/rows.h"
#include "spec/stages.h"
#include "worker/methods/contribution_writer.h"
#include "worker/methods/thread_scratch.h"

namespace isthmus {
namespace {

// Every value finite and at most kMomentumMax; also false for NaN.
bool IsAllowed(float value) { return std::abs(value) <= kMomentumMax; }

absl::Status RefuseElement(const std::string& tensor, uint64_t element, float gradient) {
  if (!std::isfinite(gradient)) return NonFiniteGradient(tensor, element, gradient);
  return absl::InvalidArgumentError(absl::StrCat(
      "the gradient of '", tensor, "' is ", gradient, " at element ", element,
      "; it brings the momentum above the limit, ", kMomentumMax, ", abstain from this round"));
}

// ReserveChunk (kernels/demo.h), whose values are rounded before they leave the momentum.
void ReserveRounded(const ChunkPlace& place, const ReserveRule& rule, ValueRounder round,
                    const float* g, float* d, Components* sent) {
  const ChunkShape shape = place.shape;
  const std::vector<float> zeros(g == nullptr ? shape.cols : 0);
  for (uint32_t j = 0; j < shape.rows; ++j) {
    const float* const row = g == nullptr ? zeros.data() : g + j * place.stride;
    UpdateMomentum(rule.beta, rule.eta, absl::MakeConstSpan(row, shape.cols),
                   absl::MakeSpan(d + j * place.stride, shape.cols));
  }
  std::vector<float> x(shape.elements());
  EncodeChunk(shape, d, place.stride, absl::MakeSpan(x));
  SelectTopK(x, rule.k, sent);
  round(absl::MakeSpan(sent->value));
  DecodeComponents(shape, *sent, absl::MakeSpan(x));
  AddScaledChunk(shape, -rule.alpha, x, d, place.stride);
}

}  // namespace

absl::StatusOr<DemoShard> DemoShard::Make(const MethodOptions& options,
                                          const std::vector<TensorPart<const float>>& parts) {
  ISTHMUS_ASSIGN_OR_RETURN(MethodParts made, MakeMethodParts(options, parts));
  DemoShard shard(std::move(made.options), std::move(made.held), std::move(made.step));
  shard.MakeResidual();
  return shard;
}

void DemoShard::MakeResidual() {
  for (const HeldBlocks::Part& part : held_->parts()) residual_.emplace_back(part.elements);
}

absl::Status DemoShard::CheckGradients(float eta,
                                       const std::vector<absl::Span<const float>>& data) const {
  if (!(eta >= 0.0f && std::isfinite(eta))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the learning rate is ", eta, "; give a finite number, 0 or more"));
  }
  const float beta = options_.codec.beta();
  const std::vector<HeldBlock>& blocks = held_->blocks();
  std::vector<absl::Status> found(blocks.size());
  ParallelFor(blocks.size(), threads(), [&](size_t i) {
    const HeldBlock& held = blocks[i];
    const absl::Span<const float> g = data[held.part];
    if (g.empty()) return;
    const std::vector<float>& d = residual_[held.part];
    const uint64_t end = held.offset + held_->BlockOf(held).elements;
    // Without a branch inside, so that the usual case takes no more than the memory's time. With
    // eta 0 an infinite gradient makes a NaN here, so one test finds both.
    bool allowed = true;
    for (uint64_t e = held.offset; e < end; ++e) allowed &= IsAllowed(beta * d[e] + eta * g[e]);
    if (allowed) return;
    uint64_t e = held.offset;
    while (IsAllowed(beta * d[e] + eta * g[e])) ++e;
    const HeldBlocks::Part& part = held_->parts()[held.part];
    found[i] = RefuseElement(grid().tensor_name(part.tensor), part.first_element + e, g[e]);
  });
  for (const absl::Status& status : found) ISTHMUS_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

void DemoShard::EncodeBlock(const HeldBlock& held, float eta, absl::Span<const float> gradient,
                            std::vector<Components>* components) {
  const Block& block = held_->BlockOf(held);
  ReserveRule rule;
  rule.beta = options_.codec.beta();
  rule.eta = eta;
  rule.alpha = options_.codec.alpha();
  const ValueRounder round = RounderOf(NumberSettingsOf(options_.codec.numbers()).format);
  for (uint64_t c = 0, runs = 1; c < block.chunks; c += runs) {
    const ChunkPlace place = grid().Place(block.first_chunk + c);
    runs = held_->RunsFrom(block.first_chunk + c);
    const uint64_t first = held_->OffsetInPart(held, place);
    const float* const g = gradient.empty() ? nullptr : gradient.data() + first;
    float* const d = residual_[held.part].data() + first;
    Components* const sent = &(*components)[held.first_slot + c];
    rule.k = place.k;
    if (round != nullptr) {
      runs = 1;
      ReserveRounded(place, rule, round, g, d, sent);
    } else if (runs > 1) {
      ReserveRuns(place.shape.cols, runs, rule, g, d, ThreadScratch(), sent);
    } else {
      ReserveChunk(place.shape, rule, g, place.stride, d, place.stride, ThreadScratch(), sent);
    }
  }
}

DemoShard::Pending DemoShard::EncodeBlocks(uint64_t, float eta,
                                           const std::vector<absl::Span<const float>>& data) {
  const std::vector<HeldBlock>& blocks = held_->blocks();
  std::vector<Components> components(held_->slots());
  ParallelFor(blocks.size(), threads(),
              [&](size_t i) { EncodeBlock(blocks[i], eta, data[blocks[i].part], &components); });
  const auto write = [&](v1::PayloadCodec layout) {
    return WriteComponents(*held_, layout, options_.piece_bytes_max, components);
  };
  Pending sent;
  sent.pieces = write(ContributionLayout(options_.codec));
  if (options_.codec.numbers().format() == v1::NUMBER_FORMAT_SIGN1) {
    sent.taken = write(v1::PAYLOAD_CODEC_MERGED);
  }
  return sent;
}

DemoShard::Decoder DemoShard::DecoderOf(uint64_t) const {
  return [](const ChunkPlace& place, const Components& sent, absl::Span<float> x) {
    DecodeComponents(place.shape, sent, x);
  };
}

absl::StatusOr<std::vector<std::string>> DemoShard::Encode(
    uint64_t round, float lr, const std::vector<TensorPart<const float>>& gradients) {
  ISTHMUS_RETURN_IF_ERROR(CheckMayEncode(round, pending_.count(round) > 0, pending_.size()));
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<absl::Span<const float>> data,
                           held_->MatchParts(gradients));
  // What the gradient weighs: codec.lr_in_momentum.
  const float eta = LrInMomentum(options_.codec) ? lr : 1.0f;
  ISTHMUS_RETURN_IF_ERROR(CheckGradients(eta, data));

  for (auto& [_, older] : pending_) older.decay *= options_.codec.beta();
  Pending& reserved = pending_[round];
  reserved = EncodeBlocks(round, eta, data);
  reserved.lr = lr;
  return reserved.pieces;
}

void DemoShard::Settle(uint64_t round, bool included) {
  const auto found = pending_.find(round);
  if (found == pending_.end()) return;
  if (!included) GiveBack(round, found->second);
  pending_.erase(found);
}

void DemoShard::ForEachChunkOf(uint64_t round, const std::vector<std::string>& pieces,
                               const UseChunk& use) const {
  const Decoder decode = DecoderOf(round);
  ParallelFor(pieces.size(), threads(), [&](size_t i) {
    const absl::StatusOr<PieceView> piece = OpenPiece(grid(), pieces[i]);
    ISTHMUS_CHECK(piece.ok());  // our own bytes
    std::vector<float> scratch;
    const absl::Status status =
        ForEachChunk(grid(), *piece, [&](uint64_t chunk, const Components& sent) {
          const ChunkPlace place = grid().Place(chunk);
          const HeldBlock* held = held_->Find(place.block);
          ISTHMUS_CHECK(held != nullptr);
          scratch.resize(place.shape.elements());
          decode(place, sent, absl::MakeSpan(scratch));
          use(place, held->part, held_->OffsetInPart(*held, place), absl::MakeSpan(scratch));
          return absl::OkStatus();
        });
    ISTHMUS_CHECK(status.ok());
  });
}

void DemoShard::GiveBack(uint64_t round, const Pending& pending) {
  const float scale = pending.decay * options_.codec.alpha();
  ForEachChunkOf(
      round, pending.taken.empty() ? pending.pieces : pending.taken,
      [&](const ChunkPlace& place, uint32_t part, uint64_t offset, absl::Span<float> values) {
        AddScaledChunk(place.shape, scale, values, residual_[part].data() + offset, place.stride);
      });
}

absl::Status DemoShard::LookAhead(float look,
                                  const std::vector<TensorPart<float>>& parameters) const {
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<absl::Span<float>> data,
                           held_->MatchAllParts(parameters));
  for (const auto& [round, pending] : pending_) {
    const float scale = -(look * pending.lr);
    ForEachChunkOf(
        round, pending.pieces,
        [&](const ChunkPlace& place, uint32_t part, uint64_t offset, absl::Span<float> u) {
          if (options_.codec.sign()) SignInPlace(u);
          AddScaledChunk(place.shape, scale, u, data[part].data() + offset, place.stride);
        });
  }
  return absl::OkStatus();
}

const std::vector<std::string>* DemoShard::Sent(uint64_t round) const {
  const auto found = pending_.find(round);
  return found == pending_.end() ? nullptr : &found->second.pieces;
}

MethodState DemoShard::State() const {
  MethodState state = Method::State();
  state.residual = residual_;
  for (const auto& [round, pending] : pending_) {
    state.pending.push_back({round, pending.decay, pending.pieces, pending.lr, pending.taken});
  }
  return state;
}

absl::Status DemoShard::SetState(MethodState state) {
  ISTHMUS_RETURN_IF_ERROR(CheckSameSizes("residual", residual_, state.residual));
  if (state.pending.size() > kPendingRoundsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a state has ", state.pending.size(), " pending rounds; the limit is ", kPendingRoundsMax));
  }
  std::map<uint64_t, Pending> pending;
  for (PendingContribution& sent : state.pending) {
    ISTHMUS_RETURN_IF_ERROR(CheckPendingPieces(*held_, sent.pieces));
    ISTHMUS_RETURN_IF_ERROR(CheckPendingPieces(*held_, sent.taken));
    pending[sent.round] = {std::move(sent.pieces), sent.decay, sent.lr, std::move(sent.taken)};
  }
  std::vector<std::vector<float>> residual = std::move(state.residual);
  ISTHMUS_RETURN_IF_ERROR(Method::SetState(std::move(state)));
  residual_ = std::move(residual);
  pending_ = std::move(pending);
  return absl::OkStatus();
}

double DemoShard::ResidualSquares() const {
  double sum = 0;
  for (const std::vector<float>& part : residual_) {
    for (const float value : part) sum += static_cast<double>(value) * value;
  }
  return sum;
}

void DemoShard::DropResidual() {
  for (std::vector<float>& part : residual_) std::fill(part.begin(), part.end(), 0.0f);
  pending_.clear();
}

absl::Status DemoShard::Apply(const UpdateRates& rates, absl::Span<const std::string* const> update,
                              const std::vector<TensorPart<float>>& parameters) {
  if (update.empty()) return absl::OkStatus();
  return step_.Apply(rates, update, parameters);
}

}  // namespace isthmus
