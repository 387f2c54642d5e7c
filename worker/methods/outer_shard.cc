#include "worker/methods/outer_shard.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "kernels/aggregate.h"
#include "kernels/chunk_topk.h"
#include "kernels/demo.h"
#include "kernels/feedback.h"
#include "spec/piece.h"
#include "worker/methods/contribution_writer.h"
#include "worker/methods/thread_scratch.h"

namespace isthmus {
namespace {

absl::string_view View(const std::vector<char>& bytes) { return {bytes.data(), bytes.size()}; }

// A delta that is sent: every sum and rotation of kNodesMax of them stays inside float32.
bool IsAllowed(float value) { return std::abs(value) <= kNumberMax; }

}  // namespace

absl::StatusOr<OuterShard> OuterShard::Make(const MethodOptions& options,
                                            const std::vector<TensorPart<const float>>& parts) {
  ISTHMUS_CHECK(options.outer.has_value());
  MethodOptions given = options;
  given.codec = options.outer->codec();
  // No step after the merge: its moments are not made.
  given.optimizer = v1::OptimizerSpec();
  given.optimizer.set_base(v1::BASE_OPTIMIZER_SGD);
  ISTHMUS_ASSIGN_OR_RETURN(MethodParts made, MakeMethodParts(given, parts));
  OuterShard shard(std::move(made.options), std::move(made.held), std::move(made.step));
  const v1::RunSpec& spec = *shard.options_.outer;
  const int arrays = IsHosted(spec) ? 0 : static_cast<int>(isthmus::StateSections(spec)) - 1;
  const bool keeps = shard.has_feedback() || !shard.sends_delta();
  for (const HeldBlocks::Part& part : shard.held_->parts()) {
    for (int i = 0; i < arrays; ++i) shard.arrays_[i].emplace_back(part.elements);
    if (keeps) shard.residual_.emplace_back(part.elements);
  }
  ISTHMUS_RETURN_IF_ERROR(shard.StartAt(parts));
  return shard;
}

absl::Status OuterShard::StartAt(const std::vector<TensorPart<const float>>& parameters) {
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<absl::Span<const float>> data,
                           held_->MatchParts(parameters));
  Values x;
  for (size_t i = 0; i < data.size(); ++i) {
    if (data[i].size() != held_->parts()[i].elements) {
      return absl::InvalidArgumentError("a start has not all parts that are held");
    }
    x.emplace_back(data[i].begin(), data[i].end());
  }
  x_ = std::move(x);
  work_ = LocalWork();
  carried_rounds_ = 0;
  return absl::OkStatus();
}

Sections OuterShard::StateSections(const std::vector<TensorPart<const float>>&) const {
  Sections sections;
  sections.emplace_back(x_.begin(), x_.end());
  for (const Values& array : arrays_) {
    if (!array.empty()) sections.emplace_back(array.begin(), array.end());
  }
  // A rank may hold nothing; the number of sections is the run's.
  sections.resize(isthmus::StateSections(*options_.outer));
  return sections;
}

StepState OuterShard::step_state() const {
  return {arrays_[0], arrays_[1], powers_.beta1, powers_.beta2};
}

void OuterShard::TakeSpec(const v1::RunSpec& spec) {
  options_.codec = spec.codec();
  options_.outer = spec;
}

void OuterShard::AddWork(const LocalWork& work) {
  work_.steps += work.steps;
  work_.tokens += work.tokens;
}

absl::Status OuterShard::DropWork(const std::vector<TensorPart<float>>& parameters) {
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<absl::Span<float>> data,
                           held_->MatchAllParts(parameters));
  for (size_t i = 0; i < data.size(); ++i) std::copy(x_[i].begin(), x_[i].end(), data[i].begin());
  if (work_.steps > 0) {
    dropped_.steps += work_.steps;
    dropped_.tokens += work_.tokens;
    ++dropped_deltas_;
  }
  work_ = LocalWork();
  carried_rounds_ = 0;
  return absl::OkStatus();
}

