// Ranks come, say that they live, and leave; their watches.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "transport/errors.h"
#include "worker/agent_impl.h"

namespace isthmus {

absl::Status AskAgain(absl::string_view sentence) {
  return WithRetryAfterMs(WithReason(absl::UnavailableError(sentence), "WAITING"), kRankRetryMs);
}

absl::StatusOr<v1::JoinRunResponse> AgentImpl::JoinRun(const v1::JoinRunRequest& request) {
  if (request.role() != v1::ROLE_RANK) {
    return absl::InvalidArgumentError(absl::StrCat("role is ", v1::Role_Name(request.role()),
                                                   "; an agent admits ROLE_RANK only"));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_) return Stopping();
  if (!spec_.has_value()) {
    rank_asked_ = true;
    if (!refusal_.ok()) return refusal_;
    return AskAgain(absl::StrCat(Name(), " waits for the coordinator at ", options_.coordinator,
                                 ": ", spec_waiting_));
  }
  if (!request.has_manifest()) return *spec_;
  if (upstream_ == Upstream::kClosing) {
    return AskAgain(absl::StrCat(Name(), " still ends its last trainer group"));
  }
  changed_.notify_all();
  return JoinGroup(request);
}

// Under the mutex.
absl::StatusOr<v1::JoinRunResponse> AgentImpl::JoinGroup(const v1::JoinRunRequest& request) {
  if (!broken_status_.ok() && request.rank().group_id() == broken_group_id_) return broken_status_;
  bool superseded = false;
  ISTHMUS_RETURN_IF_ERROR(group_->Admit(request, clock_.NowMs(), &superseded));
  const uint32_t rank = request.rank().rank();
  if (superseded) {
    LogInfo("a new trainer group takes over", {{"node", options_.node}});
    refusal_ = absl::OkStatus();
    joined_.reset();
    // The node stays a member until the new group joins under the same secret.
    if (session_ != nullptr) upstream_ = Upstream::kClosing;
  }
  if (!refusal_.ok()) {
    group_->Left(rank);  // it has been told
    return refusal_;
  }
  if (!group_->complete()) {
    return AskAgain(absl::StrCat("node ", options_.node, " waits for ", group_->Missing()));
  }
  RankAcknowledged(rank, request.last_round());
  if (joined_.has_value()) return *joined_;
  return AskAgain(absl::StrCat(Name(), " joins the coordinator at ", options_.coordinator,
                               upstream_waiting_.empty() ? "" : ": ", upstream_waiting_));
}

// Under the mutex.
absl::Status AgentImpl::CheckRank(v1::Role role, uint32_t rank, uint64_t incarnation) const {
  if (role != v1::ROLE_RANK) {
    return absl::InvalidArgumentError(
        absl::StrCat("role is ", v1::Role_Name(role), "; an agent serves ROLE_RANK only"));
  }
  if (rank >= options_.ranks) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is not below ", options_.ranks,
                                                   ", the number of ranks of this agent"));
  }
  if (stopping_) return Stopping();
  if (upstream_ != Upstream::kJoined || !group_->present(rank)) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "rank ", rank, " has not joined at ", Name(), "; join first")),
                      kReasonNotJoined);
  }
  if (incarnation < first_incarnation_ || incarnation > joined_->incarnation()) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "incarnation ", incarnation, " of rank ", rank, " belongs to another trainer group of ",
            "node ", options_.node, "; its own begins at ", first_incarnation_)),
        kReasonIncarnationFenced);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<WatchQueue>> AgentImpl::Watch(
    const v1::WatchUpdatesRequest& request) {
  const uint32_t rank = request.rank();
  auto queue = std::make_shared<WatchQueue>(kWatchQueueEventsMax);
  std::shared_ptr<WatchQueue> older;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ISTHMUS_RETURN_IF_ERROR(CheckRank(request.role(), rank, request.incarnation()));
    RankWatch watch;
    watch.queue = queue;
    watch.ranges = group_->ranges(rank);
    watch.last_round = request.last_round();
    ISTHMUS_ASSIGN_OR_RETURN(const std::vector<WatchEvent> events,
                             log_->After(request.last_round(), watch.ranges));
    RankAcknowledged(rank, request.last_round());
    auto first = std::make_shared<v1::WatchUpdatesResponse>();
    first->mutable_start()->set_committed_round(log_->committed_round());
    for (const auto& [round, open] : open_) {
      v1::HeldContribution& held = *first->mutable_start()->add_held();
      held.set_round(round);
      held.set_attempt(joined_->attempt());
      held.set_complete(open.bundle->Settled(rank));
      held.set_digest(open.bundle->digest());
      for (const auto& [begin, end] : open.bundle->held(rank).list()) {
        v1::ChunkRange& range = *held.add_ranges();
        range.set_begin(begin);
        range.set_end(end);
      }
    }
    queue->Push(std::move(first));
    for (const WatchEvent& event : revised_) {
      if (event->revised().from_round() > request.last_round()) queue->Push(event);
    }
    for (const WatchEvent& event : events) queue->Push(event);
    older = std::exchange(watches_[rank], std::move(watch)).queue;
    group_->WatchOpened(rank);
    TellWaiting();
  }
  if (older != nullptr) {
    older->Close(absl::AbortedError(absl::StrCat("rank ", rank, " opened a newer watch")));
  }
  LogDebug("rank watches",
           {{"rank", absl::StrCat(rank)}, {"last_round", absl::StrCat(request.last_round())}});
  return queue;
}

