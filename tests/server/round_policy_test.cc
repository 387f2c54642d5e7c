// What operators say of nodes, against everything else that may happen: random events, and what
// must hold after each of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/round.h"

namespace isthmus {
namespace {

constexpr int kRuns = 2000;
constexpr int kEvents = 120;

// Steps a machine with random events and keeps a plain record beside it.
class RandomRun {
 public:
  explicit RandomRun(uint32_t seed) : random_(seed), machine_(Settings()) {}

  void Go() {
    for (int i = 0; i < kEvents && !testing::Test::HasFailure(); ++i) {
      now_ms_ += Below(5) == 0 ? Below(900) : 0;
      Step(AnyEvent());
      if (Below(4) == 0) Step(Ticked{});
      CheckSaidTwice();
    }
  }

  // From here on everybody who may take part does all it can: the run must go on.
  void CheckItGoesOn() {
    uint32_t able = 0;
    for (const std::string& node : settings_.nodes) {
      able += machine_.PolicyOf(node) == NodePolicy::kNone ? 1 : 0;
    }
    const bool all = settings_.quorum == settings_.nodes.size();
    if (able == 0 || (!all && able < settings_.quorum) || machine_.finished()) return;
    const uint64_t before = machine_.committed_round();
    for (int turn = 0; turn < 4 && machine_.committed_round() == before; ++turn) {
      for (const std::string& node : settings_.nodes) {
        // One that drains has stopped, after its last round or in the middle of it.
        if (machine_.PolicyOf(node) == NodePolicy::kDrain) Step(NodeLeft{node, "stopped"});
        if (machine_.PolicyOf(node) != NodePolicy::kNone) continue;
        Step(NodeJoined{node, ++incarnation_, machine_.committed_round()});
      }
      if (machine_.committing_round() != 0) Step(RoundPersisted{machine_.committing_round()});
      for (const std::string& node : settings_.nodes) {
        if (machine_.PolicyOf(node) == NodePolicy::kNone) Step(ContributionComplete{node, "d"});
      }
      now_ms_ += settings_.grace_ms;
      Step(Ticked{});
      if (machine_.committing_round() != 0) Step(RoundPersisted{machine_.committing_round()});
    }
    EXPECT_GT(machine_.committed_round(), before) << machine_.Decide(now_ms_).sentence;
  }

 private:
  int64_t Below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(random_); }

  RoundSettings Settings() {
    const int64_t nodes = 1 + Below(4);
    for (int64_t i = 0; i < nodes; ++i) settings_.nodes.push_back(absl::StrCat("n", i));
    settings_.quorum = static_cast<uint32_t>(Below(2) == 0 ? nodes : 1 + Below(nodes));
    settings_.steps = 1000;
    settings_.overlap = static_cast<uint32_t>(Below(3));
    settings_.lease_ms = 3000;
    settings_.grace_ms = 500;
    return settings_;
  }

  RoundEvent AnyEvent() {
    const std::string node =
        settings_.nodes[static_cast<size_t>(Below(static_cast<int64_t>(settings_.nodes.size())))];
    if (machine_.committing_round() != 0 && Below(3) == 0) {
      return RoundPersisted{machine_.committing_round()};
    }
    const uint64_t oldest = machine_.open_round();
    const int64_t open =
        oldest == 0 ? 1 : static_cast<int64_t>(machine_.newest_round() - oldest) + 1;
    const uint64_t round = oldest + static_cast<uint64_t>(Below(open));
    switch (Below(12)) {
      case 0:
      case 1:
        return NodeJoined{node, ++incarnation_, machine_.committed_round()};
      case 2:
        return NodeAcknowledged{node, machine_.committed_round()};
      case 3:
        return NodeAbstained{node, "nothing", round};
      case 4:
        return ContributionRefused{node, "wrong", round};
      case 5:
        return NodeLeft{node, ""};
      case 6:
        return NodePolicySet{node, NodePolicy::kDrain, "r"};
      case 7:
        return NodePolicySet{node, NodePolicy::kEvict, "r"};
      case 8:
        return NodePolicySet{node, NodePolicy::kNone, ""};
      default:
        return ContributionComplete{node, "d", round};
    }
  }

