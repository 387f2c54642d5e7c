// Who is told to fetch a snapshot, and when one is made beside the schedule.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "server/coordinator.h"
#include "spec/rounds.h"
#include "spec/stages.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

absl::Status Refused(absl::string_view reason, const std::string& text) {
  return WithReason(absl::FailedPreconditionError(text), reason);
}

// Of a hosted model nodes get less than what is kept of it.
uint64_t BytesForNodes(const v1::SnapshotFacts& facts) {
  return facts.sections() * facts.elements() * sizeof(float);
}

}  // namespace

absl::StatusOr<uint64_t> Coordinator::RequestSnapshot() {
  std::lock_guard<std::mutex> lock(mutex_);
  ISTHMUS_RETURN_IF_ERROR(CheckServingLocked());
  if (spec_.allow_drift()) {
    return Refused(
        "NO_COMMON_STATE",
        "the run's nodes drift apart (allow_drift), so there is no common state to keep");
  }
  const uint64_t next = std::max(NewestRoundLocked(), machine_.committed_round()) + 1;
  if (machine_.finished() || next > revisions_.rounds()) {
    return Refused("RUN_ENDS", absl::StrCat("no round opens after round ", revisions_.rounds(),
                                            "; trainers write the last state (--save)"));
  }
  WantSnapshotLocked(next);
  return next;
}

// Of the state after that round, or a later one.
void Coordinator::WantSnapshotLocked(uint64_t round) {
  if (!IsHosted(spec_)) return snapshot_plan_.Want();
  if (!hosted_wanted_.has_value()) hosted_wanted_ = round;
}

// That of the last round may be on its way when the run is finished.
bool Coordinator::NoSnapshotComesLocked() const {
  if (spec_.allow_drift()) return true;
  return machine_.finished() && snapshot_plan_.plan() == nullptr && !hosted_due_.has_value();
}

std::string Coordinator::ComingStateLocked() const {
  return machine_.finished() ? "The state after the last round is on its way: wait"
                             : "The state of the next round that opens is asked for: wait";
}

// Whether the updates after `last_round` are what the node should catch up by.
absl::Status Coordinator::CheckCatchUpLocked(const std::string& node, uint64_t last_round) {
  const uint64_t committed = machine_.committed_round();
  if (last_round >= committed) return absl::OkStatus();
  const bool kept = last_round + 1 >= store_->first_round();
  const v1::StoredSnapshot* newest = snapshots_.empty() ? nullptr : &snapshots_.back();
  const bool usable = newest != nullptr && newest->facts().round() > last_round &&
                      newest->facts().round() + 1 >= store_->first_round();
  if (kept) {
    // In deterministic mode a node computes what it missed; its own state is needed for that.
    if (!usable || spec_.deterministic()) return absl::OkStatus();
    const uint64_t by_snapshot =
        BytesForNodes(newest->facts()) + store_->BytesAfter(newest->facts().round());
    if (store_->BytesAfter(last_round) <= by_snapshot) return absl::OkStatus();
  }
  const std::string behind =
      absl::StrCat("node '", node, "' holds round ", last_round, ", the run is at round ",
                   committed, "; the updates ",
                   kept ? "since are more than a snapshot" : "that it lacks are no longer kept");
  if (usable) {
    return WithReason(absl::OutOfRangeError(absl::StrCat(
                          behind, ": fetch the snapshot of round ", newest->facts().round(), " (",
                          BytesForNodes(newest->facts()), " bytes) and join with that")),
                      kReasonFetchSnapshot);
  }
  if (NoSnapshotComesLocked()) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          behind, ", and no snapshot comes any more: ",
                          spec_.allow_drift() ? "the nodes hold no common state (allow_drift)"
                                              : "the run is finished")),
                      "TOO_LATE");
  }
  WantSnapshotLocked(committed + 1);
  return WithRetryAfterMs(
      WithReason(absl::UnavailableError(absl::StrCat(
                     behind, ", and there is no newer snapshot yet. ", ComingStateLocked())),
                 "NO_SNAPSHOT"),
      kRetryAfterMs);
}

}  // namespace isthmus
