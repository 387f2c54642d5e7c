// What the coordinator sends, on the session's thread: to the log of rounds and to every watch.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "transport/errors.h"
#include "worker/agent_impl.h"

namespace isthmus {

void AgentImpl::OnJoined(const v1::JoinRunResponse& joined) {
  Closings closings;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (session_ == nullptr || upstream_ == Upstream::kClosing) return;
    const bool other_attempt = joined_.has_value() && joined_->attempt() != joined.attempt();
    if (!joined_.has_value()) first_incarnation_ = joined.incarnation();
    joined_ = joined;
    joined_->set_node(options_.node);
    upstream_ = Upstream::kJoined;
    if (other_attempt) {
      // The ranks' contributions carry the old attempt; they learn the new one when they join.
      if (bundle_ != nullptr) OpenBundle(*log_->open_round());
      TakeWatches(WithReason(absl::FailedPreconditionError(
                                 absl::StrCat("node ", options_.node, " has a new attempt ",
                                              joined.attempt(), "; join again")),
                             kReasonNotJoined),
                  &closings);
    }
    TellWaiting();
    LogInfo("joined the run", {{"run", joined.spec().run()},
                               {"incarnation", absl::StrCat(joined.incarnation())},
                               {"attempt", absl::StrCat(joined.attempt())},
                               {"committed_round", absl::StrCat(joined.committed_round())}});
  }
  Close(closings);
}

// Under the mutex.
void AgentImpl::OpenBundle(const v1::RoundOpened& opened) {
  BundleOptions options;
  options.round = opened.round();
  options.base_round = opened.base_round();
  options.attempt = joined_->attempt();
  options.bytes_max = kOpenContributionBytesMax;
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    options.rank_ranges.push_back(group_->ranges(rank));
  }
  bundle_ = std::make_shared<Bundle>(options);
}

void AgentImpl::OnOpened(const v1::RoundOpened& opened) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (session_ == nullptr || upstream_ != Upstream::kJoined) return;
  log_->Opened(opened);
  if (bundle_ == nullptr || bundle_->round() != opened.round()) OpenBundle(opened);
  const WatchEvent event = log_->OpenedEvent(opened.round());
  if (event == nullptr) return;  // it was committed before
  for (const RankWatch& watch : watches_) {
    if (watch.queue != nullptr && watch.last_round < opened.round()) watch.queue->Push(event);
  }
}

// The record lists this node with the very contribution that this group sent.
bool AgentImpl::OwnIncluded(const v1::UpdateRecord& record) const {
  const SentContribution& sent = state_->sent();
  if (sent.round != record.round() || sent.attempt != joined_->attempt()) return false;
  for (const v1::IncludedContribution& included : record.included()) {
    if (included.node() == options_.node) return included.digest() == sent.digest;
  }
  return false;
}

void AgentImpl::OnUpdate(std::shared_ptr<const CommittedUpdate> update) {
  Closings closings;
  std::shared_ptr<const Grid> grid;
  std::string previous;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (session_ == nullptr || upstream_ != Upstream::kJoined) return;
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
      log_->Committed(grid, *update, own_included);
      if (bundle_ != nullptr && bundle_->round() <= round) bundle_.reset();
      for (const RankWatch& watch : watches_) {
        if (watch.queue == nullptr || watch.last_round >= round) continue;
        for (WatchEvent& event : log_->UpdateFor(round, watch.ranges)) {
          watch.queue->Push(std::move(event));
        }
      }
      LogDebug("update", {{"round", absl::StrCat(round)},
                          {"included", absl::StrCat(update->record.included_size())},
                          {"own_included", own_included ? "yes" : "no"}});
    }
  }
  Close(closings);
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

void AgentImpl::OnEnded(const absl::Status& status) {
  Closings closings;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (session_ == nullptr || upstream_ == Upstream::kClosing) return;
    RefuseGroup(status, &closings);
  }
  Close(closings);
}

// The group's ranks are told `status`, now on their watches or when they ask to join.
void AgentImpl::RefuseGroup(const absl::Status& status, Closings* closings) {
  LogError("refused", {{"by", options_.coordinator}, {"why", std::string(status.message())}});
  refusal_ = status;
  TakeWatches(status, closings);
  upstream_ = Upstream::kClosing;
  changed_.notify_all();
}

void AgentImpl::OnWaiting(const std::string& sentence) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (sentence == upstream_waiting_) return;
  upstream_waiting_ = sentence;
  if (!sentence.empty()) LogInfo("waiting", {{"for", sentence}});
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

// Under the mutex. Which ranks this node waits for; empty: for none.
std::string AgentImpl::WaitingForRanks() const {
  const std::string gone = group_->Disconnected();
  if (!gone.empty() || bundle_ == nullptr) return gone;
  return bundle_->Lacking();
}

// Under the mutex.
void AgentImpl::TellWaiting() {
  if (session_ == nullptr || upstream_ != Upstream::kJoined) return;
  session_->SetWaitingFor(WaitingForRanks());
}

}  // namespace isthmus
