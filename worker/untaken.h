// What has arrived for a rank and was not taken by it yet. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
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
