// Whether nodes hold one state (server/state_judge.h): what they report, what is done to one that
// differs, and ChooseState, an operator's word where none has a majority. A verdict is stored
// before it is carried out.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/coordinator.h"
#include "server/hosted_model.h"
#include "spec/rounds.h"
#include "spec/stages.h"
#include "spec/state_hash.h"
#include "transport/errors.h"

namespace isthmus {

bool Coordinator::IsCheckedLocked(uint64_t round) const {
  return IsChecked(revisions_.SpecOf(round), round);
}

// The round takes no contributions any more. Who is or was a member applies its update, and says
// what comes of it.
void Coordinator::NoteClosedLocked(uint64_t round) {
  if (!IsCheckedLocked(round)) return;
  std::vector<std::string> members;
  for (const auto& [name, node] : nodes_) {
    switch (machine_.StandingIn(name, round)) {
      case Standing::kOutstanding:
      case Standing::kComplete:
      case Standing::kRefused:
      case Standing::kAbstained:
        members.push_back(name);
        break;
      default:
        break;
    }
  }
  state_judge_.Closed(round, std::move(members));
}

// Under hosted_mutex_, when the round is published: nobody waits for it but the next commit.
void Coordinator::NoteHostedState(uint64_t round) {
  v1::SnapshotFacts facts;
  facts.set_step(revisions_.StepAfter(round));
  facts.set_frozen_sha256(hosted_frozen_sha256_);
  const std::string sha256 = StateSha256({hosted_->SectionHash(0, facts.step())}, facts);
  std::lock_guard<std::mutex> lock(mutex_);
  state_judge_.Host(round, sha256);
}

absl::Status Coordinator::TakeReportsLocked(const v1::HeartbeatRequest& request) {
  if (request.checks_size() > static_cast<int>(kStateReportsMax)) {
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat("checks has ", request.checks_size(),
                                                " states; the limit is ", kStateReportsMax)),
        "WRONG_SIZE");
  }
  for (const v1::StateReport& report : request.checks()) {
    if (report.sha256().size() != kSha256Bytes) {
      return WithReason(
          absl::InvalidArgumentError(absl::StrCat("checks.sha256 has ", report.sha256().size(),
                                                  " bytes; it has ", kSha256Bytes)),
          "WRONG_SIZE");
    }
    const uint64_t round = report.round();
    // Of an earlier revision's rounds, perhaps, or of a life that is over.
    if (round > machine_.committed_round() || !IsCheckedLocked(round)) continue;
    state_judge_.Report(request.node(), round, report.sha256(), NowMs());
  }
  return absl::OkStatus();
}

StateJudge::Verdict Coordinator::StateVerdictLocked() const {
  return state_judge_.Judge([this](const std::string& node) { return machine_.IsLive(node); },
                            NowMs());
}

// Every verdict that there is, one after the other.
void Coordinator::JudgeStates() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_ || !halted_.ok()) return;
    if (StateVerdictLocked().kind == StateJudge::Verdict::Kind::kNothing) return;
  }
  const DeliverAfter deliver(this);
  std::lock_guard<std::mutex> admission_lock(admission_mutex_);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_ && halted_.ok()) {
    StateJudge::Verdict verdict = StateVerdictLocked();
    if (verdict.kind == StateJudge::Verdict::Kind::kNothing) return;
    const absl::Status stored = CarryOutLocked(std::move(verdict));
    if (stored.ok()) continue;
    lock.unlock();
    CannotStore(stored).IgnoreError();  // the next tick tries again
    return;
  }
}

// Persist, then do. Under admission_mutex_ as well, since a snapshot may be given up.
absl::Status Coordinator::CarryOutLocked(StateJudge::Verdict verdict) {
  using Kind = StateJudge::Verdict::Kind;
  verdict.distrusted = state_judge_.Suspects(verdict, snapshots_);
  StoreBatch batch;
  batch.run = StoredRunOf(model_, heldout_sha256_);
  *batch.run->mutable_state_check() = state_judge_.After(verdict);
  ISTHMUS_RETURN_IF_ERROR(WriteStore(batch));
  state_judge_.Accept(verdict);
  const auto distrusted = [this](const v1::StoredSnapshot& snapshot) {
    return state_judge_.Distrusts(snapshot.facts().round());
  };
  snapshots_.erase(std::remove_if(snapshots_.begin(), snapshots_.end(), distrusted),
                   snapshots_.end());
  for (const std::string& node : verdict.diverged) MarkDivergedLocked(node);
  if (verdict.kind == Kind::kHeal && !HasRightSnapshotLocked())
    WantSnapshotLocked(machine_.committed_round() + 1);
  const std::string dispute = DisputeTextLocked();
  if (verdict.kind == Kind::kDispute) {
    LogError(dispute, {{"run", spec_.run()}});
    logged_dispute_ = dispute;
  }
  if (verdict.kind == Kind::kSettled) {
    LogInfo("nodes' states have a majority again", {{"run", spec_.run()}});
  }
  StepLocked(StatesDisputed{dispute});
  return absl::OkStatus();
}

std::string Coordinator::DisputeTextLocked() const {
  const v1::StoredDispute* dispute = state_judge_.dispute();
  return dispute == nullptr ? "" : DisputeSentence(spec_.run(), *dispute);
}

