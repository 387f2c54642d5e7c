#include "server/state_judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace isthmus {
namespace {

using Kind = StateJudge::Verdict::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;

const auto kAllLive = [](const std::string&) { return true; };

std::string Hash(char letter) { return std::string(32, letter); }

class StateJudgeTest : public testing::Test {
 protected:
  // A round that all nodes have reported, one letter each; '.': not.
  void Round(uint64_t round, const std::string& states) {
    judge_.Closed(round, nodes_);
    for (size_t i = 0; i < states.size(); ++i) {
      if (states[i] != '.') judge_.Report(nodes_[i], round, Hash(states[i]), now_ms_);
    }
  }
  StateJudge::Verdict Judge() const { return judge_.Judge(kAllLive, now_ms_); }
  StateJudge::Verdict JudgeAndAccept() {
    const StateJudge::Verdict verdict = Judge();
    if (verdict.kind != Kind::kNothing) judge_.Accept(verdict);
    return verdict;
  }
  // As a coordinator that starts again.
  void Restart() {
    const v1::StoredStateCheck stored = judge_.Stored();
    judge_ = StateJudge(nodes_);
    judge_.Resume(stored);
  }
  std::string Refusal(const std::string& node) const {
    return std::string(judge_.Choose(node).status().message());
  }

