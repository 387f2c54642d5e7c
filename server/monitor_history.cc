#include "server/monitor_history.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace isthmus {
namespace {

constexpr int64_t kMinuteMs = 60000;
constexpr size_t kMeanOfRounds = 20;

void SetTime(absl::Time time, google::protobuf::Timestamp* timestamp) {
  const int64_t ms = absl::ToUnixMillis(time);
  timestamp->set_seconds(ms / 1000);
  timestamp->set_nanos(static_cast<int32_t>(ms % 1000 * 1000000));
}

uint64_t SinceMs(int64_t then_ms, int64_t now_ms) {
  return static_cast<uint64_t>(std::max<int64_t>(0, now_ms - then_ms));
}

}  // namespace

RoundHistory::RoundHistory(const HistoryLimits& limits) : limits_(limits) {
  ISTHMUS_CHECK(limits.rounds >= 1 && limits.changes >= 1);
}

void RoundHistory::Opened(const Opening& opening, const Moment& at) {
  std::lock_guard<std::mutex> lock(mutex_);
  open_.emplace_back();
  open_.back().opened_ms = at.now_ms;
  v1::Round& round = open_.back().round;
  round.set_round(opening.round);
  round.set_state(v1::ROUND_STATE_OPEN);
  round.set_step(opening.step);
  round.set_learning_rate(opening.learning_rate);
  SetTime(at.wall, round.mutable_opened_at());
  for (const v1::RoundNode& node : opening.nodes) *round.add_nodes() = node;
  RecordLocked(v1::ROUND_CHANGE_OPENED, at, &open_.back(), "", "");
}

RoundHistory::Open* RoundHistory::FindOpenLocked(uint64_t round) {
  for (Open& open : open_) {
    if (open.round.round() == round) return &open;
  }
  return nullptr;
}

v1::RoundNode* RoundHistory::FindNode(Open* open, const std::string& name) {
  if (open == nullptr) return nullptr;
  for (v1::RoundNode& node : *open->round.mutable_nodes()) {
    if (node.node() == name) return &node;
  }
  return nullptr;
}

void RoundHistory::TookIn(uint64_t round, const std::string& node) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (v1::RoundNode* found = FindNode(FindOpenLocked(round), node)) {
    found->set_outcome(v1::NODE_OUTCOME_OUTSTANDING);
    found->clear_reason();
  }
}

void RoundHistory::TookOut(uint64_t round, const std::string& node, v1::NodeOutcome outcome,
                           const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (v1::RoundNode* found = FindNode(FindOpenLocked(round), node)) {
    found->set_outcome(outcome);
    found->set_reason(reason);
  }
}

void RoundHistory::Completed(uint64_t round, const std::string& node, const Moment& at) {
  std::lock_guard<std::mutex> lock(mutex_);
  Open* const open = FindOpenLocked(round);
  if (open == nullptr) return;
  if (v1::RoundNode* found = FindNode(open, node)) {
    found->set_outcome(v1::NODE_OUTCOME_INCLUDED);
    found->clear_reason();
  }
  RecordLocked(v1::ROUND_CHANGE_COMPLETE, at, open, node, "");
}

void RoundHistory::Waiting(const std::string& sentence, const Moment& at) {
  std::lock_guard<std::mutex> lock(mutex_);
  RecordLocked(v1::ROUND_CHANGE_WAITING, at, nullptr, "", sentence);
}

void RoundHistory::Closed(std::vector<v1::RoundNode> nodes, bool is_void) {
  std::lock_guard<std::mutex> lock(mutex_);
  ISTHMUS_CHECK(!open_.empty());
  v1::Round& round = open_.front().round;
  round.set_state(v1::ROUND_STATE_COMMITTING);
  round.set_is_void(is_void);
  round.clear_nodes();
  for (v1::RoundNode& node : nodes) *round.add_nodes() = std::move(node);
}

void RoundHistory::Committed(uint64_t payload_bytes, const std::string& sha256, const Moment& at) {
  std::lock_guard<std::mutex> lock(mutex_);
  ISTHMUS_CHECK(!open_.empty());
  v1::Round& round = open_.front().round;
  round.set_state(v1::ROUND_STATE_COMMITTED);
  round.set_payload_bytes(payload_bytes);
  round.set_sha256(sha256);
  round.set_duration_ms(SinceMs(open_.front().opened_ms, at.now_ms));
  SetTime(at.wall, round.mutable_committed_at());
  RecordLocked(v1::ROUND_CHANGE_COMMITTED, at, &open_.front(), "", "");
  Kept kept{nullptr, open_.front().opened_ms, at.now_ms, round.ByteSizeLong()};
  kept.round = std::make_shared<const v1::Round>(std::move(round));
  open_.pop_front();
  kept_bytes_ += kept.bytes;
  kept_.push_back(std::move(kept));
  while (kept_.size() > 1 && (kept_.size() > limits_.rounds || kept_bytes_ > limits_.bytes)) {
    kept_bytes_ -= kept_.front().bytes;
    kept_.pop_front();
  }
}

void RoundHistory::Finished(const Moment& at) {
  std::lock_guard<std::mutex> lock(mutex_);
  finished_ = true;
  RecordLocked(v1::ROUND_CHANGE_FINISHED, at, nullptr, "", "");
}

v1::Round RoundHistory::ViewOf(const Open& open, int64_t now_ms) {
  v1::Round round = open.round;
  if (round.state() != v1::ROUND_STATE_COMMITTED) {
    round.set_duration_ms(SinceMs(open.opened_ms, now_ms));
  }
  return round;
}