absl::Status OuterShard::CheckDelta(const std::vector<absl::Span<const float>>& data) const {
  const std::vector<HeldBlock>& blocks = held_->blocks();
  std::vector<absl::Status> found(blocks.size());
  ParallelFor(blocks.size(), threads(), [&](size_t i) {
    const HeldBlock& held = blocks[i];
    const absl::Span<const float> local = data[held.part];
    if (local.empty()) return;
    const std::vector<float>& x = x_[held.part];
    const uint64_t end = held.offset + held_->BlockOf(held).elements;
    const auto value = [&](uint64_t e) { return sends_delta() ? x[e] - local[e] : local[e]; };
    bool allowed = true;
    for (uint64_t e = held.offset; e < end; ++e) allowed &= IsAllowed(value(e));
    if (allowed) return;
    uint64_t e = held.offset;
    while (IsAllowed(value(e))) ++e;
    const HeldBlocks::Part& part = held_->parts()[held.part];
    found[i] = absl::InvalidArgumentError(absl::StrCat(
        sends_delta() ? "the local change" : "the gradient", " of '",
        grid().tensor_name(part.tensor), "' is ", value(e), " at element ", part.first_element + e,
        "; magnitudes up to ", kNumberMax, " are sent, abstain from this round"));
  });
  for (const absl::Status& status : found) ISTHMUS_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> OuterShard::Encode(
    uint64_t round, float, const std::vector<TensorPart<const float>>& values) {
  ISTHMUS_RETURN_IF_ERROR(CheckMayEncode(round, pending_.count(round) > 0, pending_.size()));
  ISTHMUS_ASSIGN_OR_RETURN(std::vector<absl::Span<const float>> data, held_->MatchParts(values));
  for (size_t i = 0; sends_delta() && i < data.size(); ++i) {
    if (data[i].size() == held_->parts()[i].elements) continue;
    return absl::InvalidArgumentError(absl::StrCat("the part of '",
                                                   grid().tensor_name(held_->parts()[i].tensor),
                                                   "' is missing; a delta is of all parts"));
  }
  ISTHMUS_RETURN_IF_ERROR(CheckDelta(data));

  const FeedbackSettings feedback = {options_.codec.feedback().decay(),
                                     options_.codec.feedback().gain()};
  for (auto& [_, older] : pending_) older.decay *= static_cast<float>(feedback.decay);
  const std::vector<HeldBlock>& blocks = held_->blocks();
  std::vector<std::vector<char>> coded(held_->slots());
  ParallelFor(blocks.size(), threads(),
              [&](size_t i) { EncodeBlock(blocks[i], data[blocks[i].part], &coded); });
  PieceWriter writer(&grid(), ContributionLayout(options_.codec), options_.piece_bytes_max);
  for (const HeldBlock& held : blocks) {
    const Block& block = held_->BlockOf(held);
    for (uint64_t c = 0; c < block.chunks; ++c) {
      writer.AppendCoded(block.first_chunk + c, View(coded[held.first_slot + c]));
    }
  }
  std::vector<std::string> pieces = writer.Finish();
  // Only feedback gives back what was sent; else the parameters hold it.
  pending_[round].pieces = has_feedback() ? pieces : std::vector<std::string>();
  return pieces;
}

void OuterShard::Source(const HeldBlock& held, absl::Span<const float> values,
                        absl::Span<float> block) {
  if (sends_delta()) {
    DeltaOf(absl::MakeConstSpan(x_[held.part]).subspan(held.offset, block.size()),
            values.subspan(held.offset, block.size()), block);
    return;
  }
  const v1::OptimizerSpec& lion = options_.outer->optimizer();
  const std::vector<float> zeros(values.empty() ? block.size() : 0);  // no gradient of this part
  LionDirection(
      MakeLionRule(lion.beta1(), lion.beta2()),
      values.empty() ? absl::MakeConstSpan(zeros) : values.subspan(held.offset, block.size()),
      absl::MakeSpan(residual_[held.part]).subspan(held.offset, block.size()), block);
}

void OuterShard::EncodeBlock(const HeldBlock& held, absl::Span<const float> values,
                             std::vector<std::vector<char>>* coded) {
  const Block& block = held_->BlockOf(held);
  std::vector<float> own(block.elements);
  Source(held, values, absl::MakeSpan(own));
  if (options_.codec.kind() == v1::CODEC_KIND_DCT) {
    return EncodeTiles(held, absl::MakeSpan(own), coded);
  }
  absl::Span<float> sent = absl::MakeSpan(own);
  if (has_feedback()) {
    sent = absl::MakeSpan(residual_[held.part]).subspan(held.offset, block.elements);
    AddToResidual(static_cast<float>(options_.codec.feedback().decay()), own, sent);
  }
  const NumberSettings numbers = NumberSettingsOf(options_.codec.numbers());
  const ChunkTopK topk = {options_.codec.topk_chunk(), options_.codec.topk_k()};
  const bool selects = options_.codec.kind() == v1::CODEC_KIND_TOPK;
  std::vector<float> decoded;
  for (uint64_t c = 0; c < block.chunks; ++c) {
    const ChunkPlace place = grid().Place(block.first_chunk + c);
    const uint64_t first = place.first_element - block.first_element;
    const absl::Span<float> chunk = sent.subspan(first, place.shape.cols);
    std::vector<char>* out = &(*coded)[held.first_slot + c];
    if (selects) {
      AppendChunkTopK(topk, chunk, out);
    } else {
      AppendNumbers(numbers, chunk, {}, out);
    }
    if (!has_feedback()) continue;
    decoded.resize(chunk.size());
    absl::string_view bytes = View(*out);
    const absl::Status read = selects ? ReadChunkTopK(topk, &bytes, absl::MakeSpan(decoded))
                                      : ReadNumbers(numbers, &bytes, absl::MakeSpan(decoded));
    ISTHMUS_CHECK(read.ok());  // our own bytes
    TakeFromResidual(static_cast<float>(options_.codec.feedback().gain()), decoded, chunk);
  }
}

// As DemoShard does, with the delta for eta * g, in one pass over the memory.
void OuterShard::EncodeTiles(const HeldBlock& held, absl::Span<float> own,
                             std::vector<std::vector<char>>* coded) {
  const Block& block = held_->BlockOf(held);
  std::vector<float> nothing(has_feedback() ? 0 : block.elements);
  ReserveRule rule;
  rule.beta = has_feedback() ? static_cast<float>(options_.codec.feedback().decay()) : 0.0f;
  rule.eta = 1.0f;
  rule.alpha = has_feedback() ? static_cast<float>(options_.codec.feedback().gain()) : 1.0f;
  float* const d = has_feedback() ? residual_[held.part].data() + held.offset : nothing.data();
  for (uint64_t c = 0; c < block.chunks; ++c) {
    const ChunkPlace place = grid().Place(block.first_chunk + c);
    const uint64_t first = place.first_element - block.first_element;
    Components sent;
    rule.k = place.k;
    ReserveChunk(place.shape, rule, own.data() + first, place.stride, d + first, place.stride,
                 ThreadScratch(), &sent);
    AppendContributionChunk(place.shape, place.k, sent, &(*coded)[held.first_slot + c]);
  }
}

void OuterShard::Settle(uint64_t round, bool included) {
  const auto found = pending_.find(round);
  if (found == pending_.end()) return;
  if (!included && has_feedback()) GiveBack(found->second);
  pending_.erase(found);
  settled_round_ = round;
  settled_included_ = included;
}

void OuterShard::GiveBack(const Pending& pending) {
  const float factor = pending.decay * static_cast<float>(options_.codec.feedback().gain());
  ParallelFor(pending.pieces.size(), threads(), [&](size_t i) {
    const absl::StatusOr<PieceView> piece = OpenPiece(grid(), pending.pieces[i]);
    ISTHMUS_CHECK(piece.ok());  // our own bytes
    std::vector<float> values;
    const absl::Status status =
        ForEachChunk(grid(), *piece, [&](uint64_t chunk, const Components& sent) {
          const ChunkPlace place = grid().Place(chunk);
          const HeldBlock* held = held_->Find(place.block);
          ISTHMUS_CHECK(held != nullptr);
          float* const e = residual_[held->part].data() + held_->OffsetInPart(*held, place);
          values.assign(place.shape.elements(), 0.0f);
          if (options_.codec.kind() == v1::CODEC_KIND_DCT) {
            DecodeComponents(place.shape, sent, absl::MakeSpan(values));
            AddScaledChunk(place.shape, factor, values, e, place.stride);
            return absl::OkStatus();
          }
          if (sent.index.empty()) values = sent.value;  // a number format
          for (size_t j = 0; j < sent.index.size(); ++j) values[sent.index[j]] = sent.value[j];
          isthmus::GiveBack(factor, values, absl::MakeSpan(e, values.size()));
          return absl::OkStatus();
        });
    ISTHMUS_CHECK(status.ok());
  });
}

OuterShard::Fate OuterShard::FateOf(uint64_t round) {
  if (!sends_delta()) return Fate::kDone;
  const bool encoded = settled_round_ == round && round > 0;
  if (encoded && (settled_included_ || has_feedback())) return Fate::kDone;
  if (work_.steps == 0) return Fate::kDone;  // the parameters hold x
  if (has_feedback()) return Fate::kIntoResidual;
  return Fate::kCarried;
}

void OuterShard::Count(Fate fate) {
  if (fate == Fate::kCarried) {
    ++carried_rounds_;
    return;
  }
  work_ = LocalWork();
  carried_rounds_ = 0;
}

absl::Status OuterShard::Apply(const UpdateRates& rates,
                               absl::Span<const std::string* const> update,
                               const std::vector<TensorPart<float>>& parameters) {
  const v1::RunSpec& spec = *options_.outer;
  Fate fate = FateOf(rates.round);
  const bool too_old = fate == Fate::kCarried && carried_rounds_ >= spec.aggregate().carry_rounds();
  if (update.empty()) {  // void: x stays, and what the parameters hold with it
    if (too_old) return DropWork(parameters);
    if (fate == Fate::kCarried) ++carried_rounds_;
    if (fate != Fate::kDone) return absl::OkStatus();
    // With feedback it was given back, so the parameters must not hold it as well.
    work_ = LocalWork();
    return DropWork(parameters);
  }
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<absl::Span<float>> data,
                           held_->MatchAllParts(parameters));
  const UpdateForm form = UpdateFormOf(spec);
  const OuterSettings settings = form == UpdateForm::kDirection
                                     ? DirectionSettingsOf(spec.outer(), rates.lr)
                                     : OuterSettingsOf(spec.outer(), rates.lr);
  OuterRound rule;
  OuterPowers powers = powers_;
  if (form == UpdateForm::kAggregate || form == UpdateForm::kDirection) {
    powers = NextOuterPowers(settings, powers_);
    ISTHMUS_ASSIGN_OR_RETURN(rule, MakeOuterRound(settings, {static_cast<double>(rates.lr), powers,
                                                             DrawKeyOf(spec, rates.round)}));
  }
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<Components> components,
                           held_->ReadUpdate(update, threads()));
  if (too_old) {
    ISTHMUS_RETURN_IF_ERROR(DropWork(parameters));
    fate = Fate::kDone;
  }
  powers_ = powers;
  ParallelFor(held_->blocks().size(), threads(), [&](size_t i) {
    const HeldBlock& held = held_->blocks()[i];
    ApplyBlock(held, rule, fate, components, data[held.part]);
  });
  Count(fate);
  return absl::OkStatus();
}

