// Heartbeat, LeaveRun, and what every call of an admitted node must pass.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/coordinator.h"
#include "server/field_size.h"
#include "transport/errors.h"

namespace isthmus {
// What every call must pass.
absl::Status Coordinator::CheckServingLocked() const {
  if (!halted_.ok()) return halted_;
  if (!stopping_) return absl::OkStatus();
  return WithReason(absl::UnavailableError("the coordinator is shutting down"),
                    kReasonShuttingDown);
}

absl::Status Coordinator::CheckHistoryLocked(const std::string& node, uint64_t last_round,
                                             const std::string& sha256) {
  if (last_round > machine_.committed_round()) return AheadLocked(node, last_round);
  if (last_round == 0) return absl::OkStatus();
  ISTHMUS_ASSIGN_OR_RETURN(const std::string ours, store_->RecordSha256(last_round));
  if (ours == sha256) return absl::OkStatus();
  const absl::Status differs =
      WithReason(absl::DataLossError(absl::StrCat(
                     "node '", node, "' has record ", HexPrefix(sha256), " of round ", last_round,
                     ", this coordinator has ", HexPrefix(ours),
                     ": its state is of another history. Start the node from a state of this run")),
                 "HISTORY_DIFFERS");
  differing_.insert(node);
  // One that differs has gone astray; where half of them do, it may as well be this coordinator.
  if (2 * differing_.size() < nodes_.size() || !store_->durable()) return differs;
  HaltLocked(WithReason(
      absl::DataLossError(absl::StrCat(
          differing_.size(), " of ", nodes_.size(), " nodes (", absl::StrJoin(differing_, ", "),
          ") hold another history than this coordinator, the last one record ", HexPrefix(sha256),
          " of round ", last_round, " where it has ", HexPrefix(ours),
          ". The run is stopped. If these nodes are right, start this coordinator with their "
          "run's --state_dir; if not, start them from states of this run and it again")),
      "HISTORY_FORKED"));
  return halted_;
}

// What a node has applied was durable before it was sent. So the disk has lost it, or the node is
// of another run; to go on would make a second history.
absl::Status Coordinator::AheadLocked(const std::string& node, uint64_t last_round) {
  const absl::Status ahead = WithReason(
      absl::DataLossError(absl::StrCat(
          "node '", node, "' holds round ", last_round, ", this coordinator's last commit is ",
          machine_.committed_round(),
          ": it was started with another --state_dir, or without one, or its folder has lost the "
          "end. Start it with the folder that has round ",
          last_round,
          "; if there is none, start it on an empty one, and the trainers of all nodes anew")),
      "AHEAD_OF_COORDINATOR");
  if (store_->durable()) HaltLocked(ahead);
  return ahead;
}

absl::Status Coordinator::CheckCallerLocked(const std::string& run, const std::string& node,
                                            uint64_t incarnation) const {
  ISTHMUS_RETURN_IF_ERROR(CheckServingLocked());
  ISTHMUS_RETURN_IF_ERROR(CheckRun(run));
  ISTHMUS_RETURN_IF_ERROR(CheckNode(node));
  ISTHMUS_RETURN_IF_ERROR(CheckNotEvictedLocked(node));
  const NodeState& state = nodes_.at(node);
  if (state.incarnation == 0) {
    return WithReason(absl::FailedPreconditionError(
                          absl::StrCat("node '", node, "' has not joined this coordinator; join")),
                      kReasonNotJoined);
  }
  if (state.incarnation != incarnation) {
    return WithReason(absl::FailedPreconditionError(
                          absl::StrCat("node '", node, "' calls with incarnation ", incarnation,
                                       ", the current one is ", state.incarnation, "; join again")),
                      kReasonIncarnationFenced);
  }
  if (state_judge_.Find(node) != nullptr) return DivergedStatusLocked(node);
  if (!machine_.IsLive(node)) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "incarnation ", incarnation, " of node '", node, "' is over: its lease of ",
            PresentSpecLocked().timing().lease_ms(), " ms ended, or it left; join again")),
        kReasonNotJoined);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::HeartbeatResponse> Coordinator::Heartbeat(const v1::HeartbeatRequest& request) {
  const DeliverAfter deliver(this);
  std::lock_guard<std::mutex> lock(mutex_);
  ISTHMUS_RETURN_IF_ERROR(CheckCallerLocked(request.run(), request.node(), request.incarnation()));
  ISTHMUS_RETURN_IF_ERROR(
      CheckFieldSize("waiting_for", request.waiting_for().size(), 0, kReasonBytesMax));
  const size_t sha256_bytes = request.state_sha256().size();
  if (sha256_bytes != 0 && sha256_bytes != kSha256Bytes) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat(
                          "state_sha256 has ", sha256_bytes, " bytes; it has 0 or ", kSha256Bytes)),
                      "WRONG_SIZE");
  }
  ISTHMUS_RETURN_IF_ERROR(TakeReportsLocked(request));
  const uint64_t holds = std::max(request.acknowledged_round(), request.checkpoint_round());
  if (holds > machine_.committed_round()) return AheadLocked(request.node(), holds);
  nodes_[request.node()].checkpoint_round = request.checkpoint_round();
  nodes_[request.node()].trail.heartbeat_ms = NowMs();
  if (sha256_bytes != 0) {
    snapshot_plan_.Report(request.node(), request.state_round(), request.state_sha256());
  }
  StepLocked(NodeWaiting{request.node(), OneLine(request.waiting_for(), kReasonBytesMax)});
  StepLocked(NodeAcknowledged{request.node(), request.acknowledged_round()});
  v1::HeartbeatResponse response;
  response.set_committed_round(machine_.committed_round());
  response.set_waiting_for(WaitingForLocked());
  response.set_lease_ms(PresentSpecLocked().timing().lease_ms());
  return response;
}

absl::StatusOr<v1::LeaveRunResponse> Coordinator::LeaveRun(const v1::LeaveRunRequest& request) {
  ISTHMUS_RETURN_IF_ERROR(CheckRun(request.run()));
  ISTHMUS_RETURN_IF_ERROR(CheckNode(request.node()));
  ISTHMUS_RETURN_IF_ERROR(CheckFieldSize("reason", request.reason().size(), 0, kReasonBytesMax));
  const DeliverAfter deliver(this);
  std::lock_guard<std::mutex> admission_lock(admission_mutex_);
  StoreBatch batch;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    NodeState& node = nodes_[request.node()];
    // Leaving twice is leaving once, and an older incarnation cannot end a newer one.
    if (node.incarnation != request.incarnation() || !machine_.IsLive(request.node())) {
      return v1::LeaveRunResponse();
    }
    LogInfo("node left",
            {{"node", request.node()}, {"reason", request.reason()}, {"run", spec_.run()}});
    CloseWatchLocked(&node, absl::CancelledError("the node left the run"));
    node.secret_sha256.clear();
    NoteChangeLocked(request.node(), /*left=*/true);
    StepLocked(NodeLeft{request.node(), OneLine(request.reason(), kReasonBytesMax)});
    batch.node = StoredNodeOf(request.node());
  }
  // If this is lost, a coordinator that starts again takes the node for live until its lease ends.
  const absl::Status stored = WriteStore(batch);
  if (!stored.ok() && !absl::IsResourceExhausted(stored)) return CannotStore(stored);
  return v1::LeaveRunResponse();
}

}  // namespace isthmus
