// One round's way through the agent, from top to bottom:
//
//   OnOpened          the coordinator opens it; every rank that watches is told
//   BeginSubmit       each rank sends its part; the pieces gather in the bundle
//   EndPart           with the last part they are one contribution, which goes upstream
//   OnUpdate          one update comes down; each rank gets the pieces of what it holds
//   RankAcknowledged  what all ranks have applied is told upstream
#include "worker/agent.h"

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

bool IsFinalRefusal(const absl::Status& status) {
  return status.code() == absl::StatusCode::kInvalidArgument ||
         status.code() == absl::StatusCode::kFailedPrecondition ||
         status.code() == absl::StatusCode::kResourceExhausted;
}

}  // namespace

void AgentImpl::OnOpened(const v1::RoundOpened& opened) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (session_ == nullptr || upstream_ != Upstream::kJoined) return;
  log_->Opened(opened);
  const WatchEvent event = log_->OpenedEvent(opened.round());
  if (event == nullptr) return;  // it was committed before
  if (open_.count(opened.round()) == 0) OpenBundle(opened);
  for (const RankWatch& watch : watches_) {
    if (watch.queue != nullptr && watch.last_round < opened.round()) watch.queue->Push(event);
  }
}

void AgentImpl::OnRevised(const v1::SpecRevised& revised) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (session_ == nullptr || upstream_ != Upstream::kJoined) return;
  LogInfo("the run's spec changes", {{"revision", absl::StrCat(revised.revision())},
                                     {"from_round", absl::StrCat(revised.from_round())}});
  auto event = std::make_shared<v1::WatchUpdatesResponse>();
  *event->mutable_revised() = revised;
  revised_.push_back(event);
  for (const RankWatch& watch : watches_) {
    if (watch.queue != nullptr) watch.queue->Push(event);
  }
}

// Under the mutex.
void AgentImpl::TakeCodecOf(uint64_t round) {
  const v1::RunSpec* spec = nullptr;
  for (const WatchEvent& event : revised_) {
    if (event->revised().from_round() <= round) spec = &event->revised().spec();
  }
  if (spec != nullptr) TakeCodec(spec->codec());
}

// Under the mutex.
void AgentImpl::TakeCodec(const v1::CodecSpec& codec) {
  const std::shared_ptr<const Grid> grid = group_->grid();
  if (grid == nullptr || grid->codec().SerializeAsString() == codec.SerializeAsString()) return;
  const absl::Status taken = group_->TakeCodec(codec);
  // The coordinator lets no other codec through; pieces in it are refused one by one.
  if (!taken.ok()) LogError("the run's codec cannot be taken up", {{"why", taken.ToString()}});
}

// Under the mutex.
void AgentImpl::OpenBundle(const v1::RoundOpened& opened) {
  TakeCodecOf(opened.round());
  BundleOptions options;
  options.round = opened.round();
  options.base_round = opened.base_round();
  options.attempt = joined_->attempt();
  options.lr_bits = opened.lr_bits();
  options.layout = ContributionLayout(group_->grid()->codec());
  options.bytes_max = kOpenContributionBytesMax;
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    options.rank_ranges.push_back(group_->ranges(rank));
  }
  open_[opened.round()] = {opened, std::make_shared<Bundle>(options), clock_.NowMs()};
}

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

absl::StatusOr<std::unique_ptr<SubmissionSink>> AgentImpl::BeginSubmit(
    const v1::SubmitHeader& header) {
  std::lock_guard<std::mutex> lock(mutex_);
  ISTHMUS_RETURN_IF_ERROR(CheckRank(header.role(), header.rank(), header.incarnation()));
  RankAcknowledged(header.rank(), header.acknowledged_round());
  ISTHMUS_RETURN_IF_ERROR(CheckRound(header));
  const OpenRound& open = open_.at(header.round());
  const std::shared_ptr<Bundle> bundle = open.bundle;
  if (const absl::Status good = CheckHeader(header, open.opened); !good.ok()) {
    RefusePart(bundle, header.rank(), good);
    return good;
  }
  if (header.abstain_reason().empty()) {
    const absl::Status begun = bundle->Begin(header.rank(), {header.tokens(), header.steps()});
    if (IsFinalRefusal(begun)) RefusePart(bundle, header.rank(), begun);
    ISTHMUS_RETURN_IF_ERROR(begun);
  } else {
    ISTHMUS_RETURN_IF_ERROR(bundle->Abstain(header.rank(), header.abstain_reason()));
    SendAbstention(bundle);
  }
  return std::make_unique<RankPartSink>(this, bundle, group_->grid(), header.rank());
}

// Under the mutex. Whether the round takes parts now.
absl::Status AgentImpl::CheckRound(const v1::SubmitHeader& header) const {
  if (header.round() <= log_->committed_round()) {
    return WithReason(absl::AbortedError(absl::StrCat(
                          "round ", header.round(), " is closed, the last committed is ",
                          log_->committed_round(), "; wait for its update")),
                      "ROUND_CLOSED");
  }
  if (open_.count(header.round()) > 0) return absl::OkStatus();
  // After a restart of this agent a rank may know of a round before the coordinator has told us.
  return AskAgain(absl::StrCat("round ", header.round(), " is not open yet at ", Name()));
}