void AgentImpl::WatchEnded(const v1::WatchUpdatesRequest& request,
                           const std::shared_ptr<WatchQueue>& queue) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint32_t rank = request.rank();
  if (rank >= watches_.size() || watches_[rank].queue != queue) return;
  watches_[rank] = RankWatch();
  group_->WatchEnded(rank);
  TellWaiting();
  if (const std::string gone = group_->Disconnected(); !gone.empty()) LogWarning(gone);
  changed_.notify_all();
}

absl::StatusOr<v1::HeartbeatResponse> AgentImpl::Heartbeat(const v1::HeartbeatRequest& request) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_) return Stopping();
  if (!joined_.has_value() || request.incarnation() < first_incarnation_) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "incarnation ", request.incarnation(),
            " is not one of the present trainer group of node ", options_.node, "; join again")),
        kReasonIncarnationFenced);
  }
  if (request.role() == v1::ROLE_RANK && request.rank() < options_.ranks) {
    RankAcknowledged(request.rank(), request.acknowledged_round());
    group_->Checkpointed(request.rank(), request.checkpoint_round());
    if (upstream_ == Upstream::kJoined) {
      session_->SetCheckpointRound(group_->CheckpointedByAll());
      // All ranks computed the one hash together.
      if (!request.state_sha256().empty()) {
        session_->SetStateReport(request.state_round(), request.state_sha256());
      }
      if (request.has_state_part()) TakeStatePart(request);
    }
  }
  v1::HeartbeatResponse response;
  response.set_committed_round(log_->committed_round());
  const std::string own = WaitingForRanks();
  response.set_waiting_for(own.empty() ? upstream_waiting_ : own);
  response.set_lease_ms(joined_->spec().timing().lease_ms());
  return response;
}

absl::StatusOr<v1::LeaveRunResponse> AgentImpl::LeaveRun(const v1::LeaveRunRequest& request) {
  std::shared_ptr<WatchQueue> queue;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint32_t rank = request.rank();
    // Who is not a member any more has left already.
    if (!CheckRank(request.role(), rank, request.incarnation()).ok()) return v1::LeaveRunResponse();
    group_->Left(rank);
    if (!request.reason().empty()) {
      left_rank_ = rank;
      left_reason_ = request.reason().substr(0, kReasonBytesMax);
    }
    queue = std::exchange(watches_[rank], RankWatch()).queue;
    TellWaiting();
    LogInfo("rank left", {{"rank", absl::StrCat(rank)}, {"reason", request.reason()}});
    changed_.notify_all();
  }
  if (queue != nullptr) queue->Close(absl::CancelledError("the rank has left"));
  return v1::LeaveRunResponse();
}

// Under the mutex. Which ranks this node waits for; empty: for none.
std::string AgentImpl::WaitingForRanks() const {
  const std::string gone = group_->Disconnected();
  if (!gone.empty() || open_.empty()) return gone;
  // All ranks compute for a while; only then is it worth a word that none has sent. The run waits
  // for the oldest round.
  const OpenRound& oldest = open_.begin()->second;
  if (oldest.bundle->NoneSent() && clock_.NowMs() - oldest.opened_ms < kSayWaitAfterMs) return "";
  return oldest.bundle->Lacking();
}

// Under the mutex. Why the group leaves: a rank that vanished is the cause of what others say.
std::string AgentImpl::LeaveReason() const {
  const std::string gone = group_->Disconnected();
  if (left_reason_.empty()) return gone.empty() ? "all ranks have left" : gone;
  if (gone.empty()) return left_reason_;
  return absl::StrCat(gone, "; rank ", left_rank_, ": ", left_reason_).substr(0, kReasonBytesMax);
}

// Under the mutex.
void AgentImpl::TellWaiting() {
  if (session_ == nullptr || upstream_ != Upstream::kJoined) return;
  session_->SetWaitingFor(WaitingForRanks());
}

void AgentImpl::TakeWatches(const absl::Status& status, Closings* closings) {
  for (uint32_t rank = 0; rank < watches_.size(); ++rank) {
    if (watches_[rank].queue == nullptr) continue;
    closings->emplace_back(std::move(watches_[rank].queue), status);
    watches_[rank] = RankWatch();
    group_->WatchEnded(rank);
  }
}

void AgentImpl::Close(const Closings& closings) {
  for (const auto& [queue, status] : closings) queue->Close(status);
}

}  // namespace isthmus
