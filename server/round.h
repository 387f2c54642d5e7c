// The round as a pure state machine: (state, event, now) -> (state, effects, one sentence saying
// why it waits). No clock, lock, thread, socket or file in here; time and messages come in as
// arguments, effects go out as values, so that tests and a simulator drive the very code that runs.
//
//   RoundMachine machine(settings);
//   for (const RoundEffect& effect : machine.Step(ContributionComplete{"fra-1", digest}, now)) ...
//   machine.Decide(now).sentence   // "round 7: waiting for fra-2, 14 s to deadline, ..."
//
// The caller's duties, in this order:
//   1. persist   At CommitRound merge the included contributions and make the record durable, in
//                one write with the members of the round that it opens. Then, and not before, step
//                RoundPersisted.
//   2. publish   At PublishRound send the update to the watchers. It comes only after
//                RoundPersisted, so nobody ever sees what a crash could take back.
//   3. apply     Carry the other effects out in the order given (a published round before the next
//                one opens). Every event is stepped at once and one at a time.
//   4. tick      Step Ticked every `tick_ms`. Leases end and deadlines pass only in steps. A gap
//                between two steps that is much longer than that is a pause of this process, and
//                nobody is blamed for it.
//
// Round r builds on the commit of round r - 1 - d, its base (d: overlap), which opens it: so 1 + d
// rounds are open at once, each with its own members, deadline and contributions. They commit in
// order: one that could close waits for those before it. Round 0 is the start state.
// Thread-compatible; copying a machine copies its whole state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "base/limits.h"

