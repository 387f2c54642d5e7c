// What has arrived for a rank and was not taken by it yet. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "isthmus/v1/coordinator.pb.h"
#include "transport/session.h"

namespace isthmus {

// Updates, in order.
class UntakenUpdates {
 public:
  bool empty() const { return updates_.empty(); }
  size_t size() const { return updates_.size(); }
  size_t bytes() const { return bytes_; }  // of their pieces
  const CommittedUpdate& front() const { return *updates_.front(); }
  // Null: it is not here.
  const CommittedUpdate* Find(uint64_t round) const {
    const uint64_t first = updates_.empty() ? 0 : front().record.round();
    const bool here = !updates_.empty() && round >= first && round - first < updates_.size();
    return here ? updates_[round - first].get() : nullptr;
  }

  void Push(std::shared_ptr<const CommittedUpdate> update) {
    bytes_ += BytesOf(*update);
    updates_.push_back(std::move(update));
  }
  std::shared_ptr<const CommittedUpdate> Pop() {
    std::shared_ptr<const CommittedUpdate> first = std::move(updates_.front());
    updates_.pop_front();
    bytes_ -= BytesOf(*first);
    return first;
  }
  void Clear() {
    updates_.clear();
    bytes_ = 0;
  }

 private:
  static size_t BytesOf(const CommittedUpdate& update) {
    size_t bytes = 0;
    for (const std::string& piece : update.pieces) bytes += piece.size();
    return bytes;
  }

  std::deque<std::shared_ptr<const CommittedUpdate>> updates_;
  size_t bytes_ = 0;
};

// What its opening said of a round that has closed.
inline v1::RoundOpened OpenedOf(const v1::UpdateRecord& record) {
  v1::RoundOpened opened;
  opened.set_round(record.round());
  opened.set_fragment(record.fragment());
  opened.set_base_round(record.base_round());
  opened.set_step(record.step());
  opened.set_lr_bits(record.lr_bits());
  return opened;
}

// Rounds that have opened, without those whose update is here.
class UntakenRounds {
 public:
  bool empty() const { return rounds_.empty(); }
  bool Has(uint64_t round) const { return rounds_.count(round) > 0; }
  const v1::RoundOpened& front() const { return rounds_.begin()->second; }

  void Push(const v1::RoundOpened& opened) { rounds_[opened.round()] = opened; }
  v1::RoundOpened Pop() { return Take(rounds_.begin()->first); }
  v1::RoundOpened Take(uint64_t round) { return rounds_.extract(round).mapped(); }
  void Committed(uint64_t round) { rounds_.erase(rounds_.begin(), rounds_.upper_bound(round)); }
  void Clear() { rounds_.clear(); }

 private:
  std::map<uint64_t, v1::RoundOpened> rounds_;  // 1 + overlap of them
};

// Revisions of the spec, ascending.
class UntakenRevisions {
 public:
  void Push(const v1::SpecRevised& revised) { revised_.push_back(revised); }
  void Clear() { revised_.clear(); }
  // The newest that holds in this round; those before it go with it.
  std::optional<v1::SpecRevised> Take(uint64_t round) {
    std::optional<v1::SpecRevised> newest;
    while (!revised_.empty() && revised_.front().from_round() <= round) {
      newest = std::move(revised_.front());
      revised_.pop_front();
    }
    return newest;
  }

 private:
  std::deque<v1::SpecRevised> revised_;
};

}  // namespace isthmus
