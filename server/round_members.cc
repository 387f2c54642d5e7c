// The round's state machine: who is what to a round. Nothing here changes anything.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "server/round.h"

namespace isthmus {

RoundMachine::Node& RoundMachine::Find(const std::string& node) {
  const auto found = nodes_.find(node);
  ISTHMUS_CHECK(found != nodes_.end());
  return found->second;
}

const RoundMachine::Node& RoundMachine::Find(const std::string& node) const {
  const auto found = nodes_.find(node);
  ISTHMUS_CHECK(found != nodes_.end());
  return found->second;
}

const RoundMachine::Part& RoundMachine::PartOf(const Opened& at, const std::string& node) {
  const auto found = at.parts.find(node);
  ISTHMUS_CHECK(found != at.parts.end());
  return found->second;
}

const RoundMachine::Opened* RoundMachine::FindRound(uint64_t round) const {
  if (round <= committed_ || round - committed_ > open_.size()) return nullptr;
  return &open_[round - committed_ - 1];
}

const RoundMachine::Opened* RoundMachine::Taking(uint64_t round) const {
  const uint64_t first = committed_ + (committing_ ? 2 : 1);
  if (round != 0 && round < first) return nullptr;
  return FindRound(round == 0 ? first : round);
}

RoundMachine::Opened* RoundMachine::Taking(uint64_t round) {
  return const_cast<Opened*>(std::as_const(*this).Taking(round));
}

uint64_t RoundMachine::open_round() const {
  const Opened* const at = Taking(0);
  return at == nullptr ? 0 : at->round;
}

uint32_t RoundMachine::Count(const Opened& at, Standing standing) {
  uint32_t count = 0;
  for (const auto& [name, part] : at.parts) count += part.standing == standing ? 1 : 0;
  return count;
}

int64_t RoundMachine::FirstCompleteMs(const Opened& at) {
  int64_t first_ms = -1;
  for (const auto& [name, part] : at.parts) {
    if (part.standing != Standing::kComplete) continue;
    first_ms = first_ms < 0 ? part.complete_ms : std::min(first_ms, part.complete_ms);
  }
  return first_ms;
}

uint32_t RoundMachine::Declined(const Opened& at) {
  return Count(at, Standing::kRefused) + Count(at, Standing::kAbstained);
}

// Where the quorum is all nodes, one that has answered with nothing is not waited for: it would
// compute the same again, and the run would stand for ever. Nor is one that an operator has taken
// out. A smaller quorum is a promise about how many contributions an update has, and stays: but for
// nodes that can be healed only by the state after a round that has still to open.
uint32_t RoundMachine::Needed(const Opened& at) const {
  if (!NeedsAll(at)) {
    const auto right = static_cast<uint32_t>(nodes_.size()) - CountDiverged();
    return std::min(at.settings.quorum, std::max(1u, right));
  }
  uint32_t needed = at.settings.quorum - Declined(at);
  for (const auto& [name, part] : at.parts) {
    const bool declined =
        part.standing == Standing::kRefused || part.standing == Standing::kAbstained;
    if (!declined && IsOut(name, at)) --needed;
  }
  return needed;
}

uint32_t RoundMachine::CountDiverged() const {
  uint32_t count = 0;
  for (const auto& [name, node] : nodes_) count += node.diverged.empty() ? 0 : 1;
  return count;
}

uint32_t RoundMachine::Ready() const {
  uint32_t ready = 0;
  for (const auto& [name, node] : nodes_) {
    ready += HoldsBase(node, committed_ + 1) && MayTakePart(node, committed_ + 1) ? 1 : 0;
  }
  return ready;
}

bool RoundMachine::MayTakePart(const Node& node, uint64_t round) {
  if (!node.diverged.empty()) return false;
  if (node.policy == NodePolicy::kDrain) return round <= node.last_round;
  return node.policy == NodePolicy::kNone;
}

bool RoundMachine::IsOut(const std::string& name, const Opened& at) const {
  const Node& node = Find(name);
  const Standing standing = PartOf(at, name).standing;
  if (node.policy == NodePolicy::kNone && node.diverged.empty()) return false;
  if (standing == Standing::kOutstanding || standing == Standing::kComplete) return false;
  // A quorum that is a promise may still need it in the round that it finishes.
  return NeedsAll(at) || !MayTakePart(node, at.round);
}

uint64_t RoundMachine::LastRoundOf(const std::string& name) const {
  const Node& node = Find(name);
  if (node.policy == NodePolicy::kDrain) return node.last_round;
  for (auto at = open_.rbegin(); at != open_.rend(); ++at) {
    const Standing standing = PartOf(*at, name).standing;
    const bool is_awaited = standing == Standing::kOutstanding && at->round != committing_round();
    if (standing == Standing::kComplete || is_awaited) return at->round;
  }
  return 0;
}

bool RoundMachine::BelowQuorum(const Opened& at) const {
  return Count(at, Standing::kComplete) + Count(at, Standing::kOutstanding) < Needed(at);
}

Standing RoundMachine::StandingOf(const std::string& node) const {
  return PartOf(Front(), node).standing;
}

Standing RoundMachine::StandingIn(const std::string& node, uint64_t round) const {
  const Opened* const at = FindRound(round);
  return at == nullptr ? Standing::kNotMember : PartOf(*at, node).standing;
}

const std::string& RoundMachine::ReasonOf(const std::string& node) const {
  return PartOf(Front(), node).reason;
}

const std::string& RoundMachine::ReasonIn(const std::string& node, uint64_t round) const {
  const Opened* const at = FindRound(round);
  return PartOf(at == nullptr ? idle_ : *at, node).reason;
}

bool RoundMachine::Admits(const std::string& name, uint64_t round) const {
  const Opened* const at = Taking(round);
  return at != nullptr && Admits(name, *at);
}

bool RoundMachine::Admits(const std::string& name, const Opened& at) const {
  const Node& node = Find(name);
  const Standing standing = PartOf(at, name).standing;
  if (standing == Standing::kComplete) return true;
  if (!node.live) return false;
  if (standing == Standing::kOutstanding) return true;
  return BelowQuorum(at) && HoldsBase(node, at.round) && MayTakePart(node, at.round);
}

bool RoundMachine::IsLive(const std::string& node) const { return Find(node).live; }

int64_t RoundMachine::LeaseLeftMs(const std::string& name, int64_t now_ms) const {
  const Node& node = Find(name);
  return node.live ? std::max<int64_t>(0, node.lease_until_ms - now_ms) : 0;
}

int64_t RoundMachine::CloseLeftMs(int64_t now_ms, uint64_t round) const {
  const Opened* const at = Taking(round);
  return at == nullptr ? -1 : CloseLeftMs(*at, now_ms);
}

// For how long, at most, a member that is outstanding was kept from sending.
int64_t RoundMachine::HeldUpMs(const Opened& at) {
  int64_t most_ms = 0;
  for (const auto& [name, part] : at.parts) {
    if (part.standing != Standing::kOutstanding) continue;
    most_ms = std::max(most_ms, part.held_up_until_ms - part.held_up_from_ms);
  }
  return most_ms;
}

int64_t RoundMachine::CloseLeftMs(const Opened& at, int64_t now_ms) const {
  int64_t close_ms = -1;
  if (at.settings.deadline_ms > 0) close_ms = at.opened_ms + at.settings.deadline_ms;
  const int64_t first_complete_ms = FirstCompleteMs(at);
  if (!NeedsAll(at) && first_complete_ms >= 0) {
    const int64_t grace_end_ms = first_complete_ms + at.settings.grace_ms;
    close_ms = close_ms < 0 ? grace_end_ms : std::min(close_ms, grace_end_ms);
  }
  return close_ms < 0 ? -1 : std::max<int64_t>(0, close_ms + HeldUpMs(at) - now_ms);
}

}  // namespace isthmus
