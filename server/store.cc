#include "server/store.h"

#include <deque>
#include <iterator>
#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

uint64_t Cost(const StoredUpdate& update) { return update.bytes() + kStoredRoundBytes; }

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(const StoreLimits& limits) : limits_(limits) {}

  absl::Status Write(const StoreBatch& batch) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (batch.update != nullptr) {
      ISTHMUS_CHECK(batch.update->record.round() == state_.last_round + 1);
    }
    ApplyBatch(batch, &state_);
    if (batch.update != nullptr) KeepUpdateLocked(batch);
    if (batch.plan.has_value() || batch.snapshot.has_value()) DropPiecesLocked(batch);
    if (batch.snapshot.has_value()) {
      aggregates_.erase(aggregates_.begin(),
                        aggregates_.upper_bound(state_.snapshots.back().facts().round()));
    }
    return absl::OkStatus();
  }

  StoredState State() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return state_;
  }

  bool durable() const override { return false; }

  absl::StatusOr<std::vector<StoredUpdatePtr>> ReadAfter(uint64_t last_round,
                                                         uint64_t bytes_max) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (last_round > state_.last_round) return NotKeptLocked(last_round);
    if (last_round + 1 < FirstLocked()) return NotKeptLocked(last_round + 1);
    std::vector<StoredUpdatePtr> read;
    uint64_t bytes = 0;
    for (uint64_t round = last_round + 1; round <= state_.last_round; ++round) {
      if (!read.empty() && bytes >= bytes_max) break;
      read.push_back(updates_[round - FirstLocked()]);
      bytes += read.back()->bytes();
    }
    return read;
  }

  uint64_t last_round() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return state_.last_round;
  }

  uint64_t first_round() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return FirstLocked();
  }

  uint64_t BytesAfter(uint64_t last_round) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return AverageBytesAfter(last_round, FirstLocked(), state_.last_round, bytes_);
  }

  const StoreLimits& limits() const override { return limits_; }

  absl::StatusOr<std::string> RecordSha256(uint64_t round) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (round == 0) return std::string();
    if (round > state_.last_round || round + settled_.size() <= state_.last_round)
      return NotKeptLocked(round);
    return settled_[round + settled_.size() - state_.last_round - 1];
  }

  absl::Status WritePiece(uint64_t round, const SectionRange& range,
                          absl::string_view data) override {
    ISTHMUS_CHECK(data.size() == PieceBytes(range));
    std::lock_guard<std::mutex> lock(mutex_);
    pieces_[round][range] = std::string(data);
    return absl::OkStatus();
  }

  std::vector<SectionRange> Pieces(uint64_t round) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<SectionRange> ranges;
    const auto held = pieces_.find(round);
    if (held == pieces_.end()) return ranges;
    for (const auto& [range, data] : held->second) ranges.push_back(range);
    return ranges;
  }

  absl::StatusOr<std::string> ReadPiece(uint64_t round, const SectionRange& range) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto held = pieces_.find(round);
    if (held != pieces_.end()) {
      const auto piece = held->second.find(range);
      if (piece != held->second.end()) return piece->second;
    }
    return PieceNotKept(round, range);
  }

  absl::StatusOr<std::vector<float>> ReadAggregate(uint64_t round,
                                                   uint64_t elements) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto held = aggregates_.find(round);
    if (held == aggregates_.end()) return AggregateNotKept(round);
    if (held->second->size() == elements) return *held->second;
    return AggregateOfOtherSize(round, held->second->size() * sizeof(float), elements);
  }

 private:
  uint64_t FirstLocked() const { return state_.last_round + 1 - updates_.size(); }

  // Its round is state_.last_round already.
  void KeepUpdateLocked(const StoreBatch& batch) {
    bytes_ += Cost(*batch.update);
    updates_.push_back(batch.update);
    settled_.push_back(batch.update->record.sha256());
    if (batch.aggregate != nullptr) aggregates_[state_.last_round] = batch.aggregate;
    const uint64_t first = FirstLocked();
    const uint64_t keep =
        FirstRoundToKeep(limits_, batch, first, state_.last_round, bytes_,
                         [&](uint64_t round) { return Cost(*updates_[round - first]); });
    for (uint64_t round = first; round < keep; ++round) {
      bytes_ -= Cost(*updates_.front());
      updates_.pop_front();
    }
    while (settled_.size() > limits_.settled_rounds_max && settled_.size() > updates_.size()) {
      settled_.pop_front();
    }
  }

  void DropPiecesLocked(const StoreBatch& batch) {
    const std::set<uint64_t> stay = RoundsToKeep(batch, state_);
    for (auto held = pieces_.begin(); held != pieces_.end();) {
      held = stay.count(held->first) != 0 ? std::next(held) : pieces_.erase(held);
    }
  }

  absl::Status NotKeptLocked(uint64_t round) const {
    return UpdateNotKept(round, FirstLocked(), state_.last_round, limits_);
  }

  const StoreLimits limits_;
  mutable std::mutex mutex_;
  StoredState state_;
  std::deque<StoredUpdatePtr> updates_;  // the newest ones without gaps, up to the last round
  std::deque<std::string> settled_;      // hashes of records, the same way
  uint64_t bytes_ = 0;
  std::map<uint64_t, std::map<SectionRange, std::string>> pieces_;  // by round
  std::map<uint64_t, std::shared_ptr<const std::vector<float>>> aggregates_;
};

}  // namespace

