// Whose state becomes the next snapshot, and when the one that came counts.
#include "server/snapshot_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/limits.h"
#include "base/sha256.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Answer = SnapshotPlan::Verdict::Answer;
using Names = std::vector<std::string>;

const Names kThree = {"a", "b", "c"};

std::string State(const std::string& name) { return Sha256Of(name); }

v1::StoredSnapshot SnapshotOf(uint64_t round) {
  v1::StoredSnapshot snapshot;
  snapshot.mutable_facts()->set_round(round);
  return snapshot;
}

// Begins the plan for this round, which must be wanted.
void Begin(SnapshotPlan* plan, uint64_t round, const Names& members, int64_t now_ms = 0) {
  const auto proposed = plan->Propose(round, members);
  ASSERT_TRUE(proposed.has_value());
  plan->Begin(*proposed, now_ms);
}

// Who is asked for the state after that round; empty: it is not wanted.
std::string Asked(const SnapshotPlan& plan, uint64_t round, const Names& members) {
  const auto proposed = plan.Propose(round, members);
  return proposed.has_value() ? proposed->node() : "";
}

class SnapshotPlanTest : public ::testing::Test {
 protected:
  SnapshotPlan::Verdict Judge(uint64_t committed_round = 100) const {
    return plan_.Judge([this](const std::string& node) { return gone_.count(node) == 0; },
                       committed_round, now_ms_);
  }
  void Whole(const std::string& state) { plan_.Whole(State(state), State(state), now_ms_); }

  SnapshotPlan plan_{10};
  std::set<std::string> gone_;
  int64_t now_ms_ = 1000;
};

TEST_F(SnapshotPlanTest, TheLastRoundsStateTakesThePlaceOfOneUnderWay) {
  SnapshotPlan plan(10, /*steps=*/14);
  Begin(&plan, 10, kThree);
  EXPECT_EQ(Asked(plan, 13, kThree), "");
  Begin(&plan, 14, kThree);
  plan.Report("b", 14, State("last"));
  plan.Whole(State("last"), State("last"), now_ms_);
  EXPECT_EQ(plan.Judge([](const std::string&) { return true; }, 14, now_ms_).answer,
            Answer::kAccept);
}

TEST_F(SnapshotPlanTest, AStateIsWantedEverySoManyRoundsFromTheLastOne) {
  EXPECT_EQ(Asked(plan_, 9, kThree), "");
  EXPECT_EQ(Asked(plan_, 10, kThree), "a");
  EXPECT_EQ(Asked(plan_, 13, kThree), "a");  // later is late, not too late
  EXPECT_EQ(Asked(plan_, 13, {}), "");
  const auto proposed = plan_.Propose(13, kThree);
  EXPECT_EQ(Names(proposed->members().begin(), proposed->members().end()), kThree);
  EXPECT_EQ(plan_.plan(), nullptr);  // nothing was begun
  Begin(&plan_, 13, kThree);
  EXPECT_EQ(Asked(plan_, 30, kThree), "");  // one at a time
  Whole("x");
  plan_.Accepted();
  EXPECT_EQ(Asked(plan_, 22, kThree), "");
  EXPECT_EQ(Asked(plan_, 23, kThree), "a");
}

TEST_F(SnapshotPlanTest, WhatIsAskedForComesOnceWhateverTheScheduleSays) {
  plan_.Want();
  EXPECT_EQ(Asked(plan_, 3, kThree), "a");
  Begin(&plan_, 3, kThree);
  Whole("x");
  plan_.Accepted();
  EXPECT_EQ(Asked(plan_, 4, kThree), "");
}

// Nodes that drift apart have no common state, whoever asks.
TEST_F(SnapshotPlanTest, NeverIsNever) {
  SnapshotPlan never(0);
  EXPECT_EQ(Asked(never, 1000000, kThree), "");
  never.Want();
  EXPECT_EQ(Asked(never, 1000000, kThree), "");
}

TEST_F(SnapshotPlanTest, OneUploadsTheOthersReport) {
  EXPECT_EQ(plan_.DutyOf("a", 0), v1::SNAPSHOT_DUTY_UNSPECIFIED);
  Begin(&plan_, 10, kThree);
  EXPECT_EQ(plan_.DutyOf("a", 10), v1::SNAPSHOT_DUTY_UPLOAD);
  EXPECT_EQ(plan_.DutyOf("b", 10), v1::SNAPSHOT_DUTY_REPORT);
  for (uint64_t round : {9u, 11u}) {
    EXPECT_EQ(plan_.DutyOf("a", round), v1::SNAPSHOT_DUTY_UNSPECIFIED);
  }
}