namespace isthmus {

struct RoundSettings {
  std::string run;                 // for sentences
  std::vector<std::string> nodes;  // of the run; ascending name is the order of everything
  // Complete contributions a commit needs, 1 to nodes. All nodes: those that refused or abstained,
  // and those that an operator has taken out, are excused.
  uint32_t quorum = 1;
  uint64_t steps = 1;    // rounds until the run is finished
  uint32_t overlap = 0;  // rounds that are open beside the oldest; of all settings the same
  int64_t lease_ms = 15000;
  int64_t deadline_ms = 0;  // after opening; 0: none
  int64_t grace_ms = 5000;  // after the first complete contribution, where quorum < nodes
  int64_t tick_ms = 100;
  // A node may be so late with acknowledging a commit and still be a member of the rounds after it:
  // acknowledgements ride on heartbeats, so a node that keeps up is never behind by more than what
  // was committed in this time, however short the rounds are. 0: only the last two commits count.
  int64_t acknowledge_ms = 0;
  // No round opens before StartStateHeld: the coordinator itself needs the start state. Empty: it
  // does not. Else the node whose state it is, for people.
  std::string start_node;
};

// What an operator says of a node. It outlives admissions, and this process.
enum class NodePolicy {
  kNone,
  kDrain,  // it finishes the rounds that are open, and is a member of no later one
  kEvict,  // it is out at once, with what it sent for open rounds, and may not join
};

// Events. A node's name must be one of the settings' nodes. Those of a node whose lease has ended,
// or that has left, change nothing until it joins again; those of an evicted one, until it is
// admitted again and has joined.
struct NodeJoined {
  std::string node;
  uint64_t incarnation = 0;
  uint64_t holds_round = 0;  // its state has this round's update applied
};
struct NodeAcknowledged {  // also renews the lease
  std::string node;
  uint64_t round = 0;
};
struct NodeHeard {  // renews the lease
  std::string node;
};
struct NodeWaiting {  // what the node itself waits for; empty: nothing
  std::string node;
  std::string sentence;
};
// Of an open round; 0: the oldest one that takes contributions.
struct ContributionComplete {  // all of it is there and checked
  std::string node;
  std::string digest;
  uint64_t round = 0;
};
struct ContributionRefused {
  std::string node;
  std::string reason;
  uint64_t round = 0;
};
struct NodeAbstained {
  std::string node;
  std::string reason;
  uint64_t round = 0;
};
// The node's contribution to an open round could not be taken, for want of room here, and it was
// told to try again: the time until then is not counted against it.
struct NodePushedBack {
  std::string node;
  uint64_t round = 0;
};
struct NodeLeft {
  std::string node;
  std::string reason;  // its own words; may be empty
};
struct NodePolicySet {  // replaces what was said before
  std::string node;
  NodePolicy policy = NodePolicy::kNone;
  std::string reason;  // the operator's words; may be empty
};
struct RunPaused {     // the open rounds finish, and no other opens; again: another reason
  std::string reason;  // the operator's words; may be empty
};
struct RunUnpaused {};
// The node's state is not the run's: what it sent for rounds that take contributions is out, and it
// is a member of none, nor waited for, until it is healed and joins with a state that is right. The
// quorum is at most the number of nodes whose state is right, or none of them could be healed.
struct NodeDiverged {
  std::string node;
  std::string sentence;  // not empty
};
struct NodeHealed {
  std::string node;
};
// Nodes' states differ, and it is for an operator to say who is right: until then it is as with
// RunPaused. Empty: that is settled.
struct StatesDisputed {
  std::string sentence;
};
struct SettingsRevised {    // they hold from a round on that has not opened; `steps` at once
  uint64_t from_round = 0;  // not below that of an earlier one
  RoundSettings settings;   // of the same nodes
};
struct Ticked {};
struct StartStateHeld {};  // settings.start_node's state is here
// The first event of a machine that goes on with a run, but for SettingsRevised: what the store has
// of it. Leases and the round's deadline start afresh, and nothing is complete: a receipt ends with
// the process.
struct RunResumed {
  struct Node {
    std::string name;
    uint64_t incarnation = 0;
  };
  struct Policy {
    std::string name;
    NodePolicy policy = NodePolicy::kNone;
    std::string reason;
    uint64_t last_round = 0;  // as LastRoundOf gave it when it was set
  };
  uint64_t committed_round = 0;
  std::vector<std::string> members;  // of the round after it; none where no round was committed
  std::vector<std::vector<std::string>> later_members;  // of the rounds after that one
  std::vector<Node> nodes;                              // that were admitted and had not left
  std::vector<Policy> policies;
  bool paused = false;
  std::string pause_reason;
  struct Diverged {
    std::string name;
    std::string sentence;
  };
  std::vector<Diverged> diverged;
  std::string dispute;
  bool start_state_held = false;  // read where the settings name a start_node
};
struct RoundPersisted {
  uint64_t round = 0;
};
using RoundEvent =
    std::variant<NodeJoined, NodeAcknowledged, NodeHeard, NodeWaiting, ContributionComplete,
                 ContributionRefused, NodeAbstained, NodePushedBack, NodeLeft, NodePolicySet,
                 RunPaused, RunUnpaused, NodeDiverged, NodeHealed, StatesDisputed, SettingsRevised,
                 Ticked, StartStateHeld, RoundPersisted, RunResumed>;

// Effects.
struct OpenRound {
  uint64_t round = 0;
  uint64_t base_round = 0;
  uint64_t step = 0;  // global step its commit completes: decides learning rate and decay
  std::vector<std::string> members;
};
struct TakeIn {  // a node becomes a member of a round that is open already
  uint64_t round = 0;
  std::string node;
};
struct TakeOut {  // a node was evicted, or its state differs: drop what it sent for an open round,
                  // complete or not
  uint64_t round = 0;
  std::string node;
};
struct CommitRound {
  uint64_t round = 0;
  std::vector<std::string> included;  // ascending
  bool is_void = false;
  // Who is a member of the round that this commit opens; none: no further one opens. From here on
  // they only become fewer, so what is durable with the commit holds all that may come.
  std::vector<std::string> next_members;
  // With overlap: who was of the rounds before that one, ascending from the next one to commit.
  std::vector<std::vector<std::string>> open_members;
};
struct PublishRound {
  uint64_t round = 0;
};
struct EndLease {
  std::string node;
};
struct FinishRun {
  uint64_t round = 0;  // the last one
};
using RoundEffect =
    std::variant<OpenRound, TakeIn, TakeOut, CommitRound, PublishRound, EndLease, FinishRun>;

// So long after it was pushed back a node may be expected to have tried again: it waits as it was
// told, and no longer than its back-off goes.
inline constexpr int64_t kPushedBackMs = kRetryAfterMs + kBackoffMaxMs;

// What a node is to a round that is open or being committed.
enum class Standing {
  kNotMember,    // catching up, drained, or not there
  kOutstanding,  // a member whose contribution is awaited
  kComplete,     // its contribution counts; from here on only an eviction takes it out
  kRefused,
  kAbstained,
  kLeft,
  kLeaseEnded,
  kEvicted,
  kDiverged,
};

// May the oldest open round close, and why not.
struct Decision {
  enum class Answer { kWait, kCommit, kCommitVoid };
  Answer answer = Answer::kWait;
  std::string sentence;  // for people
  std::string cause;     // the sentence without its count-down: a log speaks when this changes
};

class RoundMachine {
 public:
  explicit RoundMachine(const RoundSettings& settings);