void RoundHistory::RecordLocked(v1::RoundChange change, const Moment& at, const Open* about,
                                const std::string& node, const std::string& waiting_for) {
  if (watchers_ == 0) return;
  auto event = std::make_shared<v1::WatchRoundsResponse>();
  event->set_change(change);
  if (about == nullptr && !open_.empty()) about = &open_.front();
  if (about != nullptr) {
    *event->mutable_round() = ViewOf(*about, at.now_ms);
  } else if (!kept_.empty()) {
    *event->mutable_round() = *kept_.back().round;
  }
  event->set_node(node);
  event->set_waiting_for(waiting_for);
  SetTime(at.wall, event->mutable_at());
  const size_t bytes = event->ByteSizeLong();
  changes_.emplace_back(std::move(event), bytes);
  changes_bytes_ += bytes;
  while (changes_.size() > 1 &&
         (changes_.size() > limits_.changes || changes_bytes_ > limits_.bytes)) {
    changes_bytes_ -= changes_.front().second;
    changes_.pop_front();
    ++first_change_;
  }
  changed_.notify_all();
}

absl::optional<v1::Round> RoundHistory::Newest(int64_t now_ms) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!open_.empty()) return ViewOf(open_.front(), now_ms);
  if (kept_.empty()) return absl::nullopt;
  return *kept_.back().round;
}

RoundPtr RoundHistory::Find(uint64_t round, int64_t now_ms) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Open& open : open_) {
    if (open.round.round() == round) return std::make_shared<const v1::Round>(ViewOf(open, now_ms));
  }
  if (kept_.empty() || round < kept_.front().round->round()) return nullptr;
  const uint64_t at = round - kept_.front().round->round();
  return at < kept_.size() ? kept_[at].round : nullptr;
}

std::vector<RoundPtr> RoundHistory::Before(uint64_t before, size_t count, size_t bytes_max,
                                           int64_t now_ms) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<RoundPtr> rounds;
  size_t bytes = 0;
  for (auto open = open_.rbegin(); open != open_.rend() && rounds.size() < count; ++open) {
    if (open->round.round() >= before) continue;
    rounds.push_back(std::make_shared<const v1::Round>(ViewOf(*open, now_ms)));
    bytes += rounds.back()->ByteSizeLong();
  }
  // Numbers have no gaps, so the place of the first one wanted is known.
  size_t end = kept_.size();
  if (end > 0) {
    const uint64_t first = kept_.front().round->round();
    end = before <= first ? 0 : static_cast<size_t>(std::min<uint64_t>(end, before - first));
  }
  while (end > 0 && rounds.size() < count) {
    const Kept& kept = kept_[--end];
    bytes += kept.bytes;
    if (!rounds.empty() && bytes > bytes_max) break;
    rounds.push_back(kept.round);
  }
  return rounds;
}

uint64_t RoundHistory::oldest() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!kept_.empty()) return kept_.front().round->round();
  return open_.empty() ? 0 : open_.front().round.round();
}

RoundHistory::Pace RoundHistory::PaceAt(int64_t now_ms) const {
  std::lock_guard<std::mutex> lock(mutex_);
  Pace pace;
  if (kept_.empty()) return pace;
  pace.last_commit_ms = kept_.back().committed_ms;
  int64_t sum_ms = 0, rounds = 0;
  for (auto at = kept_.rbegin(); at != kept_.rend() && rounds < int64_t{kMeanOfRounds}; ++at) {
    sum_ms += at->committed_ms - at->opened_ms;
    ++rounds;
  }
  pace.mean_round_ms = sum_ms / rounds;
  const auto within = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
    return now_ms - kept.committed_ms < kMinuteMs;
  });
  const auto recent = static_cast<double>(kept_.end() - within);
  // A run so fast that the rounds kept are less than a minute's is measured by those.
  const bool older_are_gone = within == kept_.begin() && within->round->round() > 1;
  const int64_t span_ms =
      older_are_gone ? std::max<int64_t>(1, now_ms - within->committed_ms) : kMinuteMs;
  pace.rounds_last_minute = recent * static_cast<double>(kMinuteMs) / static_cast<double>(span_ms);
  return pace;
}

RoundHistory::Start RoundHistory::StartWatch(const Moment& at) const {
  Start start;
  start.current.set_change(v1::ROUND_CHANGE_CURRENT);
  SetTime(at.wall, start.current.mutable_at());
  std::lock_guard<std::mutex> lock(mutex_);
  if (!open_.empty()) {
    *start.current.mutable_round() = ViewOf(open_.front(), at.now_ms);
  } else if (!kept_.empty()) {
    *start.current.mutable_round() = *kept_.back().round;
  }
  start.cursor = first_change_ + changes_.size();
  start.finished = finished_;
  return start;
}

RoundHistory::ReadResult RoundHistory::Read(uint64_t cursor) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (cursor < first_change_) return {nullptr, true};
  const uint64_t at = cursor - first_change_;
  if (at >= changes_.size()) return {};
  return {changes_[at].first, false};
}

void RoundHistory::WaitPast(uint64_t cursor, int timeout_ms) const {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t interrupts = interrupts_;
  changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    return first_change_ + changes_.size() > cursor || interrupts_ != interrupts;
  });
}

void RoundHistory::Interrupt() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++interrupts_;
  changed_.notify_all();
}

uint64_t RoundHistory::end_cursor() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return first_change_ + changes_.size();
}

void RoundHistory::AddWatcher() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++watchers_;
}

void RoundHistory::RemoveWatcher() {
  std::lock_guard<std::mutex> lock(mutex_);
  ISTHMUS_CHECK(watchers_ > 0);
  if (--watchers_ > 0) return;
  // Nobody reads these any more; a later watcher begins at the end.
  first_change_ += changes_.size();
  changes_.clear();
  changes_bytes_ = 0;
}

}  // namespace isthmus