TEST_F(SnapshotPlanTest, AfterAFailureTheNextMemberIsAskedForTheNextRound) {
  Begin(&plan_, 10, kThree);
  plan_.GaveUp();
  EXPECT_EQ(Asked(plan_, 11, {"a"}), "a");  // there is no other
  EXPECT_EQ(Asked(plan_, 11, {"a", "c"}), "c");
  Begin(&plan_, 11, kThree);
  EXPECT_EQ(plan_.plan()->node(), "b");
  plan_.GaveUp();
  Begin(&plan_, 12, kThree);
  EXPECT_EQ(plan_.plan()->node(), "c");  // two that cannot must not take turns
  plan_.GaveUp();
  Begin(&plan_, 13, kThree);
  EXPECT_EQ(plan_.plan()->node(), "a");
  Whole("x");
  plan_.Accepted();
  EXPECT_EQ(Asked(plan_, 23, kThree), "a");
}

TEST_F(SnapshotPlanTest, NothingIsJudgedWithoutAPlan) {
  plan_.Report("a", 10, State("x"));
  Whole("x");
  plan_.Progress(now_ms_);
  EXPECT_FALSE(plan_.whole());
  EXPECT_EQ(Judge().answer, Answer::kWait);
}

TEST_F(SnapshotPlanTest, ASingleMemberIsItsOwnMajority) {
  Begin(&plan_, 10, {"a"});
  EXPECT_EQ(Judge().answer, Answer::kWait);
  Whole("x");
  EXPECT_TRUE(plan_.whole());
  EXPECT_EQ(Judge().answer, Answer::kAccept);
}

TEST_F(SnapshotPlanTest, MoreThanHalfOfTheMembersDecideAtOnce) {
  Begin(&plan_, 10, kThree);
  plan_.Report("b", 10, State("x"));
  EXPECT_EQ(Judge().answer, Answer::kWait);
  Whole("x");
  EXPECT_EQ(Judge().answer, Answer::kAccept);  // c is not waited for
}

TEST_F(SnapshotPlanTest, ADifferingMinorityIsOutvoted) {
  Begin(&plan_, 10, kThree);
  Whole("x");
  plan_.Report("b", 10, State("y"));
  const SnapshotPlan::Verdict verdict = Judge();
  EXPECT_EQ(verdict.answer, Answer::kWait);
  EXPECT_THAT(verdict.sentence, AllOf(HasSubstr("reports of c"), testing::Not(HasSubstr("b"))));
  plan_.Report("c", 10, State("x"));
  EXPECT_EQ(Judge().answer, Answer::kAccept);
}

TEST_F(SnapshotPlanTest, ADifferingMajorityRefusesIt) {
  Begin(&plan_, 10, kThree);
  Whole("x");
  plan_.Report("b", 10, State("y"));
  plan_.Report("c", 10, State("y"));
  const SnapshotPlan::Verdict verdict = Judge();
  EXPECT_EQ(verdict.answer, Answer::kGiveUp);
  EXPECT_THAT(verdict.sentence, AllOf(HasSubstr("2 of 3 members report another state"),
                                      HasSubstr("b " + HexPrefix(State("y")))));
}

TEST_F(SnapshotPlanTest, OneAgainstOneIsNoMajority) {
  Begin(&plan_, 10, {"a", "b"});
  Whole("x");
  plan_.Report("b", 10, State("y"));
  EXPECT_EQ(Judge().answer, Answer::kGiveUp);
}

TEST_F(SnapshotPlanTest, ReportsOfOthersAndOfOtherRoundsDoNotCount) {
  Begin(&plan_, 10, kThree);
  Whole("x");
  plan_.Report("d", 10, State("x"));
  plan_.Report("b", 9, State("x"));
  EXPECT_EQ(Judge().answer, Answer::kWait);
  // The last word of a node counts.
  plan_.Report("b", 10, State("y"));
  plan_.Report("b", 10, State("x"));
  EXPECT_EQ(Judge().answer, Answer::kAccept);
}

TEST_F(SnapshotPlanTest, MissingReportsAreWaitedForAWhile) {
  Begin(&plan_, 10, {"a", "b", "c", "d"});
  Whole("x");
  now_ms_ += kSnapshotVerdictMs - 1;
  EXPECT_THAT(Judge().sentence, HasSubstr("waiting for the reports of b, c, d"));
  now_ms_ += 1;
  EXPECT_EQ(Judge().answer, Answer::kAccept);  // of those that reported
  plan_.Report("b", 10, State("y"));
  EXPECT_EQ(Judge().answer, Answer::kGiveUp);
}

TEST_F(SnapshotPlanTest, ThoseWhoAreGoneAreNotWaitedFor) {
  Begin(&plan_, 10, kThree);
  Whole("x");
  gone_ = {"a", "b", "c"};  // also the uploader: all of it is there
  EXPECT_EQ(Judge().answer, Answer::kAccept);
  plan_.Report("b", 10, State("y"));  // what it said before it went counts
  EXPECT_EQ(Judge().answer, Answer::kGiveUp);
}

