// What ranks send: joining as a group, parts of contributions, watches.
#include <algorithm>
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
namespace {

absl::Status AskAgain(absl::string_view sentence) {
  return WithRetryAfterMs(WithReason(absl::UnavailableError(sentence), "WAITING"), kRankRetryMs);
}

bool IsFinalRefusal(const absl::Status& status) {
  return status.code() == absl::StatusCode::kInvalidArgument ||
         status.code() == absl::StatusCode::kFailedPrecondition ||
         status.code() == absl::StatusCode::kResourceExhausted;
}

}  // namespace

// One rank's part of a contribution on its way in. The host outlives it.
class RankPartSink final : public SubmissionSink {
 public:
  RankPartSink(AgentImpl* agent, std::shared_ptr<Bundle> bundle, std::shared_ptr<const Grid> grid,
               uint32_t rank)
      : agent_(agent), bundle_(std::move(bundle)), grid_(std::move(grid)), rank_(rank) {}

  absl::Status AddPiece(std::string piece) override {
    const absl::StatusOr<PieceView> view = CheckRankPiece(*grid_, piece);
    std::lock_guard<std::mutex> lock(agent_->mutex_);
    const absl::Status status =
        view.ok() ? bundle_->Add(rank_, *view, std::move(piece)) : view.status();
    if (IsFinalRefusal(status)) agent_->RefusePart(bundle_, rank_, status);
    return status;
  }

  absl::StatusOr<v1::SubmitResponse> End(const v1::SubmitEnd&) override {
    return agent_->EndPart(bundle_, *grid_, rank_);
  }

 private:
  AgentImpl* agent_;
  std::shared_ptr<Bundle> bundle_;
  std::shared_ptr<const Grid> grid_;
  uint32_t rank_;
};

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
  return AskAgain(absl::StrCat(Name(), " joins the coordinator at ", options_.coordinator, ": ",
                               upstream_waiting_));
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

// Under the mutex. Whether the round takes parts now.
absl::Status AgentImpl::CheckRound(const v1::SubmitHeader& header) const {
  if (header.round() <= log_->committed_round()) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "round ", header.round(), " is closed, the last committed is ",
                          log_->committed_round(), "; wait for its update")),
                      "ROUND_CLOSED");
  }
  if (bundle_ != nullptr && header.round() == bundle_->round()) return absl::OkStatus();
  // After a restart of this agent a rank may know of a round before the coordinator has told us.
  return AskAgain(absl::StrCat("round ", header.round(), " is not open yet at ", Name()));
}

// Under the mutex. What a rank's header may say of the open round.
absl::Status AgentImpl::CheckHeader(const v1::SubmitHeader& header) const {
  const std::string who = absl::StrCat("rank ", header.rank(), ", round ", header.round(), ": ");
  const auto wrong = [&who](const std::string& text, absl::string_view reason) {
    return WithReason(absl::FailedPreconditionError(who + text), reason);
  };
  const v1::RoundOpened& opened = *log_->open_round();
  if (header.fragment() != opened.fragment() || header.base_round() != opened.base_round()) {
    return wrong(absl::StrCat("computed for fragment ", header.fragment(), " on round ",
                              header.base_round(), "; it is open for fragment ", opened.fragment(),
                              " on round ", opened.base_round()),
                 "WRONG_BASE");
  }
  if (header.attempt() != joined_->attempt()) {
    return wrong(absl::StrCat("computed under attempt ", header.attempt(),
                              ", the group's attempt is ", joined_->attempt()),
                 "WRONG_ATTEMPT");
  }
  if (header.abstain_reason().size() > kReasonBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(who, "abstain_reason has ",
                                                   header.abstain_reason().size(),
                                                   " bytes; the limit is ", kReasonBytesMax));
  }
  if (!header.abstain_reason().empty()) return absl::OkStatus();
  if (header.codec() != v1::PAYLOAD_CODEC_TOPK_F32) {
    return wrong(
        absl::StrCat("codec is ", v1::PayloadCodec_Name(header.codec()), "; contributions have ",
                     v1::PayloadCodec_Name(v1::PAYLOAD_CODEC_TOPK_F32)),
        "WRONG_CODEC");
  }
  for (const v1::ChunkRange& range : header.ranges()) {
    if (group_->ranges(header.rank()).Contains(range.begin(), range.end())) continue;
    return wrong(absl::StrCat("chunks ", range.begin(), " to before ", range.end(),
                              " are not all of those it joined with"),
                 "WRONG_RANGE");
  }
  // Sums over ranks stay far from 64 bits with this.
  if (header.tokens() > kTokensMax || header.steps() > kStepsMax) {
    return absl::InvalidArgumentError(absl::StrCat(who, header.tokens(), " tokens and ",
                                                   header.steps(), " steps; the limits are ",
                                                   kTokensMax, " and ", kStepsMax));
  }
  if (header.payload_bytes() <= kOpenContributionBytesMax) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(who, "payload_bytes is ", header.payload_bytes(),
                                                   "; the limit is ", kOpenContributionBytesMax));
}

