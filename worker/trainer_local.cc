// A round of local steps (worker/trainer.h, design rule 11). What is carried, and how, is the
// method's business; here are the steps, the collective decisions and the counting.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "spec/run_spec.h"
#include "worker/methods/outer_shard.h"
#include "worker/trainer.h"

namespace isthmus {

absl::Status Trainer::ContributeLocal(const RankClient::Next& next) {
  const v1::RoundOpened& opened = next.opened;
  local_round_ = opened.round();
  local_steps_ = 0;
  // Of the node: a rank that lost the run (UnlessBehind) goes along with the others.
  std::array<double, 1> latest = {static_cast<double>(step_)};
  ISTHMUS_RETURN_IF_ERROR(options_.group->AllReduceMax(absl::MakeSpan(latest)));
  const auto began = static_cast<uint64_t>(latest[0]);
  const uint64_t steps = opened.step() - began;
  const uint64_t last = began + (steps > unsent_steps_ ? steps - unsent_steps_ : 1);
  std::string non_finite;
  double losses = 0;
  for (uint64_t step = began + 1; step <= last; ++step) {
    ISTHMUS_ASSIGN_OR_RETURN(const NodeGradient gradient, ComputeGradient(step, /*merged=*/false));
    if (gradient.stopped) return absl::CancelledError("a rank of this node was stopped");
    losses += gradient.loss;
    report_.loss = losses / static_cast<double>(step - began);
    report_.tokens += data_->tokens_per_step() * static_cast<uint64_t>(options_.group->ranks());
    non_finite = gradient.non_finite;
    ISTHMUS_RETURN_IF_ERROR(TakeLocalStep(step, gradient));
    // The round closed without this node, which goes on from its update (ApplyContributed takes
    // it). A replay computes for rounds that have closed.
    if (gradient.closed && !replays_) {
      unsent_steps_ += local_steps_;
      return absl::OkStatus();
    }
  }
  unsent_steps_ = 0;
  return SendLocal(next, non_finite);
}

absl::Status Trainer::StepAlone(const v1::RoundOpened& opened) {
  std::array<double, 1> latest = {static_cast<double>(step_)};
  ISTHMUS_RETURN_IF_ERROR(options_.group->AllReduceMax(absl::MakeSpan(latest)));
  const auto began = static_cast<uint64_t>(latest[0]);
  for (uint64_t step = began + 1; step < opened.step(); ++step) {
    ISTHMUS_ASSIGN_OR_RETURN(const NodeGradient gradient, ComputeGradient(step, /*merged=*/false));
    if (gradient.stopped) return absl::CancelledError("a rank of this node was stopped");
    if (!gradient.non_finite.empty()) {
      TellNonFinite(step, gradient.non_finite);
      continue;
    }
    const UpdateRates rates = {LearningRate(spec_, step), spec_.optimizer().weight_decay(), 0, 0};
    ISTHMUS_RETURN_IF_ERROR(replica_->StepAlone(rates, gradient.scale));
  }
  // Whatever becomes of the exchange, the steps were taken.
  local_round_ = opened.round();
  local_steps_ = opened.step() - began;
  sent_.tokens *= local_steps_;
  return absl::OkStatus();
}

void Trainer::TellNonFinite(uint64_t step, const std::string& tensor) {
  ++summary_.non_finite_steps;
  if (options_.group->rank() != 0) return;
  LogWarning("a local step was not taken: its gradient is not finite",
             {{"step", absl::StrCat(step)}, {"tensor", tensor}});
}

absl::Status Trainer::TakeLocalStep(uint64_t step, const NodeGradient& gradient) {
  if (gradient.non_finite.empty()) {
    ISTHMUS_RETURN_IF_ERROR(replica_->LocalStep(LearningRate(spec_, step), gradient.scale));
    replica_->outer()->AddWork({1, data_->tokens_per_step()});
    ++local_steps_;
    return absl::OkStatus();
  }
  TellNonFinite(step, gradient.non_finite);
  return absl::OkStatus();
}

// All ranks send their part, or none does: what is left behind must have one history.
absl::Status Trainer::SendLocal(const RankClient::Next& next, const std::string& non_finite) {
  const LocalWork work = replica_->outer()->work();
  sent_ = {work.tokens, work.steps};
  std::array<double, 1> tensor = {static_cast<double>(replica_->NonFiniteDelta())};
  ISTHMUS_RETURN_IF_ERROR(options_.group->AllReduceMax(absl::MakeSpan(tensor)));
  if (tensor[0] >= 0) {
    const Grid& grid = replica_->model().grid();
    Send(next, absl::InvalidArgumentError(absl::StrCat(
                   "after the local steps '", grid.tensor_name(static_cast<uint32_t>(tensor[0])),
                   "' is not finite, or too far away; the node goes back to where it began")));
    return replica_->DropWork();
  }
  if (work.steps == 0) {
    Send(next, absl::InvalidArgumentError(absl::StrCat("non-finite gradient in '", non_finite,
                                                       "' in every step of the round")));
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> pieces =
      replica_->EncodeLocal(next.opened.round(), absl::bit_cast<float>(next.opened.lr_bits()));
  std::array<double, 1> failed = {pieces.ok() ? 0.0 : 1.0};
  ISTHMUS_RETURN_IF_ERROR(options_.group->AllReduceMax(absl::MakeSpan(failed)));
  if (failed[0] > 0) {
    if (pieces.ok()) {
      pieces = absl::InvalidArgumentError("another rank of this node could not encode its part");
    }
    DropResidual(absl::StrCat("round ", next.opened.round(), " could not be encoded"));
  }
  Send(next, std::move(pieces));
  return absl::OkStatus();
}

void Trainer::CountLocal(const v1::UpdateRecord& record) {
  const uint64_t steps = record.step() - step_;
  const bool is_local = record.round() == local_round_;
  const uint64_t taken = is_local ? local_steps_ : 0;
  // The node's samples of an earlier attempt count, too, though that is not settled here.
  const bool merged = !MergedDigest(record).empty();
  skipped_.Applied(record.step(), merged && !is_local ? 0 : steps - taken);
  const OuterShard* outer = replica_->outer();
  if (outer == nullptr) return;
  if (outer->dropped_deltas() > summary_.dropped_deltas) unsent_steps_ = 0;
  report_.local_steps = taken;
  report_.carried_rounds = outer->carried_rounds();
  if (outer->carried_rounds() > 0) ++summary_.carried_rounds;
  report_.dropped_deltas = summary_.dropped_deltas = outer->dropped_deltas();
  summary_.dropped_steps = outer->dropped().steps;
}

}  // namespace isthmus