  void Step(const RoundEvent& event) {
    if (const auto* said = std::get_if<NodePolicySet>(&event)) Note(*said);
    const auto* complete = std::get_if<ContributionComplete>(&event);
    if (complete != nullptr && machine_.Admits(complete->node, complete->round)) {
      counted_[complete->round == 0 ? machine_.open_round() : complete->round].insert(
          complete->node);
    }
    for (const RoundEffect& effect : machine_.Step(event, now_ms_)) {
      std::visit([this](const auto& known) { Check(known); }, effect);
    }
    for (const std::string& node : settings_.nodes) {
      if (machine_.PolicyOf(node) != NodePolicy::kEvict) continue;
      EXPECT_FALSE(machine_.IsLive(node));
      EXPECT_FALSE(machine_.Admits(node));
    }
  }

  void Note(const NodePolicySet& said) {
    last_round_[said.node] =
        said.policy == NodePolicy::kDrain ? machine_.LastRoundOf(said.node) : 0;
    if (said.policy != NodePolicy::kEvict) return;
    for (auto& [round, nodes] : counted_) {
      if (machine_.IsOpen(round)) nodes.erase(said.node);
    }
  }

  // Whether the node may be a member of the round, by what was said of it.
  bool MayTakePart(const std::string& node, uint64_t round) {
    const NodePolicy policy = machine_.PolicyOf(node);
    return policy == NodePolicy::kNone ||
           (policy == NodePolicy::kDrain && round <= last_round_[node]);
  }

  void Check(const OpenRound& effect) {
    for (const std::string& node : effect.members) EXPECT_TRUE(MayTakePart(node, effect.round));
  }
  void Check(const TakeIn& effect) { EXPECT_TRUE(MayTakePart(effect.node, effect.round)); }
  void Check(const TakeOut& effect) {
    EXPECT_EQ(machine_.PolicyOf(effect.node), NodePolicy::kEvict);
  }
  void Check(const CommitRound& effect) {
    const std::set<std::string>& nodes = counted_[effect.round];
    const std::vector<std::string> counted(nodes.begin(), nodes.end());
    EXPECT_EQ(effect.included, counted);
    const bool all = settings_.quorum == settings_.nodes.size();
    if (!all && !effect.is_void) {
      EXPECT_GE(effect.included.size(), settings_.quorum);
    }
    EXPECT_EQ(effect.included.empty(), effect.is_void);
    for (const std::string& node : effect.next_members) {
      EXPECT_TRUE(MayTakePart(node, effect.round + 1 + settings_.overlap));
    }
  }
  // In order, one after the other.
  void Check(const PublishRound& effect) { EXPECT_EQ(effect.round, ++published_); }
  void Check(const EndLease&) {}
  void Check(const FinishRun&) {}

  // To say the same again changes nothing.
  void CheckSaidTwice() {
    for (const std::string& node : settings_.nodes) {
      const std::string sentence = machine_.Decide(now_ms_).sentence;
      const NodePolicy policy = machine_.PolicyOf(node);
      for (const RoundEffect& effect :
           machine_.Step(NodePolicySet{node, policy, machine_.PolicyReasonOf(node)}, now_ms_)) {
        EXPECT_TRUE(std::holds_alternative<TakeOut>(effect));  // of nothing
      }
      EXPECT_EQ(machine_.Decide(now_ms_).sentence, sentence);
    }
  }

  std::mt19937 random_;
  RoundSettings settings_;
  RoundMachine machine_;
  int64_t now_ms_ = 0;
  uint64_t incarnation_ = 0;
  uint64_t published_ = 0;
  std::map<uint64_t, std::set<std::string>> counted_;  // complete, by round
  std::map<std::string, uint64_t> last_round_;
};

TEST(RoundPolicy, HoldsWhateverElseHappens) {
  for (uint32_t seed = 1; seed <= kRuns; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomRun run(seed);
    run.Go();
    run.CheckItGoesOn();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace isthmus