  std::vector<std::string> nodes_ = {"a", "b", "c"};
  StateJudge judge_{nodes_};
  int64_t now_ms_ = 1000;
};

TEST_F(StateJudgeTest, NothingIsSaidOfEqualStates) {
  Round(100, "XXX");
  EXPECT_EQ(Judge().kind, Kind::kNothing);
  EXPECT_EQ(judge_.agreed_round(), 100u);
  EXPECT_EQ(judge_.RightAfter(100), Hash('X'));
  EXPECT_EQ(judge_.RightAfter(200), "");
}

TEST_F(StateJudgeTest, AMinorityHeals) {
  Round(100, "XXX");
  Round(200, "XXY");
  const StateJudge::Verdict verdict = JudgeAndAccept();
  EXPECT_EQ(verdict.kind, Kind::kHeal);
  EXPECT_EQ(verdict.round, 200u);
  EXPECT_EQ(verdict.right, Hash('X'));
  EXPECT_THAT(verdict.diverged, ElementsAre("c"));
  ASSERT_NE(judge_.Find("c"), nullptr);
  EXPECT_EQ(judge_.Find("a"), nullptr);
  EXPECT_EQ(Judge().kind, Kind::kNothing);  // it is said once

  // Until it is healed nothing that it says counts.
  judge_.Report("c", 200, Hash('Z'), now_ms_);
  EXPECT_EQ(Judge().kind, Kind::kNothing);
  judge_.Healed("c");
  EXPECT_EQ(judge_.Find("c"), nullptr);
  judge_.Report("c", 200, Hash('X'), now_ms_);
  EXPECT_EQ(Judge().kind, Kind::kNothing);
  EXPECT_EQ(judge_.Stored().diverged_count(), 1u);
  EXPECT_EQ(judge_.Stored().healed_count(), 1u);
}

TEST_F(StateJudgeTest, MoreThanHalfOfTheMembersNeedNoOtherReport) {
  nodes_ = {"a", "b", "c", "d", "e"};
  judge_ = StateJudge(nodes_);
  Round(100, "XX.Y.");
  EXPECT_EQ(Judge().kind, Kind::kNothing);  // two may still be of another mind
  judge_.Report("e", 100, Hash('X'), now_ms_);
  EXPECT_THAT(Judge().diverged, ElementsAre("d"));
}

TEST_F(StateJudgeTest, MembersThatAreSilentAreWaitedForForAWhile) {
  nodes_ = {"a", "b", "c", "d", "e"};
  judge_ = StateJudge(nodes_);
  Round(100, "XX.Y.");
  now_ms_ += kStateVerdictMs - 1;
  EXPECT_EQ(Judge().kind, Kind::kNothing);
  now_ms_ += 1;
  EXPECT_THAT(JudgeAndAccept().diverged, ElementsAre("d"));  // of those that reported
  // It stays so.
  judge_.Report("c", 100, Hash('Y'), now_ms_);
  judge_.Report("e", 100, Hash('Y'), now_ms_);
  EXPECT_THAT(JudgeAndAccept().diverged, ElementsAre("c", "e"));
}

TEST_F(StateJudgeTest, MembersThatAreGoneAreNotWaitedFor) {
  Round(100, "XY.");
  EXPECT_EQ(Judge().kind, Kind::kNothing);
  const auto without_c = [](const std::string& node) { return node != "c"; };
  EXPECT_EQ(judge_.Judge(without_c, now_ms_).kind, Kind::kDispute);
}

TEST_F(StateJudgeTest, OneReportDecidesNothing) {
  Round(100, "X..");
  now_ms_ += 10 * kStateVerdictMs;
  EXPECT_EQ(Judge().kind, Kind::kNothing);
  EXPECT_EQ(judge_.agreed_round(), 0u);
  judge_.Report("b", 100, Hash('Y'), now_ms_);
  EXPECT_EQ(Judge().kind, Kind::kDispute);
}

TEST_F(StateJudgeTest, WhoIsNoMemberHasNoVoiceButHeals) {
  judge_.Closed(100, {"a", "b"});
  judge_.Report("a", 100, Hash('X'), now_ms_);
  judge_.Report("c", 100, Hash('Y'), now_ms_);
  EXPECT_EQ(Judge().kind, Kind::kNothing);
  judge_.Report("b", 100, Hash('X'), now_ms_);
  EXPECT_THAT(Judge().diverged, ElementsAre("c"));
}

TEST_F(StateJudgeTest, WithoutAMajorityNobodyIsRight) {
  Round(100, "XXX");
  Round(200, "XYZ");
  const StateJudge::Verdict verdict = JudgeAndAccept();
  EXPECT_EQ(verdict.kind, Kind::kDispute);
  EXPECT_THAT(verdict.states, ElementsAre(Key("a"), Key("b"), Key("c")));
  ASSERT_NE(judge_.dispute(), nullptr);
  EXPECT_EQ(judge_.dispute()->agreed_round(), 100u);
  const std::string sentence = DisputeSentence("first", *judge_.dispute());
  EXPECT_THAT(sentence, HasSubstr("after round 200"));
  for (const char* node : {" on a", " on b", " on c"}) EXPECT_THAT(sentence, HasSubstr(node));
  EXPECT_THAT(sentence, HasSubstr("the last round in agreement is 100"));
  EXPECT_THAT(sentence, HasSubstr("isthmusctl runs choose first --node=NODE"));
  EXPECT_EQ(Judge().kind, Kind::kNothing);
  // What follows waits for the choice.
  Round(300, "XYZ");
  EXPECT_EQ(Judge().kind, Kind::kNothing);
}

TEST_F(StateJudgeTest, ALateReportEndsADispute) {
  Round(100, "XY.");
  now_ms_ += kStateVerdictMs;
  EXPECT_EQ(JudgeAndAccept().kind, Kind::kDispute);
  judge_.Report("c", 100, Hash('Y'), now_ms_);
  const StateJudge::Verdict verdict = JudgeAndAccept();
  EXPECT_THAT(verdict.diverged, ElementsAre("a"));
  EXPECT_EQ(judge_.dispute(), nullptr);
  EXPECT_EQ(Judge().kind, Kind::kNothing);
}

TEST_F(StateJudgeTest, ADisputeEndsWithTheNodeThatAnOperatorTakesOut) {
  Round(100, "XY.");
  now_ms_ += kStateVerdictMs;
  EXPECT_EQ(JudgeAndAccept().kind, Kind::kDispute);
  judge_.Forget("a");
  EXPECT_EQ(JudgeAndAccept().kind, Kind::kSettled);
  EXPECT_EQ(judge_.dispute(), nullptr);
}

TEST_F(StateJudgeTest, TwoAgainstTwoAreNoMajority) {
  nodes_ = {"a", "b", "c", "d"};
  judge_ = StateJudge(nodes_);
  Round(100, "XYXY");
  EXPECT_EQ(JudgeAndAccept().kind, Kind::kDispute);
  const auto chosen = judge_.Choose("d");
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_THAT(chosen->diverged, ElementsAre("a", "c"));
}

TEST_F(StateJudgeTest, AnOperatorChooses) {
  EXPECT_THAT(Refusal("a"), HasSubstr("there is nothing to choose"));
  Round(100, "XY.");
  now_ms_ += kStateVerdictMs;
  EXPECT_EQ(JudgeAndAccept().kind, Kind::kDispute);
  EXPECT_THAT(Refusal("c"), HasSubstr("node 'c' has not said"));
  const auto chosen = judge_.Choose("b");
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->right, Hash('Y'));
  EXPECT_THAT(chosen->diverged, ElementsAre("a"));
  const v1::StoredStateCheck after = judge_.After(*chosen);
  EXPECT_NE(judge_.dispute(), nullptr);  // that was only asked for
  judge_.Accept(*chosen);
  EXPECT_EQ(judge_.Stored().SerializeAsString(), after.SerializeAsString());
  EXPECT_EQ(judge_.dispute(), nullptr);