  std::vector<RoundEffect> Step(const RoundEvent& event, int64_t now_ms);

  // The one function that decides. It changes nothing.
  Decision Decide(int64_t now_ms) const;

  uint64_t committed_round() const { return committed_; }
  // The oldest round that takes contributions; 0: none.
  uint64_t open_round() const;
  // Whether that one does.
  bool IsOpen(uint64_t round) const { return Taking(round) != nullptr && round != 0; }
  // The newest round that does, or is being committed; 0: none.
  uint64_t newest_round() const { return open_.empty() ? 0 : open_.back().round; }
  // The round between CommitRound and RoundPersisted; 0: none.
  uint64_t committing_round() const { return committing_ ? committed_ + 1 : 0; }
  // The commit that a round builds on.
  uint64_t BaseOf(uint64_t round) const { return round - std::min<uint64_t>(round, 1 + overlap_); }
  bool finished() const { return phase_ == Phase::kFinished; }
  // An operator lets no round open. Some may be open that were so before.
  bool paused() const { return paused_; }
  const std::string& pause_reason() const { return pause_reason_; }
  // Nor does a dispute about whose state is right.
  bool disputed() const { return !dispute_.empty(); }
  bool IsDiverged(const std::string& node) const { return !Find(node).diverged.empty(); }

  // In the oldest round that is open or being committed; where none is, in the last one. And in a
  // round: one that is not open has no members.
  Standing StandingOf(const std::string& node) const;
  Standing StandingIn(const std::string& node, uint64_t round) const;
  const std::string& ReasonOf(const std::string& node) const;
  const std::string& ReasonIn(const std::string& node, uint64_t round) const;
  // Whether a round (0: the oldest that is open) would count a contribution of this node: it is a
  // member, or it refused, abstained or came late and may be taken in because the quorum cannot be
  // reached without it.
  bool Admits(const std::string& node, uint64_t round = 0) const;
  bool IsLive(const std::string& node) const;
  // Until the lease ends; 0 when it has.
  int64_t LeaseLeftMs(const std::string& node, int64_t now_ms) const;
  // Until a round (0: the oldest that is open) may close with the quorum; -1: nothing is set, 0:
  // the time has passed.
  int64_t CloseLeftMs(int64_t now_ms, uint64_t round = 0) const;