// Under the mutex.
bool AgentImpl::IsOpen(const std::shared_ptr<Bundle>& bundle) const {
  const auto open = open_.find(bundle->round());
  return open != open_.end() && open->second.bundle == bundle;
}

// Under the mutex. What a rank's header may say of an open round.
absl::Status AgentImpl::CheckHeader(const v1::SubmitHeader& header,
                                    const v1::RoundOpened& opened) const {
  const std::string who = absl::StrCat("rank ", header.rank(), ", round ", header.round(), ": ");
  const auto wrong = [&who](const std::string& text, absl::string_view reason) {
    return WithReason(absl::FailedPreconditionError(who + text), reason);
  };
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
  const v1::PayloadCodec layout = ContributionLayout(group_->grid()->codec());
  if (header.codec() != layout) {
    return wrong(absl::StrCat("codec is ", v1::PayloadCodec_Name(header.codec()),
                              "; contributions have ", v1::PayloadCodec_Name(layout)),
                 "WRONG_CODEC");
  }
  if (header.lr_bits() != 0 && header.lr_bits() != opened.lr_bits()) {
    return wrong(absl::StrCat("lr_bits are ", header.lr_bits(), "; the round was opened with ",
                              opened.lr_bits()),
                 "WRONG_LR");
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

absl::StatusOr<v1::SubmitResponse> AgentImpl::EndPart(const std::shared_ptr<Bundle>& bundle,
                                                      const Grid& grid, uint32_t rank) {
  const absl::Status closed =
      WithReason(absl::AbortedError(absl::StrCat("round ", bundle->round(),
                                                 " closed while sending; wait for its update")),
                 "ROUND_CLOSED");
  std::unique_lock<std::mutex> lock(mutex_);
  if (!IsOpen(bundle) || upstream_ != Upstream::kJoined) return closed;
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
  if (!IsOpen(bundle) || upstream_ != Upstream::kJoined) return closed;
  SendContribution(submission);
  TellWaiting();
  return Receipt(*bundle);
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
  LogDebug("contribution", {{"round", absl::StrCat(submission->round)},
                            {"attempt", absl::StrCat(submission->attempt)},
                            {"digest", HexPrefix(submission->digest, 2 * kSha256Bytes)}});
  SendUpstream(submission);
}

// Under the mutex.
void AgentImpl::SendAbstention(const std::shared_ptr<Bundle>& bundle) {
  // While the session ends it is with the control thread.
  if (!bundle->abstains() || !IsOpen(bundle) || upstream_ != Upstream::kJoined) return;
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

void AgentImpl::OnUpdate(std::shared_ptr<const CommittedUpdate> update) {
  Closings closings;
  std::shared_ptr<const Grid> grid;
  std::string previous;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (session_ == nullptr || upstream_ != Upstream::kJoined) return;
    TakeCodecOf(update->record.round());
    grid = group_->grid();
    previous = previous_sha256_;
  }
  const absl::Status good = CheckUpdate(*grid, *update, previous);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (session_ == nullptr || upstream_ != Upstream::kJoined) return;
    if (!good.ok()) {
      RefuseGroup(good, &closings);
    } else {
      const uint64_t round = update->record.round();
      previous_sha256_ = update->record.sha256();
      const bool own_included = OwnIncluded(update->record);
      // Before a rank can have it: an agent that is killed in between must not hide what it gave.
      LogDebug("update", {{"round", absl::StrCat(round)},
                          {"included", absl::StrCat(update->record.included_size())},
                          {"own_included", own_included ? "yes" : "no"},
                          {"sha256", HexPrefix(update->record.sha256(), 2 * kSha256Bytes)}});
      log_->Committed(grid, *update, own_included);
      open_.erase(open_.begin(), open_.upper_bound(round));
      for (const RankWatch& watch : watches_) {
        if (watch.queue == nullptr || watch.last_round >= round) continue;
        for (WatchEvent& event : log_->UpdateFor(round, watch.ranges)) {
          watch.queue->Push(std::move(event));
        }
      }
    }
  }
  Close(closings);
}

// The record lists this node with the very contribution that this group sent.
bool AgentImpl::OwnIncluded(const v1::UpdateRecord& record) const {
  const SentContribution sent = state_->SentFor(record.round());
  if (sent.round == 0 || sent.attempt != joined_->attempt()) return false;
  for (const v1::IncludedContribution& included : record.included()) {
    if (included.node() == options_.node) return included.digest() == sent.digest;
  }
  return false;
}

void AgentImpl::OnFinished(uint64_t last_round) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (session_ == nullptr || upstream_ != Upstream::kJoined) return;
  log_->Finished(last_round);
  for (const RankWatch& watch : watches_) {
    if (watch.queue != nullptr) watch.queue->Push(log_->FinishedEvent());
  }
  LogInfo("the run is finished", {{"round", absl::StrCat(last_round)}});
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

}  // namespace isthmus
