// Another spec for a run under way: who hears of it, from which round on it holds, and that it
// holds over restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "server/monitor_view.h"
#include "spec/run_spec.h"
#include "tests/server/fakes.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

uint32_t Bits(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Nodes a and b, on a store that outlives a coordinator; round 1 is committed, round 2 open.
class UpdateRunTest : public ::testing::Test {
 protected:
  void Begin(uint64_t steps = 20) {
    spec_ = TestSpec({"a", "b"}, 0, steps);
    store_ = MakeMemoryStore();
    Start();
    a_->JoinAndWatch();
    b_->JoinAndWatch();
    Round(1);
  }
  void Start() {
    coordinator_ = nullptr;
    coordinator_ = std::make_unique<TestCoordinator>(spec_, store_);
    if (a_ == nullptr) a_ = std::make_unique<FakeNode>(host(), "a");
    if (b_ == nullptr) b_ = std::make_unique<FakeNode>(host(), "b");
    a_->Reconnect(host());
    b_->Reconnect(host());
  }
  // Both take part in the round that is open, whose opening is next on their watches.
  void Round(uint64_t round) {
    opened_ = a_->ExpectOpened(round);
    b_->ExpectOpened(round);
    Send(round);
  }
  void Send(uint64_t round) {
    ASSERT_TRUE(a_->SubmitRandom(round, 2 * round).ok());
    ASSERT_TRUE(b_->SubmitRandom(round, 2 * round + 1).ok());
    for (FakeNode* node : {a_.get(), b_.get()}) {
      last_ = node->ExpectUpdate(round);
      ASSERT_TRUE(node->Beat(round).ok());
    }
  }
  absl::StatusOr<v1::UpdateRunResponse> Update(const std::vector<std::string>& set,
                                               uint64_t from_round = 0, bool dry_run = false) {
    v1::UpdateRunRequest request;
    for (const std::string& field : set) request.add_set(field);
    request.set_from_round(from_round);
    request.set_dry_run(dry_run);
    return host()->UpdateRun(request);
  }
  std::string Refused(const std::vector<std::string>& set, uint64_t from_round = 0) {
    const auto updated = Update(set, from_round);
    EXPECT_FALSE(updated.ok());
    return std::string(updated.status().message());
  }
  static v1::SpecRevised ExpectRevised(FakeNode* node, uint64_t revision, uint64_t from_round) {
    const v1::WatchUpdatesResponse event = node->reader->NextEvent();
    EXPECT_EQ(event.revised().revision(), revision) << event.ShortDebugString();
    EXPECT_EQ(event.revised().from_round(), from_round);
    return event.revised();
  }
  v1::Run View() const {
    return ViewOfRun(coordinator_->host->Look(), RoundHistory::Pace(), /*with_spec=*/true);
  }
  Coordinator* host() { return coordinator_->host.get(); }

  v1::RunSpec spec_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<TestCoordinator> coordinator_;
  std::unique_ptr<FakeNode> a_, b_;
  v1::RoundOpened opened_;
  ReceivedUpdate last_;
};

TEST_F(UpdateRunTest, ARevisionHoldsFromItsRoundOnAndIsInEveryRecord) {
  Begin();
  EXPECT_EQ(opened_.spec_revision(), 1u);
  a_->ExpectOpened(2);
  b_->ExpectOpened(2);
  const auto updated = Update({"optimizer.lr=0.5", "optimizer.weight_decay=0.25"});
  ASSERT_TRUE(updated.ok()) << updated.status();
  EXPECT_EQ(updated->revision(), 2u);
  EXPECT_EQ(updated->from_round(), 3u);
  ASSERT_EQ(updated->changes_size(), 2);
  EXPECT_EQ(updated->changes(0).field(), "optimizer.lr");
  EXPECT_EQ(View().spec_revision(), 1u);
  ASSERT_EQ(View().coming_revisions_size(), 1);
  EXPECT_EQ(View().coming_revisions(0).from_round(), 3u);
  for (FakeNode* node : {a_.get(), b_.get()}) {
    EXPECT_EQ(ExpectRevised(node, 2, 3).spec().optimizer().lr(), 0.5f);
  }
  Send(2);
  EXPECT_EQ(last_.record.spec_revision(), 1u);
  EXPECT_EQ(last_.record.lr_bits(), Bits(LearningRate(spec_, 2)));
  EXPECT_EQ(last_.record.weight_decay_bits(), Bits(0.0f));

  Round(3);
  v1::RunSpec second = spec_;
  second.mutable_optimizer()->set_lr(0.5f);
  EXPECT_EQ(opened_.spec_revision(), 2u);
  EXPECT_EQ(opened_.lr_bits(), Bits(LearningRate(second, 3)));
  EXPECT_EQ(last_.record.spec_revision(), 2u);
  EXPECT_EQ(last_.record.lr_bits(), opened_.lr_bits());
  EXPECT_EQ(last_.record.weight_decay_bits(), Bits(0.25f));
  EXPECT_EQ(View().spec_revision(), 2u);
  EXPECT_EQ(View().spec().optimizer().lr(), 0.5f);
  EXPECT_EQ(View().coming_revisions_size(), 0);
  // The same again changes nothing.
  EXPECT_EQ(Update({"optimizer.lr=0.5"})->changes_size(), 0);
  EXPECT_EQ(Update({"optimizer.lr=0.5"})->revision(), 2u);
}

TEST_F(UpdateRunTest, ADryRunOnlySaysWhatWouldChange) {
  Begin();
  const auto updated = Update({"optimizer.lr=0.5"}, 0, /*dry_run=*/true);
  ASSERT_TRUE(updated.ok()) << updated.status();
  EXPECT_EQ(updated->revision(), 2u);
  EXPECT_EQ(updated->from_round(), 3u);
  Round(2);  // nobody was told
  Round(3);
  EXPECT_EQ(last_.record.spec_revision(), 1u);
}

TEST_F(UpdateRunTest, RestartsKeepRevisionAndRound) {
  Begin();
  ASSERT_TRUE(Update({"optimizer.lr=0.5"}, 3).ok());
  ASSERT_TRUE(Update({"timing.deadline_ms=1000", "quorum=1"}, 4).ok());
  Start();
  // One that has round 1 joins with the spec of round 2, and hears of the later ones.
  for (FakeNode* node : {a_.get(), b_.get()}) {
    node->JoinAndWatch();
    EXPECT_EQ(node->joined.spec_revision(), 1u);
    EXPECT_EQ(node->joined.spec().optimizer().lr(), spec_.optimizer().lr());
    ExpectRevised(node, 2, 3);
    ExpectRevised(node, 3, 4);
  }
  Round(2);
  Round(3);
  EXPECT_EQ(last_.record.spec_revision(), 2u);
  Start();
  for (FakeNode* node : {a_.get(), b_.get()}) {
    node->JoinAndWatch();
    EXPECT_EQ(node->joined.spec_revision(), 3u);
    ExpectRevised(node, 3, 4);
  }
  // Who only asks for the spec gets that of the open round.
  v1::JoinRunRequest ask;
  EXPECT_EQ(host()->JoinRun(ask)->spec_revision(), 3u);
  EXPECT_EQ(a_->ExpectOpened(4).spec_revision(), 3u);
  b_->ExpectOpened(4);
  ASSERT_TRUE(a_->SubmitRandom(4, 9).ok());
  EXPECT_THAT(host()->WaitingFor(), HasSubstr("1 s to deadline, quorum 1 of 2 reached"));
  coordinator_->Pass(1100, {a_.get(), b_.get()});
  EXPECT_EQ(a_->ExpectUpdate(4).record.included_size(), 1);
}

TEST_F(UpdateRunTest, ARevisionBeforeAnybodyHasJoinedLasts) {
  spec_ = TestSpec({"a", "b"}, 0, 20);
  store_ = MakeMemoryStore();
  Start();
  EXPECT_EQ(Update({"quorum=1"})->from_round(), 1u);
  Start();
  a_->JoinAndWatch();
  EXPECT_EQ(a_->joined.spec_revision(), 2u);
  EXPECT_EQ(a_->joined.spec().quorum(), 1u);
  ExpectRevised(a_.get(), 2, 1);
  EXPECT_EQ(a_->ExpectOpened(1).spec_revision(), 2u);
}

TEST_F(UpdateRunTest, RefusalsSayWhatMayNotChangeAndFromWhen) {
  Begin();
  EXPECT_THAT(Refused({"seed=7", "codec.chunk_side=32", "optimizer.lr=0.5"}),
              AllOf(HasSubstr("a run keeps seed (0 -> 7), codec.chunk_side (64 -> 32)"),
                    HasSubstr("runs fork")));
  EXPECT_THAT(Refused({"optimizer.lr=0"}), HasSubstr("optimizer.lr is 0"));
  EXPECT_THAT(Refused({"optimizer.lr=0.5"}, 2),
              HasSubstr("from_round is 2, but round 2 is open or closed; give round 3"));
  EXPECT_THAT(Refused({"optimizer.lr=0.5"}, 30), HasSubstr("the run ends with round 20"));
  ASSERT_TRUE(Update({"optimizer.lr=0.5"}, 10).ok());
  EXPECT_THAT(Refused({"optimizer.lr=0.25"}, 9), HasSubstr("revision 2 holds from round 10 on"));
  // In place of one that has not come yet; and without a round, with it.
  EXPECT_EQ(Update({"optimizer.lr=0.25"})->from_round(), 10u);
  v1::UpdateRunRequest other;
  other.set_run("other");
  EXPECT_EQ(ReasonOf(host()->UpdateRun(other).status()), "UNKNOWN_RUN");
}

TEST_F(UpdateRunTest, AFinishedRunStaysAsItIs) {
  Begin(2);
  Round(2);
  EXPECT_THAT(Refused({"optimizer.lr=0.5"}), HasSubstr("is finished; fork it"));
}

}  // namespace
}  // namespace isthmus