  // For people who look on. The nodes that Decide's sentence is about, ascending; none while no
  // node is awaited.
  std::vector<std::string> Awaited() const;
  uint64_t Acknowledged(const std::string& node) const { return Find(node).acknowledged; }
  const std::string& WaitingFor(const std::string& node) const { return Find(node).waiting_for; }
  NodePolicy PolicyOf(const std::string& node) const { return Find(node).policy; }
  const std::string& PolicyReasonOf(const std::string& node) const {
    return Find(node).policy_reason;
  }
  // The last round that the node is a member of when it is drained: the newest of those that are
  // open or being committed where its contribution is awaited or counts, else 0. Of a node that is
  // drained already: as it was then.
  uint64_t LastRoundOf(const std::string& node) const;
  // When the oldest open round opened, or the one committing; in a pause, when nothing was open any
  // more.
  int64_t opened_ms() const { return Front().opened_ms; }

 private:
  enum class Phase { kStarting, kRunning, kFinished };
  struct Node {
    bool live = false;
    uint64_t incarnation = 0;
    int64_t lease_until_ms = 0;
    uint64_t acknowledged = 0;
    std::string waiting_for;
    NodePolicy policy = NodePolicy::kNone;
    std::string policy_reason;
    uint64_t last_round = 0;  // kDrain: a member of no later one
    std::string diverged;     // how its state differs from the run's; empty: it does not
  };
  // What a node is to a round.
  struct Part {
    Standing standing = Standing::kNotMember;
    std::string digest;       // kComplete
    int64_t complete_ms = 0;  // kComplete
    std::string reason;       // kRefused, kAbstained, kLeft, kEvicted, kDiverged
    // From the first time that it was pushed back until it may be expected after the last.
    int64_t held_up_from_ms = 0;
    int64_t held_up_until_ms = 0;  // the same: it was not
  };
  struct Opened {
    uint64_t round = 0;
    RoundSettings settings;  // that hold in it
    int64_t opened_ms = 0;
    std::vector<std::string> members;  // as it opened
    std::map<std::string, Part> parts;
  };
  using Effects = std::vector<RoundEffect>;

  void Apply(const NodeJoined& event, int64_t now_ms, Effects* effects);
  void Apply(const NodeAcknowledged& event, int64_t now_ms, Effects* effects);
  void Apply(const NodeHeard& event, int64_t now_ms, Effects* effects);
  void Apply(const NodeWaiting& event, int64_t now_ms, Effects* effects);
  void Apply(const ContributionComplete& event, int64_t now_ms, Effects* effects);
  void Apply(const ContributionRefused& event, int64_t now_ms, Effects* effects);
  void Apply(const NodeAbstained& event, int64_t now_ms, Effects* effects);
  void Apply(const NodePushedBack& event, int64_t now_ms, Effects* effects);
  void Apply(const NodeLeft& event, int64_t now_ms, Effects* effects);
  void Apply(const NodePolicySet& event, int64_t now_ms, Effects* effects);
  void Apply(const RunPaused& event, int64_t now_ms, Effects* effects);
  void Apply(const RunUnpaused& event, int64_t now_ms, Effects* effects);
  void Apply(const NodeDiverged& event, int64_t now_ms, Effects* effects);
  void Apply(const NodeHealed& event, int64_t now_ms, Effects* effects);
  void Apply(const StatesDisputed& event, int64_t now_ms, Effects* effects);
  void Apply(const SettingsRevised& event, int64_t now_ms, Effects* effects);
  void Apply(const Ticked& event, int64_t now_ms, Effects* effects);
  void Apply(const StartStateHeld& event, int64_t now_ms, Effects* effects);
  void Apply(const RoundPersisted& event, int64_t now_ms, Effects* effects);
  void Apply(const RunResumed& event, int64_t now_ms, Effects* effects);