  for (int restarts = 0; restarts < 2; ++restarts) {
    const auto again = judge_.Choose("b");
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->kind, Kind::kNothing);
    EXPECT_THAT(Refusal("a"), HasSubstr("was chosen"));
    Restart();
  }
  // The one that was silent has what was not chosen.
  judge_.Report("c", 100, Hash('X'), now_ms_);
}

TEST_F(StateJudgeTest, ADisputeOutlivesTheProcess) {
  Round(100, "XXX");
  Round(200, "XY.");
  now_ms_ += kStateVerdictMs;
  EXPECT_EQ(JudgeAndAccept().kind, Kind::kDispute);
  Restart();
  now_ms_ = 0;  // of another machine's clock
  EXPECT_EQ(Judge().kind, Kind::kNothing);
  ASSERT_NE(judge_.dispute(), nullptr);
  EXPECT_EQ(judge_.dispute()->agreed_round(), 100u);
  const auto chosen = judge_.Choose("a");
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_THAT(chosen->diverged, ElementsAre("b"));
}

TEST_F(StateJudgeTest, WhoHealsOutlivesTheProcess) {
  Round(100, "XXY");
  EXPECT_EQ(JudgeAndAccept().kind, Kind::kHeal);
  Restart();
  ASSERT_NE(judge_.Find("c"), nullptr);
  EXPECT_EQ(judge_.Find("c")->round(), 100u);
  EXPECT_EQ(judge_.Find("c")->right_sha256(), Hash('X'));
  // Reports come again, also of rounds that nobody has closed since.
  judge_.Report("a", 100, Hash('X'), now_ms_);
  judge_.Report("b", 100, Hash('Z'), now_ms_);
  EXPECT_EQ(Judge().kind, Kind::kDispute);
}

TEST_F(StateJudgeTest, AStateThatNobodyHoldsAnyMoreIsNotRight) {
  nodes_ = {"a", "b"};
  judge_ = StateJudge(nodes_);
  judge_.Closed(100, {"a"});  // b was away
  judge_.Report("a", 100, Hash('X'), now_ms_);
  judge_.Report("b", 100, Hash('Y'), now_ms_);
  EXPECT_THAT(JudgeAndAccept().diverged, ElementsAre("b"));
  // a is lost, and computes the round again from its checkpoint.
  judge_.Report("a", 100, Hash('Y'), now_ms_);
  EXPECT_EQ(Judge().kind, Kind::kNothing);
  EXPECT_EQ(judge_.RightAfter(100), Hash('Y'));
}

TEST_F(StateJudgeTest, WhoHostsTheModelIsRight) {
  judge_ = StateJudge(nodes_, /*hosted=*/true);
  Round(100, "YYY");
  now_ms_ += kStateVerdictMs;
  EXPECT_EQ(Judge().kind, Kind::kNothing);
  judge_.Host(100, Hash('X'));
  EXPECT_THAT(JudgeAndAccept().diverged, ElementsAre("a", "b", "c"));
}

