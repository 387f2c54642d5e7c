// What a rank has to tell its agent in heartbeats, and whether it was told. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/v1/coordinator.pb.h"

namespace isthmus {

class RankReports {
 public:
  // With this state a new group joins; what is known of another one is of no use to anybody.
  void Begin(uint64_t round) {
    acknowledged_ = told_acknowledged_ = round;
    parts_.clear();
    next_part_ = 0;
  }
  // The agent is perhaps another process.
  void Rejoined() {
    told_checkpointed_ = 0;
    state_untold_ = !state_sha256_.empty();
    next_part_ = 0;
  }

  // True: it was not told for `tell_ms`.
  bool Acknowledge(uint64_t round, int64_t now_ms, int64_t tell_ms) {
    if (acknowledged_ <= told_acknowledged_) untold_since_ms_ = now_ms;
    acknowledged_ = round;
    return now_ms - untold_since_ms_ >= tell_ms;
  }
  void Checkpointed(uint64_t round) { checkpointed_ = std::max(checkpointed_, round); }
  void State(uint64_t round, const std::string& sha256) {
    state_round_ = round;
    state_sha256_ = sha256;
    state_untold_ = true;
  }
  // Of the last round that was checked.
  void Parts(std::vector<v1::StatePart> parts) {
    parts_ = std::move(parts);
    next_part_ = 0;
  }

  uint64_t acknowledged() const { return acknowledged_; }
  // A contribution carries it.
  void ToldAcknowledged() { told_acknowledged_ = acknowledged_; }
  bool has_part() const { return next_part_ < parts_.size(); }
  bool untold() const {
    return acknowledged_ > told_acknowledged_ || checkpointed_ > told_checkpointed_ ||
           state_untold_ || has_part();
  }

  void Fill(v1::HeartbeatRequest* request) {
    request->set_acknowledged_round(acknowledged_);
    request->set_checkpoint_round(checkpointed_);
    request->set_state_round(state_round_);
    request->set_state_sha256(state_sha256_);
    if (has_part()) *request->mutable_state_part() = parts_[next_part_];
    told_acknowledged_ = acknowledged_;
  }
  // It was answered.
  void Told(const v1::HeartbeatRequest& request) {
    told_checkpointed_ = std::max(told_checkpointed_, request.checkpoint_round());
    if (request.state_sha256() == state_sha256_) state_untold_ = false;
    // Another thread may have told the same, or brought newer parts.
    if (request.has_state_part() && has_part() &&
        request.state_part().SerializeAsString() == parts_[next_part_].SerializeAsString()) {
      ++next_part_;
    }
  }

 private:
  uint64_t acknowledged_ = 0;
  uint64_t told_acknowledged_ = 0;  // to the agent
  int64_t untold_since_ms_ = 0;     // where acknowledged_ is more than that
  uint64_t checkpointed_ = 0;
  uint64_t told_checkpointed_ = 0;
  uint64_t state_round_ = 0;  // the last that was reported, and its hash
  std::string state_sha256_;
  bool state_untold_ = false;
  std::vector<v1::StatePart> parts_;
  size_t next_part_ = 0;
};

}  // namespace isthmus