absl::StatusOr<std::unique_ptr<SubmissionSink>> AgentImpl::BeginSubmit(
    const v1::SubmitHeader& header) {
  std::lock_guard<std::mutex> lock(mutex_);
  ISTHMUS_RETURN_IF_ERROR(CheckRank(header.role(), header.rank(), header.incarnation()));
  RankAcknowledged(header.rank(), header.acknowledged_round());
  ISTHMUS_RETURN_IF_ERROR(CheckRound(header));
  if (const absl::Status good = CheckHeader(header); !good.ok()) {
    RefusePart(bundle_, header.rank(), good);
    return good;
  }
  if (header.abstain_reason().empty()) {
    ISTHMUS_RETURN_IF_ERROR(bundle_->Begin(header.rank(), header.tokens(), header.steps()));
  } else {
    ISTHMUS_RETURN_IF_ERROR(bundle_->Abstain(header.rank(), header.abstain_reason()));
    SendAbstention(bundle_);
  }
  return std::make_unique<RankPartSink>(this, bundle_, group_->grid(), header.rank());
}

// Under the mutex. Tells upstream what all ranks have applied, round by round.
void AgentImpl::RankAcknowledged(uint32_t rank, uint64_t round) {
  if (upstream_ != Upstream::kJoined) return;
  group_->Acknowledge(rank, std::min(round, log_->committed_round()));
  const uint64_t all = group_->AcknowledgedByAll();
  for (; acknowledged_ < all; ++acknowledged_) {
    const std::string sha256 = log_->RecordSha256(acknowledged_ + 1);
    if (!sha256.empty()) session_->Acknowledge(acknowledged_ + 1, sha256);
  }
  log_->Forget(all);
}

// Under the mutex. A part that is refused for good never comes: the node abstains, so that nobody
// waits for it.
void AgentImpl::RefusePart(const std::shared_ptr<Bundle>& bundle, uint32_t rank,
                           const absl::Status& status) {
  LogWarning("part refused", {{"round", absl::StrCat(bundle->round())},
                              {"rank", absl::StrCat(rank)},
                              {"why", std::string(status.message())}});
  bundle->Refuse(rank, status.message());
  SendAbstention(bundle);
}

// Under the mutex.
void AgentImpl::SendAbstention(const std::shared_ptr<Bundle>& bundle) {
  // While the session ends it is with the control thread.
  if (!bundle->abstains() || bundle != bundle_ || upstream_ != Upstream::kJoined) return;
  const std::shared_ptr<Submission> submission = bundle->Take();
  if (submission == nullptr) return;
  LogWarning("abstaining",
             {{"round", absl::StrCat(submission->round)}, {"why", submission->abstain_reason}});
  SendUpstream(submission);
}

