// What a coordinator starts from: an empty store, or a run that is gone on with.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/coordinator.h"
#include "server/spec_difference.h"
#include "spec/rounds.h"
#include "spec/run_spec.h"
#include "spec/stages.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

constexpr uint32_t kStoreFormat = 1;

absl::Status Damaged(const std::string& what) {
  return absl::DataLossError(absl::StrCat(
      "the store does not fit together: ", what,
      ". Look at it with coordinator --check_store, and start with a copy of the folder"));
}

// An operator has said something of the run, which must last.
bool WasSpokenOf(const StoredState& state) {
  return state.run.has_value() && (state.run->paused() || state.run->revisions_size() > 0 ||
                                   state.run->has_fork() || state.run->has_state_check());
}

absl::Status CheckSameRun(const v1::StoredRun& kept, const v1::RunSpec& spec) {
  if (kept.format() != kStoreFormat) {
    return absl::FailedPreconditionError(absl::StrCat("the store has format ", kept.format(),
                                                      ", this version writes ", kStoreFormat,
                                                      ": start the coordinator that made it"));
  }
  // Fields that came with a later version have their default in a run that an earlier one made.
  v1::RunSpec made = kept.spec();
  ISTHMUS_RETURN_IF_ERROR(CompleteRunSpec(&made));
  const std::string difference = SpecDifference(made, spec);
  if (difference.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the store holds run '", kept.spec().run(), "' with another spec: ", difference,
      ". Start with the spec that the run was made with, or a new run on an empty --state_dir"));
}

}  // namespace

absl::Status Coordinator::Resume() {
  const StoredState state = store_->State();
  std::lock_guard<std::mutex> lock(mutex_);
  if (state.last_round == 0 && state.nodes.empty() && !WasSpokenOf(state)) {
    // Nothing was built on what may be there.
    StoreBatch batch;
    batch.run = StoredRunOf(nullptr, "");
    return WriteStore(batch);
  }
  if (!state.run.has_value()) return Damaged("it has rounds or nodes, but not what the run is");
  ISTHMUS_RETURN_IF_ERROR(CheckSameRun(*state.run, spec_));
  return ResumeLocked(state);
}

absl::Status Coordinator::CheckMembers(const v1::StoredOpening& open) const {
  for (const std::string& member : open.members()) ISTHMUS_RETURN_IF_ERROR(CheckMember(member));
  return absl::OkStatus();
}

absl::Status Coordinator::CheckMember(const std::string& node) const {
  if (nodes_.count(node) != 0) return absl::OkStatus();
  return Damaged(absl::StrCat("member '", node, "' is not one of the spec's nodes"));
}