void Coordinator::MarkDivergedLocked(const std::string& name) {
  const std::string sentence = DivergenceSentence(*state_judge_.Find(name));
  LogError("a node's state differs: nothing of it counts until it has started from a snapshot",
           {{"node", name}, {"why", sentence}, {"run", spec_.run()}});
  const v1::StoredSnapshotPlan* plan = snapshot_plan_.plan();
  if (plan != nullptr && plan->node() == name) snapshot_plan_.GaveUp();
  for (auto& [round, aggregator] : aggregators_) aggregator->Discard(name);
  CloseWatchLocked(&nodes_[name], DivergedStatusLocked(name));
  NoteChangeLocked(name, /*left=*/false);
  StepLocked(NodeDiverged{name, sentence});
}

absl::Status Coordinator::DivergedStatusLocked(const std::string& node) const {
  return WithReason(
      absl::FailedPreconditionError(absl::StrCat(
          "node '", node, "' is to start from a snapshot, since ",
          DivergenceSentence(*state_judge_.Find(node)), "; join again to be told which")),
      kReasonNotJoined);
}

// One that counts, and has all updates since.
bool Coordinator::HasRightSnapshotLocked() const {
  return !snapshots_.empty() && snapshots_.back().facts().round() + 1 >= store_->first_round();
}

// Whether the state that a node joins with is known to be right.
bool Coordinator::HoldsRightStateLocked(const v1::JoinRunRequest& request) const {
  const uint64_t round = request.last_round();
  const std::string& sha256 = request.state_sha256();
  if (round == 0) return model_ != nullptr && sha256 == model_->start_state_sha256;
  for (const v1::StoredSnapshot& snapshot : snapshots_) {
    if (snapshot.facts().round() == round) return sha256 == snapshot.facts().state_sha256();
  }
  return sha256 == state_judge_.RightAfter(round);
}

// A node whose state differs may join with one that is right, and is told where to get it.
absl::Status Coordinator::CheckHealedLocked(const v1::JoinRunRequest& request) {
  const v1::StoredDivergence* divergence = state_judge_.Find(request.node());
  if (divergence == nullptr || HoldsRightStateLocked(request)) return absl::OkStatus();
  const std::string why =
      absl::StrCat("node '", request.node(), "' is to start from a snapshot, since ",
                   DivergenceSentence(*divergence));
  if (HasRightSnapshotLocked()) {
    return WithReason(
        absl::OutOfRangeError(absl::StrCat(why, ": fetch that of round ",
                                           snapshots_.back().facts().round(), " and join with it")),
        kReasonFetchSnapshot);
  }
  if (NoSnapshotComesLocked()) {
    return WithReason(absl::FailedPreconditionError(
                          absl::StrCat(why, ", and none comes any more: the run is finished")),
                      "TOO_LATE");
  }
  WantSnapshotLocked(machine_.committed_round() + 1);
  return WithRetryAfterMs(
      WithReason(absl::UnavailableError(absl::StrCat(
                     why, "; there is none yet that is known to be right. ", ComingStateLocked())),
                 "NO_SNAPSHOT"),
      kRetryAfterMs);
}

absl::StatusOr<v1::ChooseStateResponse> Coordinator::ChooseState(
    const v1::ChooseStateRequest& request) {
  ISTHMUS_RETURN_IF_ERROR(CheckRun(request.run()));
  ISTHMUS_RETURN_IF_ERROR(CheckNode(request.node()));
  const DeliverAfter deliver(this);
  std::lock_guard<std::mutex> admission_lock(admission_mutex_);
  std::unique_lock<std::mutex> lock(mutex_);
  ISTHMUS_RETURN_IF_ERROR(CheckServingLocked());
  if (PresentSpecLocked().allow_drift() || IsHosted(spec_)) {
    return WithReason(
        absl::FailedPreconditionError(
            spec_.allow_drift()
                ? "the run's nodes drift apart (allow_drift), so their states are not compared"
                : "the coordinator hosts the model, so its own state is right, always"),
        "NOTHING_TO_CHOOSE");
  }
  absl::StatusOr<StateJudge::Verdict> verdict = state_judge_.Choose(request.node());
  if (!verdict.ok()) return WithReason(verdict.status(), "NOTHING_TO_CHOOSE");
  if (verdict->kind == StateJudge::Verdict::Kind::kHeal) {
    LogInfo("an operator chooses whose state is right", {{"node", request.node()},
                                                         {"round", absl::StrCat(verdict->round)},
                                                         {"state", HexPrefix(verdict->right)},
                                                         {"run", spec_.run()}});
    const absl::Status stored = CarryOutLocked(*std::move(verdict));
    if (!stored.ok()) {
      lock.unlock();
      return CannotStore(stored);
    }
  }
  const v1::StoredChoice& choice = *state_judge_.choice();
  v1::ChooseStateResponse response;
  response.set_round(choice.dispute().round());
  response.set_sha256(choice.sha256());
  for (const v1::StoredStateHash& state : choice.dispute().states()) {
    (state.sha256() == choice.sha256() ? response.add_right() : response.add_healing())
        ->assign(state.node());
  }
  return response;
}

}  // namespace isthmus