// Under the mutex.
void AgentImpl::SendUpstream(std::shared_ptr<const Submission> submission) {
  const uint64_t round = submission->round;
  session_->Submit(std::move(submission), [round](const absl::Status& status) {
    LogWarning("the coordinator refused this node's contribution",
               {{"round", absl::StrCat(round)}, {"why", std::string(status.message())}});
  });
}

// Under the mutex.
v1::SubmitResponse AgentImpl::Receipt(const Bundle& bundle) const {
  v1::SubmitResponse receipt;
  receipt.set_round(bundle.round());
  receipt.set_complete(!bundle.digest().empty());
  receipt.set_digest(bundle.digest());
  receipt.set_attempt(joined_.has_value() ? joined_->attempt() : 0);
  return receipt;
}

absl::StatusOr<v1::SubmitResponse> AgentImpl::EndPart(const std::shared_ptr<Bundle>& bundle,
                                                      const Grid& grid, uint32_t rank) {
  const absl::Status closed =
      WithReason(absl::AbortedError(absl::StrCat("round ", bundle->round(),
                                                 " closed while sending; wait for its update")),
                 "ROUND_CLOSED");
  std::unique_lock<std::mutex> lock(mutex_);
  if (bundle != bundle_ || upstream_ != Upstream::kJoined) return closed;
  if (const absl::Status ended = bundle->End(rank); !ended.ok()) {
    RefusePart(bundle, rank, ended);
    return ended;
  }
  // An abstention has been taken when it came, so this is a contribution.
  const std::shared_ptr<Submission> submission = bundle->Take();
  if (submission == nullptr) {
    TellWaiting();
    return Receipt(*bundle);
  }
  lock.unlock();
  std::vector<const std::string*> pieces;
  for (const std::string& piece : submission->pieces) pieces.push_back(&piece);
  const absl::StatusOr<std::string> digest = PayloadDigest(grid, pieces);
  ISTHMUS_CHECK(digest.ok());  // every piece was checked, and the ranges cover the model
  submission->digest = *digest;
  lock.lock();
  bundle->set_digest(*digest);
  if (bundle != bundle_ || upstream_ != Upstream::kJoined) return closed;
  SendContribution(submission);
  TellWaiting();
  return Receipt(*bundle);
}

// Under the mutex.
void AgentImpl::SendContribution(const std::shared_ptr<Submission>& submission) {
  // Before the first byte leaves: an agent started after us must know what we sent.
  const absl::Status saved =
      state_->SaveSent({submission->round, submission->attempt, submission->digest});
  if (!saved.ok()) {
    LogError("cannot write the state folder, abstaining", {{"why", std::string(saved.message())}});
    submission->abstain_reason = std::string(saved.message().substr(0, kReasonBytesMax));
    submission->ranges.clear();
    submission->pieces.clear();
    submission->digest.clear();
  }
  SendUpstream(submission);
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
    if (bundle_ != nullptr) {
      v1::HeldContribution& held = *first->mutable_start()->add_held();
      held.set_round(bundle_->round());
      held.set_attempt(joined_->attempt());
      held.set_complete(bundle_->Settled(rank));
      held.set_digest(bundle_->digest());
      for (const auto& [begin, end] : bundle_->held(rank).list()) {
        v1::ChunkRange& range = *held.add_ranges();
        range.set_begin(begin);
        range.set_end(end);
      }
    }
    queue->Push(std::move(first));
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
      last_rank_reason_ = request.reason().substr(0, kReasonBytesMax);
    }
    queue = std::exchange(watches_[rank], RankWatch()).queue;
    TellWaiting();
    LogInfo("rank left", {{"rank", absl::StrCat(rank)}, {"reason", request.reason()}});
    changed_.notify_all();
  }
  if (queue != nullptr) queue->Close(absl::CancelledError("the rank has left"));
  return v1::LeaveRunResponse();
}

}  // namespace isthmus