TEST_F(StateJudgeTest, SnapshotsOfADivergedNodeAreDistrustedFromItsLastRightStateOn) {
  std::vector<v1::StoredSnapshot> snapshots;
  for (const auto& [round, node] :
       std::map<uint64_t, std::string>{{90, "c"}, {150, "b"}, {160, "c"}, {210, "c"}}) {
    v1::StoredSnapshot& snapshot = snapshots.emplace_back();
    snapshot.mutable_facts()->set_round(round);
    snapshot.set_node(node);
  }
  Round(100, "XXX");
  Round(200, "XXY");
  StateJudge::Verdict verdict = Judge();
  verdict.distrusted = judge_.Suspects(verdict, snapshots);
  EXPECT_THAT(verdict.distrusted, ElementsAre(160, 210));
  judge_.Accept(verdict);
  Restart();
  EXPECT_TRUE(judge_.Distrusts(160));
  EXPECT_FALSE(judge_.Distrusts(90));
}

TEST_F(StateJudgeTest, OldRoundsAreForgotten) {
  for (uint64_t round = 1; round <= 1000; ++round) Round(round, "XXX");
  judge_.Report("a", 1, Hash('Y'), now_ms_);  // of a life long ago
  EXPECT_EQ(Judge().kind, Kind::kNothing);
  EXPECT_EQ(judge_.RightAfter(1000 - kCheckedRoundsKept), "");
  EXPECT_EQ(judge_.RightAfter(1001 - kCheckedRoundsKept), Hash('X'));
  EXPECT_EQ(judge_.agreed_round(), 1000u);
  // A round in dispute is not forgotten.
  Round(1001, "XYZ");
  EXPECT_EQ(JudgeAndAccept().kind, Kind::kDispute);
  for (uint64_t round = 1002; round <= 2000; ++round) Round(round, "XYZ");
  EXPECT_TRUE(judge_.Choose("a").ok());
}

// What rule 16 says, as plainly as it can be said.
struct Plain {
  std::set<std::string> diverged;
  bool dispute = false;
};

Plain PlainVerdict(const std::map<std::string, std::string>& reports) {
  Plain plain;
  for (const auto& [node, right] : reports) {
    size_t same = 0;
    for (const auto& [other, sha256] : reports) same += sha256 == right ? 1 : 0;
    if (2 * same <= reports.size()) continue;
    for (const auto& [other, sha256] : reports) {
      if (sha256 != right) plain.diverged.insert(other);
    }
    return plain;
  }
  plain.dispute = !reports.empty();
  return plain;
}

TEST_F(StateJudgeTest, AgreesWithThePlainRule) {
  for (uint32_t seed = 1; seed <= 5000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    nodes_.clear();
    const size_t count = 1 + random() % 7;
    for (size_t i = 0; i < count; ++i) nodes_.push_back(std::string(1, static_cast<char>('a' + i)));
    judge_ = StateJudge(nodes_);
    std::map<std::string, std::string> reports;
    for (const std::string& node : nodes_) {
      if (random() % 8 == 0) continue;  // silent
      reports[node] = Hash(static_cast<char>('X' + random() % 3));
    }
    judge_.Closed(100, nodes_);
    std::vector<std::string> order = nodes_;
    std::shuffle(order.begin(), order.end(), random);
    for (const std::string& node : order) {
      if (reports.count(node) != 0) judge_.Report(node, 100, reports[node], now_ms_);
    }
    now_ms_ += kStateVerdictMs;
    const Plain plain = PlainVerdict(reports);
    const StateJudge::Verdict verdict = Judge();
    EXPECT_EQ(verdict.kind == Kind::kDispute, plain.dispute);
    EXPECT_EQ(std::set<std::string>(verdict.diverged.begin(), verdict.diverged.end()),
              plain.diverged);
  }
}

}  // namespace
}  // namespace isthmus
