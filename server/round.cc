#include "server/round.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"

namespace isthmus {

RoundMachine::RoundMachine(const RoundSettings& settings)
    : settings_(settings), start_awaited_(!settings.start_node.empty()) {
  for (const std::string& node : settings.nodes) nodes_[node];
  ISTHMUS_CHECK(settings.quorum >= 1 && settings.quorum <= nodes_.size());
  ISTHMUS_CHECK(settings.steps >= 1);
}

std::vector<RoundEffect> RoundMachine::Step(const RoundEvent& event, int64_t now_ms) {
  ForgiveOwnPause(now_ms);
  Effects effects;
  std::visit([&](const auto& known) { Apply(known, now_ms, &effects); }, event);
  OpenFirst(now_ms, &effects);
  TakeInMissing(&effects);
  Close(now_ms, &effects);
  return effects;
}

void RoundMachine::ForgiveOwnPause(int64_t now_ms) {
  const int64_t gap_ms = last_step_ms_ < 0 ? 0 : now_ms - last_step_ms_ - settings_.tick_ms;
  last_step_ms_ = now_ms;
  if (gap_ms <= kOwnPauseMs) return;
  // While we slept nobody could reach us: what ran out in that time is not theirs to answer for.
  for (auto& [name, node] : nodes_) {
    node.lease_until_ms += gap_ms;
    node.complete_ms += gap_ms;
  }
  opened_ms_ += gap_ms;
}

void RoundMachine::Apply(const NodeJoined& event, int64_t now_ms, Effects*) {
  Node& node = Find(event.node);
  if (node.policy == NodePolicy::kEvict) return;
  node.live = true;
  node.incarnation = event.incarnation;
  node.lease_until_ms = now_ms + settings_.lease_ms;
  node.acknowledged = event.holds_round;
  node.waiting_for.clear();
  // Membership and a complete contribution stay. A new incarnation may do better than the one that
  // refused or abstained, so it can be taken in again like one that had left.
  if (node.standing == Standing::kRefused || node.standing == Standing::kAbstained) {
    node.standing = Standing::kLeft;
    node.reason.clear();
  }
}

void RoundMachine::Apply(const NodeAcknowledged& event, int64_t now_ms, Effects* effects) {
  Node& node = Find(event.node);
  if (!node.live) return;
  node.acknowledged = std::max(node.acknowledged, event.round);
  Apply(NodeHeard{event.node}, now_ms, effects);
}

void RoundMachine::Apply(const NodeHeard& event, int64_t now_ms, Effects*) {
  Node& node = Find(event.node);
  if (node.live) node.lease_until_ms = now_ms + settings_.lease_ms;
}

void RoundMachine::Apply(const NodeWaiting& event, int64_t, Effects*) {
  Find(event.node).waiting_for = event.sentence;
}

void RoundMachine::Apply(const ContributionComplete& event, int64_t now_ms, Effects*) {
  if (!Admits(event.node)) return;
  Node& node = Find(event.node);
  if (node.standing == Standing::kComplete) return;  // the one that is held stands
  node.standing = Standing::kComplete;
  node.digest = event.digest;
  node.complete_ms = now_ms;
  node.reason.clear();
  node.acknowledged = std::max(node.acknowledged, committed_);  // it was computed on the base
}

void RoundMachine::Apply(const ContributionRefused& event, int64_t, Effects*) {
  Decline(event.node, Standing::kRefused, event.reason);
}

void RoundMachine::Apply(const NodeAbstained& event, int64_t, Effects*) {
  Decline(event.node, Standing::kAbstained, event.reason);
}

void RoundMachine::Apply(const NodeLeft& event, int64_t, Effects*) {
  Node& node = Find(event.node);
  EndMembership(&node, Standing::kLeft);
  if (node.standing == Standing::kLeft) node.reason = event.reason;
}

void RoundMachine::Apply(const NodePolicySet& event, int64_t, Effects* effects) {
  Node& node = Find(event.node);
  node.last_round = event.policy == NodePolicy::kDrain ? LastRoundOf(event.node) : 0;
  node.policy = event.policy;
  node.policy_reason = event.reason;
  if (event.policy != NodePolicy::kEvict) return;
  EndMembership(&node, Standing::kEvicted);
  if (phase_ != Phase::kOpen) return;  // in a round that has closed a contribution stays
  node.standing = Standing::kEvicted;
  node.digest.clear();
  node.reason = event.reason;
  effects->push_back(TakeOut{committed_ + 1, event.node});
}

void RoundMachine::Apply(const RunPaused& event, int64_t, Effects*) {
  paused_ = true;
  pause_reason_ = event.reason;
}

void RoundMachine::Apply(const RunUnpaused&, int64_t now_ms, Effects* effects) {
  paused_ = false;
  pause_reason_.clear();
  if (phase_ == Phase::kPaused) Open(now_ms, effects);
}

void RoundMachine::Apply(const SettingsRevised& event, int64_t, Effects*) {
  ISTHMUS_CHECK(event.settings.quorum >= 1 && event.settings.quorum <= nodes_.size());
  ISTHMUS_CHECK(event.settings.steps >= event.from_round);
  settings_.steps = event.settings.steps;
  coming_[event.from_round] = event.settings;
  // What the run begins or goes on with is asked for before a round opens.
  if (phase_ == Phase::kStarting || phase_ == Phase::kPaused) TakeSettings(committed_ + 1);
}

void RoundMachine::TakeSettings(uint64_t round) {
  while (!coming_.empty() && coming_.begin()->first <= round) {
    const uint64_t steps = settings_.steps;  // of the newest, which may hold later
    settings_ = coming_.begin()->second;
    settings_.steps = steps;
    coming_.erase(coming_.begin());
  }
}

void RoundMachine::Apply(const Ticked&, int64_t now_ms, Effects* effects) {
  for (auto& [name, node] : nodes_) {
    if (!node.live || now_ms < node.lease_until_ms) continue;
    EndMembership(&node, Standing::kLeaseEnded);
    effects->push_back(EndLease{name});
  }
}

void RoundMachine::Apply(const StartStateHeld&, int64_t, Effects*) { start_awaited_ = false; }

void RoundMachine::Apply(const RoundPersisted& event, int64_t now_ms, Effects* effects) {
  ISTHMUS_CHECK(phase_ == Phase::kCommitting && event.round == committed_ + 1);
  committed_ = event.round;
  commit_ms_.push_back(now_ms);
  effects->push_back(PublishRound{committed_});
  Advance(now_ms, effects);
}

void RoundMachine::Apply(const RunResumed& event, int64_t now_ms, Effects* effects) {
  ISTHMUS_CHECK(phase_ == Phase::kStarting && committed_ == 0);
  ISTHMUS_CHECK(event.committed_round <= settings_.steps);
  committed_ = event.committed_round;
  TakeSettings(committed_ + 1);
  paused_ = event.paused;
  pause_reason_ = event.pause_reason;
  for (const RunResumed::Policy& said : event.policies) {
    Node& node = Find(said.name);
    node.policy = said.policy;
    node.policy_reason = said.reason;
    node.last_round = said.last_round;
  }
  for (const RunResumed::Node& admitted : event.nodes) {
    Node& node = Find(admitted.name);
    if (node.policy == NodePolicy::kEvict) continue;
    node.live = true;
    node.incarnation = admitted.incarnation;
    node.lease_until_ms = now_ms + settings_.lease_ms;
  }
  // What a member has acknowledged was not kept. It was enough for the round, and the node says it
  // again as soon as it is back.
  for (const std::string& member : event.members) {
    Find(member).acknowledged = committed_ == 0 ? 0 : committed_ - 1;
  }
  next_members_ = event.members;
  start_awaited_ = start_awaited_ && !event.start_state_held;
  if (committed_ > 0) Advance(now_ms, effects);
}

void RoundMachine::Advance(int64_t now_ms, Effects* effects) {
  if (committed_ < settings_.steps) return paused_ ? Pause(now_ms) : Open(now_ms, effects);
  phase_ = Phase::kFinished;
  effects->push_back(FinishRun{committed_});
}

// The members that are listed stay so: who is lost meanwhile and comes back is one of them again.
void RoundMachine::Pause(int64_t now_ms) {
  phase_ = Phase::kPaused;
  opened_ms_ = now_ms;
  for (auto& [name, node] : nodes_) {
    node.standing = Standing::kNotMember;
    node.digest.clear();
    node.reason.clear();
  }
}

void RoundMachine::EndMembership(Node* node, Standing standing) {
  node->live = false;
  node->waiting_for.clear();
  if (node->standing == Standing::kOutstanding) node->standing = standing;
}

void RoundMachine::Decline(const std::string& name, Standing standing, const std::string& reason) {
  Node& node = Find(name);
  if (phase_ != Phase::kOpen || node.standing != Standing::kOutstanding) return;
  node.standing = standing;
  node.reason = reason;
  // An abstention was computed on the base as well. A refused contribution may have said anything.
  if (standing == Standing::kAbstained) {
    node.acknowledged = std::max(node.acknowledged, committed_);
  }
}

void RoundMachine::OpenFirst(int64_t now_ms, Effects* effects) {
  if (phase_ != Phase::kStarting || start_awaited_ || paused_) return;
  const uint32_t ready = Ready();
  if (ready == 0 || ready < Needed()) return;
  next_members_ = MembersAfter(committed_, 0, now_ms);
  Open(now_ms, effects);
}

uint64_t RoundMachine::DueAcknowledgement(uint64_t committed, uint64_t unlisted, int64_t now_ms) {
  while (!commit_ms_.empty() && commit_ms_.front() + settings_.acknowledge_ms <= now_ms) {
    commit_ms_.pop_front();
  }
  // At the commit of a round its contributors have acknowledged the one before it.
  const uint64_t before_last = committed == 0 ? 0 : committed - 1;
  return std::min(before_last, committed - commit_ms_.size() - unlisted);
}

std::vector<std::string> RoundMachine::MembersAfter(uint64_t committed, uint64_t unlisted,
                                                    int64_t now_ms) {
  const uint64_t due = DueAcknowledgement(committed, unlisted, now_ms);
  std::vector<std::string> members;
  for (const auto& [name, node] : nodes_) {
    if (!node.live || node.acknowledged < due) continue;
    if (MayTakePart(node, committed + 1)) members.push_back(name);
  }
  return members;
}

void RoundMachine::Open(int64_t now_ms, Effects* effects) {
  phase_ = Phase::kOpen;
  TakeSettings(committed_ + 1);
  opened_ms_ = now_ms;
  OpenRound opened{committed_ + 1, committed_, committed_ + 1, {}};
  // Those that were listed when the round before this one closed, without who was lost since.
  const uint64_t due = DueAcknowledgement(committed_, 0, now_ms);
  for (auto& [name, node] : nodes_) {
    const bool listed =
        std::find(next_members_.begin(), next_members_.end(), name) != next_members_.end();
    const bool member =
        listed && node.live && node.acknowledged >= due && MayTakePart(node, committed_ + 1);
    node.standing = member ? Standing::kOutstanding : Standing::kNotMember;
    node.digest.clear();
    node.reason.clear();
    if (member) opened.members.push_back(name);
  }
  effects->push_back(std::move(opened));
}

void RoundMachine::TakeInMissing(Effects* effects) {
  if (phase_ != Phase::kOpen) return;
  for (auto& [name, node] : nodes_) {
    if (!BelowQuorum()) return;
    const bool out = node.standing == Standing::kNotMember || node.standing == Standing::kLeft ||
                     node.standing == Standing::kLeaseEnded || node.standing == Standing::kEvicted;
    // Who refused or abstained is not asked again until it joins or sends again by itself.
    if (!out || !HoldsBase(node) || !MayTakePart(node, committed_ + 1)) continue;
    node.standing = Standing::kOutstanding;
    effects->push_back(TakeIn{committed_ + 1, name});
  }
}

void RoundMachine::Close(int64_t now_ms, Effects* effects) {
  if (phase_ != Phase::kOpen) return;
  const Decision decision = Decide(now_ms);
  if (decision.answer == Decision::Answer::kWait) return;
  CommitRound commit{committed_ + 1, {}, decision.answer == Decision::Answer::kCommitVoid, {}};
  for (const auto& [name, node] : nodes_) {
    if (node.standing == Standing::kComplete) commit.included.push_back(name);
  }
  const bool is_last = committed_ + 1 == settings_.steps;
  next_members_ = is_last ? std::vector<std::string>() : MembersAfter(committed_ + 1, 1, now_ms);
  commit.next_members = next_members_;
  phase_ = Phase::kCommitting;
  effects->push_back(std::move(commit));
}

Decision RoundMachine::Decide(int64_t now_ms) const {
  if (phase_ != Phase::kOpen) {
    std::string sentence = paused_ ? PauseSentence() : StartingSentence();
    if (phase_ == Phase::kCommitting) {
      sentence = absl::StrCat("round ", committed_ + 1, ": committing");
    } else if (phase_ == Phase::kFinished) {
      sentence = absl::StrCat("finished: all ", committed_, " rounds are committed");
    }
    return {Decision::Answer::kWait, sentence, sentence};
  }
  const std::string prefix = absl::StrCat("round ", committed_ + 1, ": ");
  const uint32_t complete = Count(Standing::kComplete);
  const uint32_t needed = Needed();
  const bool outstanding = Count(Standing::kOutstanding) > 0;
  if (!outstanding && complete > 0 && complete >= needed) {
    const std::string sentence = absl::StrCat(prefix, "all remaining members are complete");
    return {Decision::Answer::kCommit, sentence, sentence};
  }
  // That all were taken out is no answer: such a round waits for an operator.
  const bool all_declined =
      Declined() > 0 && (NeedsAll() ? needed == 0 : Declined() >= settings_.quorum);
  if (!outstanding && complete == 0 && all_declined) {
    const std::string sentence = absl::StrCat(prefix, "all members refused or abstained");
    return {Decision::Answer::kCommitVoid, sentence, sentence};
  }
  if (complete > 0 && complete >= needed && CloseLeftMs(now_ms) == 0) {
    const std::string sentence =
        absl::StrCat(prefix, "time is up with the quorum, without ", OutstandingSentence());
    return {Decision::Answer::kCommit, sentence, sentence};
  }
  return Wait(now_ms);
}

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

uint32_t RoundMachine::Count(Standing standing) const {
  uint32_t count = 0;
  for (const auto& [name, node] : nodes_) count += node.standing == standing ? 1 : 0;
  return count;
}

int64_t RoundMachine::FirstCompleteMs() const {
  int64_t first_ms = -1;
  for (const auto& [name, node] : nodes_) {
    if (node.standing != Standing::kComplete) continue;
    first_ms = first_ms < 0 ? node.complete_ms : std::min(first_ms, node.complete_ms);
  }
  return first_ms;
}

uint32_t RoundMachine::Declined() const {
  return Count(Standing::kRefused) + Count(Standing::kAbstained);
}

// Where the quorum is all nodes, one that has answered with nothing is not waited for: it would
// compute the same again, and the run would stand for ever. Nor is one that an operator has taken
// out. A smaller quorum is a promise about how many contributions an update has, and stays.
uint32_t RoundMachine::Needed() const {
  if (!NeedsAll()) return settings_.quorum;
  uint32_t needed = settings_.quorum - Declined();
  for (const auto& [name, node] : nodes_) {
    const bool declined =
        node.standing == Standing::kRefused || node.standing == Standing::kAbstained;
    if (!declined && IsOut(node)) --needed;
  }
  return needed;
}

uint32_t RoundMachine::Ready() const {
  uint32_t ready = 0;
  for (const auto& [name, node] : nodes_) {
    ready += HoldsBase(node) && MayTakePart(node, committed_ + 1) ? 1 : 0;
  }
  return ready;
}

bool RoundMachine::MayTakePart(const Node& node, uint64_t round) {
  if (node.policy == NodePolicy::kDrain) return round <= node.last_round;
  return node.policy == NodePolicy::kNone;
}

bool RoundMachine::IsOut(const Node& node) const {
  if (node.policy == NodePolicy::kNone) return false;
  if (node.standing == Standing::kOutstanding || node.standing == Standing::kComplete) return false;
  // A quorum that is a promise may still need it in the round that it finishes.
  return NeedsAll() || !MayTakePart(node, committed_ + 1);
}

uint64_t RoundMachine::LastRoundOf(const std::string& name) const {
  const Node& node = Find(name);
  if (node.policy == NodePolicy::kDrain) return node.last_round;
  const bool counts = node.standing == Standing::kComplete ||
                      (node.standing == Standing::kOutstanding && phase_ == Phase::kOpen);
  return counts && phase_ != Phase::kFinished ? committed_ + 1 : 0;
}

bool RoundMachine::BelowQuorum() const {
  return Count(Standing::kComplete) + Count(Standing::kOutstanding) < Needed();
}

Standing RoundMachine::StandingOf(const std::string& node) const { return Find(node).standing; }

bool RoundMachine::Admits(const std::string& name) const {
  if (phase_ != Phase::kOpen) return false;
  const Node& node = Find(name);
  if (node.standing == Standing::kComplete) return true;
  if (!node.live) return false;
  if (node.standing == Standing::kOutstanding) return true;
  return BelowQuorum() && HoldsBase(node) && MayTakePart(node, committed_ + 1);
}

bool RoundMachine::IsLive(const std::string& node) const { return Find(node).live; }

int64_t RoundMachine::LeaseLeftMs(const std::string& name, int64_t now_ms) const {
  const Node& node = Find(name);
  return node.live ? std::max<int64_t>(0, node.lease_until_ms - now_ms) : 0;
}

int64_t RoundMachine::CloseLeftMs(int64_t now_ms) const {
  if (phase_ != Phase::kOpen) return -1;
  int64_t close_ms = -1;
  if (settings_.deadline_ms > 0) close_ms = opened_ms_ + settings_.deadline_ms;
  const int64_t first_complete_ms = FirstCompleteMs();
  if (!NeedsAll() && first_complete_ms >= 0) {
    const int64_t grace_end_ms = first_complete_ms + settings_.grace_ms;
    close_ms = close_ms < 0 ? grace_end_ms : std::min(close_ms, grace_end_ms);
  }
  return close_ms < 0 ? -1 : std::max<int64_t>(0, close_ms - now_ms);
}

}  // namespace isthmus