  Node& Find(const std::string& node);
  const Node& Find(const std::string& node) const;
  static const Part& PartOf(const Opened& at, const std::string& node);
  // What a sentence is about: the oldest round that is open or being committed, else what was last.
  const Opened& Front() const { return open_.empty() ? idle_ : open_.front(); }
  // The round if it takes contributions, 0: the oldest that does; null: it does not.
  const Opened* Taking(uint64_t round) const;
  Opened* Taking(uint64_t round);
  const Opened* FindRound(uint64_t round) const;  // or is being committed
  void ForgiveOwnPause(int64_t now_ms);
  void EndMembership(const std::string& name, Standing standing);
  // And what it sent does not count where the round takes contributions.
  void TakeOutNode(const std::string& name, Standing standing, const std::string& reason,
                   Effects* effects);
  // No round opens, whatever else holds.
  bool blocked() const { return paused_ || !dispute_.empty(); }
  void Decline(uint64_t round, const std::string& name, Standing standing,
               const std::string& reason);
  void Advance(int64_t now_ms, Effects* effects);
  void TakeSettings(uint64_t round);
  // Opens what is due.
  void Open(int64_t now_ms, Effects* effects);
  void OpenOne(uint64_t round, int64_t now_ms, Effects* effects);
  void OpenFirst(int64_t now_ms, Effects* effects);
  // No node is anything to it.
  Opened Idle() const;
  void TakeInMissing(Opened* at, Effects* effects);
  void Close(int64_t now_ms, Effects* effects);

  bool HoldsBase(const Node& node, uint64_t round) const {
    return node.live && node.acknowledged >= BaseOf(round);
  }
  bool Admits(const std::string& name, const Opened& at) const;
  // Whether what operators said lets it be a member of a round.
  static bool MayTakePart(const Node& node, uint64_t round);
  // An operator has taken it out, and nothing of it is awaited for the round's commit.
  bool IsOut(const std::string& name, const Opened& at) const;
  bool NeedsAll(const Opened& at) const { return at.settings.quorum == nodes_.size(); }
  uint32_t Ready() const;
  uint32_t Needed(const Opened& at) const;
  uint32_t CountDiverged() const;
  bool BelowQuorum(const Opened& at) const;
  static uint32_t Count(const Opened& at, Standing standing);
  static uint32_t Declined(const Opened& at);
  static int64_t FirstCompleteMs(const Opened& at);  // -1: none yet
  static int64_t HeldUpMs(const Opened& at);
  int64_t CloseLeftMs(const Opened& at, int64_t now_ms) const;
  Decision Wait(int64_t now_ms) const;
  std::string StartingSentence() const;
  std::string OutstandingSentence() const;
  std::string MissingSentence() const;
  std::string PolicySentence() const;
  std::string BlockedSentence() const;
  std::string AlsoOpenSentence() const;
  std::string Describe(const std::string& name) const;

  // The last commit that a node must have acknowledged to be in step when `committed` is the last
  // one, `unlisted` of which are not in commit_ms_ yet.
  uint64_t DueAcknowledgement(uint64_t committed, uint64_t unlisted, int64_t now_ms);

  // Who would be a member of a round that the commit of round `committed` opens now.
  std::vector<std::string> MembersOf(uint64_t round, uint64_t committed, uint64_t unlisted,
                                     int64_t now_ms);

  uint32_t overlap_;
  RoundSettings settings_;                    // of the round that opened last, or the first one
  std::map<uint64_t, RoundSettings> coming_;  // by the first round they hold in
  std::map<std::string, Node> nodes_;
  std::deque<Opened> open_;  // ascending without gaps from committed_ + 1; at most 1 + overlap_
  bool committing_ = false;  // the first of them
  Opened idle_;              // while none is open
  std::deque<int64_t> commit_ms_;  // when the last commits were made; none older than is of use
  // Members of rounds that a commit has listed and that are not open yet.
  std::map<uint64_t, std::vector<std::string>> listed_;
  Phase phase_ = Phase::kStarting;
  bool paused_ = false;
  std::string pause_reason_;
  std::string dispute_;
  bool start_awaited_;  // no round opens yet
  uint64_t committed_ = 0;
  int64_t last_step_ms_ = -1;  // -1: none yet
};

}  // namespace isthmus