void OuterShard::ApplyBlock(const HeldBlock& held, const OuterRound& rule, Fate fate,
                            const std::vector<Components>& components, absl::Span<float> local) {
  const Block& block = held_->BlockOf(held);
  const absl::Span<float> own = local.subspan(held.offset, block.elements);
  const absl::Span<float> x = absl::MakeSpan(x_[held.part]).subspan(held.offset, block.elements);
  std::vector<float> moved;  // local - x, with the x of before
  if (fate != Fate::kDone) {
    moved.resize(block.elements);
    DeltaOf(own, x, absl::MakeSpan(moved));
  }
  if (fate == Fate::kIntoResidual) {  // e <- e + (x - local)
    isthmus::GiveBack(-1.0f, moved,
                      absl::MakeSpan(residual_[held.part]).subspan(held.offset, block.elements));
  }
  for (uint64_t c = 0; c < block.chunks; ++c) {
    const ChunkPlace place = grid().Place(block.first_chunk + c);
    const absl::Span<const float> values = components[held.first_slot + c].value;
    const uint64_t first = held_->OffsetInPart(held, place);
    for (uint32_t j = 0; j < place.shape.rows; ++j) {
      StepRow(held, rule, first + j * place.stride,
              values.subspan(j * place.shape.cols, place.shape.cols));
    }
  }
  std::copy(x.begin(), x.end(), own.begin());
  if (fate != Fate::kCarried) return;
  for (size_t i = 0; i < own.size(); ++i) own[i] += moved[i];
}

