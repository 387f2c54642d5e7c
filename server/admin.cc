// DrainNode, EvictNode, AdmitNode: what an operator says of a node. It is stored before it is done,
// and done before it is answered.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/coordinator.h"
#include "server/field_size.h"
#include "server/monitor_view.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

v1::NodePolicy Stored(NodePolicy policy) {
  switch (policy) {
    case NodePolicy::kNone:
      break;
    case NodePolicy::kDrain:
      return v1::NODE_POLICY_DRAIN;
    case NodePolicy::kEvict:
      return v1::NODE_POLICY_EVICT;
  }
  return v1::NODE_POLICY_UNSPECIFIED;
}

const char* Deed(NodePolicy policy) {
  switch (policy) {
    case NodePolicy::kNone:
      break;
    case NodePolicy::kDrain:
      return "an operator drains the node";
    case NodePolicy::kEvict:
      return "an operator evicts the node";
  }
  return "an operator admits the node";
}

std::string Because(const std::string& reason) {
  return reason.empty() ? "" : absl::StrCat(" (", reason, ")");
}

}  // namespace

absl::StatusOr<v1::DrainNodeResponse> Coordinator::DrainNode(const v1::DrainNodeRequest& request) {
  ISTHMUS_RETURN_IF_ERROR(CheckRun(request.run()));
  ISTHMUS_ASSIGN_OR_RETURN(const uint64_t last_round,
                           SetPolicy({request.node(), NodePolicy::kDrain, request.reason()}));
  v1::DrainNodeResponse response;
  response.set_last_round(last_round);
  return response;
}

absl::StatusOr<v1::EvictNodeResponse> Coordinator::EvictNode(const v1::EvictNodeRequest& request) {
  ISTHMUS_RETURN_IF_ERROR(CheckRun(request.run()));
  ISTHMUS_RETURN_IF_ERROR(
      SetPolicy({request.node(), NodePolicy::kEvict, request.reason()}).status());
  return v1::EvictNodeResponse();
}

absl::StatusOr<v1::AdmitNodeResponse> Coordinator::AdmitNode(const v1::AdmitNodeRequest& request) {
  ISTHMUS_RETURN_IF_ERROR(CheckRun(request.run()));
  ISTHMUS_RETURN_IF_ERROR(SetPolicy({request.node(), NodePolicy::kNone, ""}).status());
  return v1::AdmitNodeResponse();
}

absl::Status Coordinator::CheckPolicyLocked(const NodePolicySet& wanted) const {
  ISTHMUS_RETURN_IF_ERROR(CheckFieldSize("reason", wanted.reason.size(), 0, kReasonBytesMax));
  // It would let the node in again, by a word that says the contrary.
  if (wanted.policy == NodePolicy::kDrain && machine_.PolicyOf(wanted.node) == NodePolicy::kEvict) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "node '", wanted.node, "' is evicted", Because(machine_.PolicyReasonOf(wanted.node)),
            ", so there is nothing to drain; to let it in again, admit it first")),
        "NODE_EVICTED");
  }
  return absl::OkStatus();
}

// The last round that counts the node's contribution; 0: none that has not been published.
absl::StatusOr<uint64_t> Coordinator::SetPolicy(NodePolicySet wanted) {
  ISTHMUS_RETURN_IF_ERROR(CheckNode(wanted.node));
  const DeliverAfter deliver(this);
  std::lock_guard<std::mutex> admission_lock(admission_mutex_);
  std::unique_lock<std::mutex> lock(mutex_);
  ISTHMUS_RETURN_IF_ERROR(CheckServingLocked());
  ISTHMUS_RETURN_IF_ERROR(CheckPolicyLocked(wanted));
  wanted.reason = OneLine(wanted.reason, kReasonBytesMax);
  StoreBatch batch;
  batch.node = StoredNodeOf(wanted.node);
  batch.node->set_policy(Stored(wanted.policy));
  batch.node->set_policy_reason(wanted.reason);
  batch.node->clear_drain_last_round();
  if (wanted.policy == NodePolicy::kDrain) {
    batch.node->set_drain_last_round(machine_.LastRoundOf(wanted.node));
  }
  if (wanted.policy == NodePolicy::kEvict) {
    batch.node->clear_secret_sha256();
    batch.node->set_left(true);
  }
  // Persist. Under the lock, so that the round which is stored as the last one is the last one.
  const absl::Status stored = WriteStore(batch);
  if (!stored.ok()) {
    lock.unlock();
    return CannotStore(stored);
  }
  LogInfo(Deed(wanted.policy),
          {{"node", wanted.node}, {"reason", wanted.reason}, {"run", spec_.run()}});
  if (wanted.policy == NodePolicy::kEvict) {
    NodeState& node = nodes_[wanted.node];
    CloseWatchLocked(&node, EvictedStatus(wanted.node, wanted.reason));
    node.secret_sha256.clear();
    NoteChangeLocked(wanted.node, /*left=*/true);
    differing_.erase(wanted.node);
    state_judge_.Forget(wanted.node);
  }
  StepLocked(wanted);
  const uint64_t last_round = machine_.LastRoundOf(wanted.node);
  return last_round > machine_.committed_round() ? last_round : 0;
}

v1::StoredNode Coordinator::StoredNodeOf(const std::string& name) const {
  const NodeState& node = nodes_.at(name);
  v1::StoredNode stored;
  stored.set_node(name);
  stored.set_incarnation(node.incarnation);
  stored.set_attempt(node.attempt);
  stored.set_secret_sha256(node.secret_sha256);
  stored.set_left(node.trail.left);
  const NodePolicy policy = machine_.PolicyOf(name);
  stored.set_policy(Stored(policy));
  stored.set_policy_reason(machine_.PolicyReasonOf(name));
  if (policy == NodePolicy::kDrain) stored.set_drain_last_round(machine_.LastRoundOf(name));
  return stored;
}

RunResumed::Policy Coordinator::PolicyOf(const v1::StoredNode& stored) {
  RunResumed::Policy said;
  said.name = stored.node();
  if (stored.policy() == v1::NODE_POLICY_DRAIN) said.policy = NodePolicy::kDrain;
  if (stored.policy() == v1::NODE_POLICY_EVICT) said.policy = NodePolicy::kEvict;
  said.reason = stored.policy_reason();
  said.last_round = stored.drain_last_round();
  return said;
}

absl::Status Coordinator::EvictedStatus(const std::string& node, const std::string& reason) const {
  return WithReason(absl::PermissionDeniedError(absl::StrCat(
                        "node '", node, "' was evicted from run '", spec_.run(), "' by an operator",
                        Because(reason),
                        "; whoever operates the coordinator can let it in again: isthmusctl "
                        "nodes admit ",
                        node)),
                    "NODE_EVICTED");
}

absl::Status Coordinator::CheckNotEvictedLocked(const std::string& node) const {
  if (machine_.PolicyOf(node) != NodePolicy::kEvict) return absl::OkStatus();
  return EvictedStatus(node, machine_.PolicyReasonOf(node));
}

void Coordinator::CarryOutLocked(const TakeOut& effect) {
  const auto open = aggregators_.find(effect.round);
  if (open != aggregators_.end()) open->second->Remove(effect.node);
  history_.TookOut(effect.round, effect.node,
                   OutcomeOf(machine_.StandingIn(effect.node, effect.round)),
                   machine_.ReasonIn(effect.node, effect.round));
}

}  // namespace isthmus