TEST_F(SnapshotPlanTest, PiecesThatAreNotWhatWasSaidAreGivenUp) {
  Begin(&plan_, 10, {"a"});
  plan_.Whole(State("damaged"), State("x"), now_ms_);
  const SnapshotPlan::Verdict verdict = Judge();
  EXPECT_EQ(verdict.answer, Answer::kGiveUp);
  EXPECT_THAT(verdict.sentence, AllOf(HasSubstr("hash to " + HexPrefix(State("damaged"))),
                                      HasSubstr("'a' says " + HexPrefix(State("x")))));
}

TEST_F(SnapshotPlanTest, AnUploaderThatIsGoneIsGivenUpAtOnce) {
  Begin(&plan_, 10, kThree);
  gone_ = {"a"};
  for (uint64_t committed : {9u, 10u}) {
    EXPECT_EQ(Judge(committed).answer, Answer::kGiveUp);
    EXPECT_THAT(Judge(committed).sentence, HasSubstr("'a', which was to upload it, is gone"));
  }
}

TEST_F(SnapshotPlanTest, SilenceCountsFromTheCommitOfTheRound) {
  Begin(&plan_, 10, kThree, now_ms_);
  now_ms_ += 100 * kSnapshotStallMs;
  EXPECT_EQ(Judge(9).answer, Answer::kWait);  // a round may take as long as it likes
  plan_.Progress(now_ms_);                    // it is committed
  now_ms_ += kSnapshotStallMs - 1;
  EXPECT_EQ(Judge(10).answer, Answer::kWait);
  EXPECT_THAT(Judge(10).sentence, HasSubstr("waiting for node 'a'"));
  plan_.Progress(now_ms_);  // a piece
  now_ms_ += kSnapshotStallMs - 1;
  EXPECT_EQ(Judge(11).answer, Answer::kWait);
  now_ms_ += 1;
  EXPECT_EQ(Judge(11).answer, Answer::kGiveUp);
  EXPECT_THAT(Judge(11).sentence, HasSubstr("nothing of it came from node 'a'"));
}

TEST_F(SnapshotPlanTest, NothingOfOnePlanIsLeftForTheNext) {
  Begin(&plan_, 10, kThree);
  Whole("x");
  plan_.Report("b", 10, State("y"));
  plan_.Report("c", 10, State("y"));
  plan_.GaveUp();
  EXPECT_EQ(plan_.plan(), nullptr);
  Begin(&plan_, 11, kThree, now_ms_);
  EXPECT_FALSE(plan_.whole());
  EXPECT_EQ(Judge(11).answer, Answer::kWait);
  Whole("x");
  EXPECT_EQ(Judge(11).answer, Answer::kWait);  // reports of round 10 are not of this one
}

TEST_F(SnapshotPlanTest, ARestartGoesOnWithThePlanUnlessItsSnapshotCounts) {
  v1::StoredSnapshotPlan kept;
  kept.set_round(10);
  kept.set_node("b");
  for (const std::string& member : kThree) kept.add_members(member);

  plan_.Resume(absl::nullopt, {}, now_ms_);
  EXPECT_EQ(plan_.plan(), nullptr);
  EXPECT_EQ(Asked(plan_, 10, kThree), "a");

  SnapshotPlan done(10);
  done.Resume(kept, {SnapshotOf(5), SnapshotOf(10)}, now_ms_);
  EXPECT_EQ(done.plan(), nullptr);
  EXPECT_EQ(Asked(done, 19, kThree), "");
  EXPECT_EQ(Asked(done, 20, kThree), "a");

  plan_.Resume(kept, {SnapshotOf(5)}, now_ms_);
  ASSERT_NE(plan_.plan(), nullptr);
  EXPECT_EQ(plan_.DutyOf("b", 10), v1::SNAPSHOT_DUTY_UPLOAD);
  EXPECT_EQ(Judge(10).answer, Answer::kWait);
  now_ms_ += kSnapshotStallMs;  // from the start, not from what another process saw
  EXPECT_EQ(Judge(10).answer, Answer::kGiveUp);
}

// The start state is a plan too, of round 0.
TEST_F(SnapshotPlanTest, ARestartKnowsThatTheStartStateIsThere) {
  v1::StoredSnapshotPlan start;
  start.set_node("b");
  start.add_members("b");
  SnapshotPlan done(10);
  done.Resume(start, {SnapshotOf(0)}, now_ms_);
  EXPECT_EQ(done.plan(), nullptr);
  plan_.Resume(start, {}, now_ms_);
  ASSERT_NE(plan_.plan(), nullptr);
  EXPECT_EQ(plan_.DutyOf("b", 0), v1::SNAPSHOT_DUTY_UPLOAD);
}

}  // namespace
}  // namespace isthmus
