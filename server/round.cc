#include "server/round.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"

namespace isthmus {

RoundMachine::RoundMachine(const RoundSettings& settings)
    : overlap_(settings.overlap),
      settings_(settings),
      start_awaited_(!settings.start_node.empty()) {
  for (const std::string& node : settings.nodes) nodes_[node];
  ISTHMUS_CHECK(settings.quorum >= 1 && settings.quorum <= nodes_.size());
  ISTHMUS_CHECK(settings.steps >= 1 && settings.overlap <= kOverlapMax);
  idle_ = Idle();
}

RoundMachine::Opened RoundMachine::Idle() const {
  Opened idle{committed_ + 1, settings_, idle_.opened_ms, {}, {}};
  for (const auto& [name, node] : nodes_) idle.parts[name];
  return idle;
}

std::vector<RoundEffect> RoundMachine::Step(const RoundEvent& event, int64_t now_ms) {
  ForgiveOwnPause(now_ms);
  Effects effects;
  std::visit([&](const auto& known) { Apply(known, now_ms, &effects); }, event);
  OpenFirst(now_ms, &effects);
  for (Opened& at : open_) TakeInMissing(&at, &effects);
  Close(now_ms, &effects);
  return effects;
}

void RoundMachine::ForgiveOwnPause(int64_t now_ms) {
  const int64_t gap_ms = last_step_ms_ < 0 ? 0 : now_ms - last_step_ms_ - settings_.tick_ms;
  last_step_ms_ = now_ms;
  if (gap_ms <= kOwnPauseMs) return;
  // While we slept nobody could reach us: what ran out in that time is not theirs to answer for.
  for (auto& [name, node] : nodes_) node.lease_until_ms += gap_ms;
  for (Opened& at : open_) {
    at.opened_ms += gap_ms;
    for (auto& [name, part] : at.parts) {
      part.complete_ms += gap_ms;
      // The gap is forgiven once.
      const bool held_up = part.held_up_until_ms > part.held_up_from_ms;
      if (held_up) part.held_up_from_ms += gap_ms;
      if (held_up) part.held_up_until_ms += gap_ms;
    }
  }
  idle_.opened_ms += gap_ms;
}

void RoundMachine::Apply(const NodeJoined& event, int64_t now_ms, Effects*) {
  Node& node = Find(event.node);
  if (node.policy == NodePolicy::kEvict || !node.diverged.empty()) return;
  node.live = true;
  node.incarnation = event.incarnation;
  node.lease_until_ms = now_ms + settings_.lease_ms;
  node.acknowledged = event.holds_round;
  node.waiting_for.clear();
  // Membership and a complete contribution stay. A new incarnation may do better than the one that
  // refused or abstained, so it can be taken in again like one that had left.
  for (Opened& at : open_) {
    Part& part = at.parts[event.node];
    if (part.standing != Standing::kRefused && part.standing != Standing::kAbstained) continue;
    part.standing = Standing::kLeft;
    part.reason.clear();
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
  Opened* const at = Taking(event.round);
  if (at == nullptr || !Admits(event.node, *at)) return;
  Part& part = at->parts[event.node];
  if (part.standing == Standing::kComplete) return;  // the one that is held stands
  part.standing = Standing::kComplete;
  part.digest = event.digest;
  part.complete_ms = now_ms;
  part.reason.clear();
  Node& node = Find(event.node);
  node.acknowledged = std::max(node.acknowledged, BaseOf(at->round));  // it was computed on it
}

void RoundMachine::Apply(const ContributionRefused& event, int64_t, Effects*) {
  Decline(event.round, event.node, Standing::kRefused, event.reason);
}

void RoundMachine::Apply(const NodeAbstained& event, int64_t, Effects*) {
  Decline(event.round, event.node, Standing::kAbstained, event.reason);
}

void RoundMachine::Apply(const NodePushedBack& event, int64_t now_ms, Effects*) {
  Opened* const at = Taking(event.round);
  if (at == nullptr || event.round == 0) return;
  Part& part = at->parts[event.node];
  if (part.standing != Standing::kOutstanding) return;
  if (part.held_up_until_ms == part.held_up_from_ms) part.held_up_from_ms = now_ms;
  part.held_up_until_ms = now_ms + kPushedBackMs;
}

void RoundMachine::Apply(const NodeLeft& event, int64_t, Effects*) {
  EndMembership(event.node, Standing::kLeft);
  for (Opened& at : open_) {
    Part& part = at.parts[event.node];
    if (part.standing == Standing::kLeft) part.reason = event.reason;
  }
}

void RoundMachine::Apply(const NodePolicySet& event, int64_t, Effects* effects) {
  Node& node = Find(event.node);
  node.last_round = event.policy == NodePolicy::kDrain ? LastRoundOf(event.node) : 0;
  node.policy = event.policy;
  node.policy_reason = event.reason;
  if (event.policy != NodePolicy::kEvict) return;
  TakeOutNode(event.node, Standing::kEvicted, event.reason, effects);
}

void RoundMachine::TakeOutNode(const std::string& name, Standing standing,
                               const std::string& reason, Effects* effects) {
  EndMembership(name, standing);
  for (Opened& at : open_) {
    if (at.round == committing_round()) continue;  // in a round that has closed it stays
    Part& part = at.parts[name];
    part.standing = standing;
    part.digest.clear();
    part.reason = reason;
    effects->push_back(TakeOut{at.round, name});
  }
}

void RoundMachine::Apply(const NodeDiverged& event, int64_t, Effects* effects) {
  Find(event.node).diverged = event.sentence;
  TakeOutNode(event.node, Standing::kDiverged, event.sentence, effects);
}

void RoundMachine::Apply(const NodeHealed& event, int64_t, Effects*) {
  Find(event.node).diverged.clear();
}

void RoundMachine::Apply(const StatesDisputed& event, int64_t now_ms, Effects* effects) {
  dispute_ = event.sentence;
  if (phase_ == Phase::kRunning) Open(now_ms, effects);
}

void RoundMachine::Apply(const RunPaused& event, int64_t, Effects*) {
  paused_ = true;
  pause_reason_ = event.reason;
}

void RoundMachine::Apply(const RunUnpaused&, int64_t now_ms, Effects* effects) {
  paused_ = false;
  pause_reason_.clear();
  if (phase_ == Phase::kRunning) Open(now_ms, effects);
}

void RoundMachine::Apply(const SettingsRevised& event, int64_t, Effects*) {
  ISTHMUS_CHECK(event.settings.quorum >= 1 && event.settings.quorum <= nodes_.size());
  ISTHMUS_CHECK(event.settings.steps >= event.from_round && event.settings.overlap == overlap_);
  settings_.steps = event.settings.steps;
  coming_[event.from_round] = event.settings;
  // What the run begins or goes on with is asked for before a round opens.
  if (!open_.empty()) return;
  TakeSettings(committed_ + 1);
  idle_.settings = settings_;
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
    EndMembership(name, Standing::kLeaseEnded);
    effects->push_back(EndLease{name});
  }
}

void RoundMachine::Apply(const StartStateHeld&, int64_t, Effects*) { start_awaited_ = false; }

void RoundMachine::Apply(const RoundPersisted& event, int64_t now_ms, Effects* effects) {
  ISTHMUS_CHECK(committing_ && event.round == committed_ + 1);
  committed_ = event.round;
  committing_ = false;
  idle_ = std::move(open_.front());
  open_.pop_front();
  commit_ms_.push_back(now_ms);
  effects->push_back(PublishRound{committed_});
  Advance(now_ms, effects);
}

void RoundMachine::Apply(const RunResumed& event, int64_t now_ms, Effects* effects) {
  ISTHMUS_CHECK(phase_ == Phase::kStarting && committed_ == 0);
  ISTHMUS_CHECK(event.committed_round <= settings_.steps);
  committed_ = event.committed_round;
  TakeSettings(committed_ + 1);
  idle_ = Idle();
  paused_ = event.paused;
  pause_reason_ = event.pause_reason;
  for (const RunResumed::Policy& said : event.policies) {
    Node& node = Find(said.name);
    node.policy = said.policy;
    node.policy_reason = said.reason;
    node.last_round = said.last_round;
  }
  dispute_ = event.dispute;
  for (const RunResumed::Diverged& said : event.diverged) Find(said.name).diverged = said.sentence;
  for (const RunResumed::Node& admitted : event.nodes) {
    Node& node = Find(admitted.name);
    if (node.policy == NodePolicy::kEvict || !node.diverged.empty()) continue;
    node.live = true;
    node.incarnation = admitted.incarnation;
    node.lease_until_ms = now_ms + settings_.lease_ms;
  }
  if (committed_ > 0) {
    listed_[committed_ + 1] = event.members;
    for (size_t i = 0; i < event.later_members.size(); ++i) {
      listed_[committed_ + 2 + i] = event.later_members[i];
    }
  }
  // What a member has acknowledged was not kept. It was enough for the round, and the node says it
  // again as soon as it is back.
  for (const auto& [round, members] : listed_) {
    for (const std::string& member : members) Find(member).acknowledged = BaseOf(committed_);
  }
  start_awaited_ = start_awaited_ && !event.start_state_held;
  if (committed_ > 0) Advance(now_ms, effects);
}

// A pause ends what is open, and opens nothing. The members that are listed stay so: who is lost
// meanwhile and comes back is one of them again.
void RoundMachine::Advance(int64_t now_ms, Effects* effects) {
  if (committed_ == settings_.steps) {
    phase_ = Phase::kFinished;
    effects->push_back(FinishRun{committed_});
    return;
  }
  phase_ = Phase::kRunning;
  Open(now_ms, effects);
  if (!open_.empty()) return;
  idle_ = Idle();
  idle_.opened_ms = now_ms;
}

void RoundMachine::EndMembership(const std::string& name, Standing standing) {
  Node& node = Find(name);
  node.live = false;
  node.waiting_for.clear();
  for (Opened& at : open_) {
    Part& part = at.parts[name];
    if (part.standing == Standing::kOutstanding) part.standing = standing;
  }
}

void RoundMachine::Decline(uint64_t round, const std::string& name, Standing standing,
                           const std::string& reason) {
  Opened* const at = Taking(round);
  if (at == nullptr) return;
  Part& part = at->parts[name];
  if (part.standing != Standing::kOutstanding) return;
  part.standing = standing;
  part.reason = reason;
  // An abstention was computed on the base as well. A refused contribution may have said anything.
  if (standing != Standing::kAbstained) return;
  Node& node = Find(name);
  node.acknowledged = std::max(node.acknowledged, BaseOf(at->round));
}

void RoundMachine::OpenFirst(int64_t now_ms, Effects* effects) {
  if (phase_ != Phase::kStarting || start_awaited_ || blocked()) return;
  const uint32_t ready = Ready();
  if (ready == 0 || ready < Needed(idle_)) return;
  phase_ = Phase::kRunning;
  Open(now_ms, effects);
}

uint64_t RoundMachine::DueAcknowledgement(uint64_t committed, uint64_t unlisted, int64_t now_ms) {
  while (!commit_ms_.empty() && commit_ms_.front() + settings_.acknowledge_ms <= now_ms) {
    commit_ms_.pop_front();
  }
  // At the commit of a round its contributors have acknowledged the one that it builds on.
  return std::min(BaseOf(committed), committed - commit_ms_.size() - unlisted);
}

std::vector<std::string> RoundMachine::MembersOf(uint64_t round, uint64_t committed,
                                                 uint64_t unlisted, int64_t now_ms) {
  const uint64_t due = DueAcknowledgement(committed, unlisted, now_ms);
  std::vector<std::string> members;
  for (const auto& [name, node] : nodes_) {
    if (!node.live || node.acknowledged < due) continue;
    if (MayTakePart(node, round)) members.push_back(name);
  }
  return members;
}

void RoundMachine::Open(int64_t now_ms, Effects* effects) {
  while (!blocked()) {
    const uint64_t round = open_.empty() ? committed_ + 1 : open_.back().round + 1;
    if (round > settings_.steps || BaseOf(round) > committed_) return;
    OpenOne(round, now_ms, effects);
  }
}

void RoundMachine::OpenOne(uint64_t round, int64_t now_ms, Effects* effects) {
  TakeSettings(round);
  // Those that were listed when its base was committed, without who was lost since. None were for
  // the first rounds, and where a revision has put off the end of the run.
  const auto kept = listed_.find(round);
  const std::vector<std::string> listed =
      kept != listed_.end() ? kept->second : MembersOf(round, committed_, 0, now_ms);
  listed_.erase(round);
  OpenRound opened{round, BaseOf(round), round, {}};
  const uint64_t due = DueAcknowledgement(committed_, 0, now_ms);
  Opened at{round, settings_, now_ms, {}, {}};
  for (auto& [name, node] : nodes_) {
    const bool is_listed = std::find(listed.begin(), listed.end(), name) != listed.end();
    const bool member =
        is_listed && node.live && node.acknowledged >= due && MayTakePart(node, round);
    at.parts[name].standing = member ? Standing::kOutstanding : Standing::kNotMember;
    if (member) opened.members.push_back(name);
  }
  at.members = opened.members;
  open_.push_back(std::move(at));
  effects->push_back(std::move(opened));
}

void RoundMachine::TakeInMissing(Opened* at, Effects* effects) {
  if (at->round == committing_round()) return;
  for (auto& [name, node] : nodes_) {
    if (!BelowQuorum(*at)) return;
    Part& part = at->parts[name];
    const bool out = part.standing == Standing::kNotMember || part.standing == Standing::kLeft ||
                     part.standing == Standing::kLeaseEnded ||
                     part.standing == Standing::kEvicted || part.standing == Standing::kDiverged;
    // Who refused or abstained is not asked again until it joins or sends again by itself.
    if (!out || !HoldsBase(node, at->round) || !MayTakePart(node, at->round)) continue;
    part.standing = Standing::kOutstanding;
    effects->push_back(TakeIn{at->round, name});
  }
}

void RoundMachine::Close(int64_t now_ms, Effects* effects) {
  if (open_.empty() || committing_) return;
  const Decision decision = Decide(now_ms);
  if (decision.answer == Decision::Answer::kWait) return;
  const Opened& at = open_.front();
  CommitRound commit;
  commit.round = at.round;
  commit.is_void = decision.answer == Decision::Answer::kCommitVoid;
  for (const auto& [name, part] : at.parts) {
    if (part.standing == Standing::kComplete) commit.included.push_back(name);
  }
  const uint64_t next = at.round + 1 + overlap_;
  if (next <= settings_.steps) {
    listed_[next] = commit.next_members = MembersOf(next, at.round, 1, now_ms);
  }
  for (size_t i = 1; i < open_.size(); ++i) commit.open_members.push_back(open_[i].members);
  for (const auto& [round, members] : listed_) {
    if (round < next) commit.open_members.push_back(members);
  }
  committing_ = true;
  effects->push_back(std::move(commit));
}

Decision RoundMachine::Decide(int64_t now_ms) const {
  if (open_.empty() || committing_) {
    std::string sentence = blocked() ? BlockedSentence() : StartingSentence();
    if (committing_) {
      sentence = absl::StrCat("round ", committed_ + 1, ": committing");
    } else if (phase_ == Phase::kFinished) {
      sentence = absl::StrCat("finished: all ", committed_, " rounds are committed");
    }
    return {Decision::Answer::kWait, sentence, sentence};
  }
  const Opened& at = open_.front();
  const std::string prefix = absl::StrCat("round ", at.round, ": ");
  const uint32_t complete = Count(at, Standing::kComplete);
  const uint32_t needed = Needed(at);
  const bool outstanding = Count(at, Standing::kOutstanding) > 0;
  if (!outstanding && complete > 0 && complete >= needed) {
    const std::string sentence = absl::StrCat(prefix, "all remaining members are complete");
    return {Decision::Answer::kCommit, sentence, sentence};
  }
  // That all were taken out is no answer: such a round waits for an operator.
  const bool all_declined =
      Declined(at) > 0 && (NeedsAll(at) ? needed == 0 : Declined(at) >= needed);
  if (!outstanding && complete == 0 && all_declined) {
    const std::string sentence = absl::StrCat(prefix, "all members refused or abstained");
    return {Decision::Answer::kCommitVoid, sentence, sentence};
  }
  if (complete > 0 && complete >= needed && CloseLeftMs(at, now_ms) == 0) {
    const std::string sentence =
        absl::StrCat(prefix, "time is up with the quorum, without ", OutstandingSentence());
    return {Decision::Answer::kCommit, sentence, sentence};
  }
  return Wait(now_ms);
}

}  // namespace isthmus