absl::Status Coordinator::ResumeLocked(const StoredState& state) {
  const v1::StoredRun& run = *state.run;
  if (run.has_fork()) fork_ = run.fork();
  ISTHMUS_RETURN_IF_ERROR(ResumeRevisionsLocked(run));
  if (run.has_manifest()) {
    ISTHMUS_ASSIGN_OR_RETURN(model_,
                             MakeModel(run.manifest(), run.fingerprint(), run.start_state_sha256(),
                                       revisions_.SpecOf(state.last_round + 1).codec()));
  }
  heldout_sha256_ = run.heldout_sha256();
  RunResumed resumed;
  resumed.committed_round = state.last_round;
  resumed.paused = run.paused();
  resumed.pause_reason = run.pause_reason();
  if (run.has_state_check()) state_judge_.Resume(run.state_check());
  resumed.dispute = DisputeTextLocked();
  for (const auto& [node, divergence] : state_judge_.diverged()) {
    ISTHMUS_RETURN_IF_ERROR(CheckMember(node));
    resumed.diverged.push_back({node, DivergenceSentence(divergence)});
  }
  for (const v1::StoredNode& kept : state.nodes) {
    const auto node = nodes_.find(kept.node());
    if (node == nodes_.end()) {
      return Damaged(absl::StrCat("node '", kept.node(), "' is not one of the spec's"));
    }
    node->second.incarnation = kept.incarnation();
    node->second.attempt = kept.attempt();
    node->second.secret_sha256 = kept.secret_sha256();
    node->second.trail.left = kept.left();
    last_incarnation_ = std::max(last_incarnation_, kept.incarnation());
    resumed.policies.push_back(PolicyOf(kept));
    if (kept.incarnation() == 0) continue;  // it never joined
    if (model_ == nullptr) return Damaged("a node was admitted, but no model is kept");
    if (!kept.left()) resumed.nodes.push_back({kept.node(), kept.incarnation()});
  }
  if (state.last_round != 0 && model_ == nullptr) return Damaged("no model is kept");
  const bool finished = state.last_round == revisions_.rounds();
  if (state.last_round != 0 && !finished &&
      (!state.open.has_value() || state.open->round() != state.last_round + 1)) {
    return Damaged(absl::StrCat("round ", state.last_round,
                                " is committed, but the record that "
                                "opens the round after it is not there"));
  }
  if (state.open.has_value()) {
    ISTHMUS_RETURN_IF_ERROR(CheckMembers(*state.open));
    resumed.members = {state.open->members().begin(), state.open->members().end()};
    for (const v1::StoredOpening& later : state.open->later()) {
      ISTHMUS_RETURN_IF_ERROR(CheckMembers(later));
      resumed.later_members.emplace_back(later.members().begin(), later.members().end());
    }
  }
  ISTHMUS_ASSIGN_OR_RETURN(last_update_sha256_, store_->RecordSha256(state.last_round));
  LogInfo("run resumed", {{"run", spec_.run()},
                          {"committed_round", absl::StrCat(state.last_round)},
                          {"first_kept_round", absl::StrCat(store_->first_round())},
                          {"members", absl::StrJoin(resumed.members, ",")}});
  ResumeSnapshotsLocked(state);
  if (IsHosted(spec_)) ISTHMUS_RETURN_IF_ERROR(ResumeHosted(state));
  resumed.start_state_held = hosted_ != nullptr;
  StepLocked(resumed);
  return absl::OkStatus();
}

v1::StoredRun Coordinator::StoredRunOf(const ModelPtr& model,
                                       const std::string& heldout_sha256) const {
  v1::StoredRun run;
  run.set_format(kStoreFormat);
  *run.mutable_spec() = spec_;
  run.set_spec_revision(1);  // of `spec`
  for (v1::StoredRevision& revision : revisions_.Stored()) {
    *run.add_revisions() = std::move(revision);
  }
  if (fork_.has_value()) *run.mutable_fork() = *fork_;
  run.set_heldout_sha256(heldout_sha256);
  run.set_paused(machine_.paused());
  run.set_pause_reason(machine_.pause_reason());
  if (state_judge_.has_something()) *run.mutable_state_check() = state_judge_.Stored();
  if (model == nullptr) return run;
  *run.mutable_manifest() = model->manifest;
  run.set_fingerprint(model->fingerprint);
  run.set_start_state_sha256(model->start_state_sha256);
  return run;
}

// From here on nothing of the run moves: whoever calls is told why.
void Coordinator::HaltLocked(absl::Status why) {
  if (!halted_.ok()) return;
  LogError("the run is stopped", {{"run", spec_.run()}, {"why", std::string(why.message())}});
  halted_ = std::move(why);
  for (auto& [name, node] : nodes_) CloseWatchLocked(&node, halted_);
}

absl::Status Coordinator::WriteStore(const StoreBatch& batch) {
  const int64_t begin_ms = NowMs();
  const absl::Status stored = store_->Write(batch);
  store_trail_.Wrote(stored, NowMs() - begin_ms);
  return stored;
}

// The answer to a call that could not be stored. Without the mutex.
absl::Status Coordinator::CannotStore(const absl::Status& why) {
  store_trail_.Refused(why);
  if (absl::IsResourceExhausted(why)) {
    LogError("cannot store what came in; make room",
             {{"error", why.ToString()}, {"run", spec_.run()}});
    return WithRetryAfterMs(WithReason(why, "STORE_FULL"), kRetryAfterMs);
  }
  LogError("the disk failed, the coordinator ends; start it again when the disk is sound",
           {{"error", why.ToString()}, {"run", spec_.run()}});
  if (on_disk_failure_ == nullptr) std::_Exit(kExitDisk);
  on_disk_failure_(why);
  const DeliverAfter deliver(this);
  std::lock_guard<std::mutex> lock(mutex_);
  HaltLocked(why);
  return halted_;
}

}  // namespace isthmus