void OuterShard::StepRow(const HeldBlock& held, const OuterRound& rule, uint64_t first,
                         absl::Span<const float> values) {
  const absl::Span<float> x = absl::MakeSpan(x_[held.part]).subspan(first, values.size());
  switch (UpdateFormOf(*options_.outer)) {
    case UpdateForm::kParameters:
      std::copy(values.begin(), values.end(), x.begin());
      return;
    case UpdateForm::kDifference:
      for (size_t i = 0; i < x.size(); ++i) x[i] += values[i];
      return;
    default:
      break;
  }
  const HeldBlocks::Part& part = held_->parts()[held.part];
  const auto array = [&](int i) {
    return arrays_[i].empty() ? absl::Span<float>()
                              : absl::MakeSpan(arrays_[i][held.part]).subspan(first, x.size());
  };
  OuterStep(rule, grid().tensor_offset(part.tensor) + part.first_element + first, values,
            {x, array(0), array(1)});
}

MethodState OuterShard::State() const {
  MethodState state;
  state.residual = residual_;
  for (const auto& [round, pending] : pending_) {
    state.pending.push_back({round, pending.decay, pending.pieces, 0.0f, {}});
  }
  state.step = step_state();
  if (work_.steps > 0) state.x = x_;
  state.work = work_;
  state.carried_rounds = carried_rounds_;
  return state;
}