std::unique_ptr<Store> MakeMemoryStore(const StoreLimits& limits) {
  return std::make_unique<MemoryStore>(limits);
}

uint64_t AverageBytesAfter(uint64_t after, uint64_t first_round, uint64_t last_round,
                           uint64_t bytes) {
  if (after >= last_round || first_round > last_round) return 0;
  const double average =
      static_cast<double>(bytes) / static_cast<double>(last_round + 1 - first_round);
  return static_cast<uint64_t>(average * static_cast<double>(last_round - after));
}

void ApplyBatch(const StoreBatch& batch, StoredState* state) {
  if (batch.run.has_value()) state->run = batch.run;
  if (batch.node.has_value()) {
    auto at = state->nodes.begin();
    while (at != state->nodes.end() && at->node() < batch.node->node()) ++at;
    if (at == state->nodes.end() || at->node() != batch.node->node()) {
      at = state->nodes.insert(at, *batch.node);
    }
    *at = *batch.node;
  }
  if (batch.update != nullptr) {
    state->open = batch.open;
    state->last_round = batch.update->record.round();
  }
  if (batch.plan.has_value()) state->plan = batch.plan;
  if (!batch.snapshot.has_value()) return;
  const uint64_t round = batch.snapshot->facts().round();
  std::vector<v1::StoredSnapshot>& snapshots = state->snapshots;
  auto at = snapshots.begin();
  while (at != snapshots.end() && at->facts().round() < round) ++at;
  if (at == snapshots.end() || at->facts().round() != round) {
    at = snapshots.insert(at, *batch.snapshot);
  }
  *at = *batch.snapshot;
  if (snapshots.size() > kSnapshotsKept) {
    snapshots.erase(snapshots.begin(), snapshots.end() - kSnapshotsKept);
  }
}

std::set<uint64_t> RoundsToKeep(const StoreBatch& batch, const StoredState& state) {
  std::set<uint64_t> rounds;
  for (const v1::StoredSnapshot& snapshot : state.snapshots) {
    rounds.insert(snapshot.facts().round());
  }
  // Of a new plan nothing can be there that is of use, and one that a snapshot has overtaken is
  // done.
  const bool under_way = state.plan.has_value() && !batch.plan.has_value() &&
                         (rounds.empty() || state.plan->round() > *rounds.rbegin());
  if (under_way) rounds.insert(state.plan->round());
  return rounds;
}

absl::Status UpdateNotKept(uint64_t round, uint64_t first_round, uint64_t last_round,
                           const StoreLimits& limits) {
  return WithReason(absl::OutOfRangeError(absl::StrCat(
                        "the update of round ", round, " is not kept; rounds ", first_round, " to ",
                        last_round, " are (at most ", limits.rounds_max, " rounds and ",
                        limits.bytes_max, " bytes). A node further behind starts from a snapshot")),
                    kReasonUpdatesNotKept);
}

absl::Status PieceNotKept(uint64_t round, const SectionRange& range) {
  return absl::NotFoundError(absl::StrCat("the state after round ", round, " has no piece [",
                                          range.begin, ", ", range.end, ") of section ",
                                          range.section, " here (any more)"));
}

absl::Status AggregateNotKept(uint64_t round) {
  return absl::NotFoundError(
      absl::StrCat("the aggregate of round ", round, " is not kept here (any more)"));
}

absl::Status AggregateOfOtherSize(uint64_t round, uint64_t bytes, uint64_t elements) {
  return absl::DataLossError(absl::StrCat("the aggregate of round ", round, " has ", bytes,
                                          " bytes; one of ", elements, " elements has ",
                                          elements * sizeof(float)));
}

}  // namespace isthmus