absl::Status OuterShard::SetState(MethodState state) {
  ISTHMUS_RETURN_IF_ERROR(CheckSameSizes("residual", residual_, state.residual));
  ISTHMUS_RETURN_IF_ERROR(
      CheckSameSizes("first outer state", arrays_[0], state.step.first_moments));
  ISTHMUS_RETURN_IF_ERROR(
      CheckSameSizes("second outer state", arrays_[1], state.step.second_moments));
  if (!state.x.empty()) ISTHMUS_RETURN_IF_ERROR(CheckSameSizes("x", x_, state.x));
  if (state.pending.size() > kPendingRoundsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a state has ", state.pending.size(), " pending rounds; the limit is ", kPendingRoundsMax));
  }
  std::map<uint64_t, Pending> pending;
  for (PendingContribution& sent : state.pending) {
    ISTHMUS_RETURN_IF_ERROR(CheckPendingPieces(*held_, sent.pieces));
    pending[sent.round] = {std::move(sent.pieces), sent.decay};
  }
  residual_ = std::move(state.residual);
  pending_ = std::move(pending);
  arrays_[0] = std::move(state.step.first_moments);
  arrays_[1] = std::move(state.step.second_moments);
  powers_ = {state.step.beta1_power, state.step.beta2_power};
  if (!state.x.empty()) x_ = std::move(state.x);
  work_ = state.work;
  carried_rounds_ = state.carried_rounds;
  settled_round_ = 0;
  return absl::OkStatus();
}

double OuterShard::ResidualSquares() const {
  double sum = 0;
  if (!has_feedback()) return sum;  // m of Lion is a memory, and nothing that was not sent
  for (const std::vector<float>& part : residual_) {
    for (const float value : part) sum += static_cast<double>(value) * value;
  }
  return sum;
}

void OuterShard::DropResidual() {
  for (std::vector<float>& part : residual_) std::fill(part.begin(), part.end(), 0.0f);
  pending_.clear();
}

}  // namespace isthmus
