// Agents, ranks and coordinators that die in the middle of a round.
#include "gmock/gmock.h"
#include "tests/worker/agent_harness.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

class AgentFaultsTest : public AgentTest {
 protected:
  bool CoordinatorSays(const std::string& text) {
    return Eventually(
        [&] { return coordinator_->host().WaitingFor().find(text) != std::string::npos; });
  }
  // Node a with two ranks, node b with one; round 1 is open.
  void StartTwoNodes() {
    StartRun({"a", "b"}, 2);
    StartAgent("a", 2);
    StartAgent("b", 1);
    a_ = JoinAll("a", 2);
    b_ = JoinAll("b", 1);
    opened_ = Opened(a_);
    Opened(b_);
  }
  void ExpectAllIncluded() {
    for (const auto* clients : {&a_, &b_}) {
      const auto updates = Updates(*clients);
      ASSERT_EQ(updates.size(), clients->size());
      for (const RankClient::Update& update : updates) {
        EXPECT_EQ(update.committed->record.round(), 1U);
        EXPECT_EQ(update.committed->record.included_size(), 2);
        EXPECT_TRUE(update.included);
      }
      EXPECT_EQ(Opened(*clients).round(), 2U);
    }
  }

  std::vector<std::unique_ptr<RankClient>> a_, b_;
  v1::RoundOpened opened_;
};

TEST_F(AgentFaultsTest, AnAgentThatComesBackGetsThePartsAgain) {
  StartTwoNodes();
  a_[0]->Submit(opened_, Pieces(0, 2, 1), {10, 1});
  ASSERT_TRUE(Eventually([&] { return a_[0]->counters().bytes_up > 0; }));
  KillAgent("a");
  StartAgent("a", 2);
  a_[1]->Submit(opened_, Pieces(1, 2, 1), {10, 1});
  b_[0]->Submit(opened_, Pieces(0, 1, 2), {10, 1});
  ExpectAllIncluded();
  EXPECT_GE(a_[0]->counters().resends, 1U);
}

TEST_F(AgentFaultsTest, AnAgentThatDiesAfterItsContributionCountsOnce) {
  StartTwoNodes();
  for (uint32_t rank = 0; rank < 2; ++rank) a_[rank]->Submit(opened_, Pieces(rank, 2, 1), {10, 1});
  ASSERT_TRUE(CoordinatorSays("waiting for b"));
  KillAgent("a");
  StartAgent("a", 2);
  b_[0]->Submit(opened_, Pieces(0, 1, 2), {10, 1});
  ExpectAllIncluded();
}

TEST_F(AgentFaultsTest, AnAgentThatMissedTheCommitKnowsThatItWasIncluded) {
  StartTwoNodes();
  for (uint32_t rank = 0; rank < 2; ++rank) a_[rank]->Submit(opened_, Pieces(rank, 2, 1), {10, 1});
  ASSERT_TRUE(CoordinatorSays("waiting for b"));
  KillAgent("a");
  b_[0]->Submit(opened_, Pieces(0, 1, 2), {10, 1});
  ASSERT_TRUE(CoordinatorSays("round 2"));
  StartAgent("a", 2);
  ExpectAllIncluded();
}

TEST_F(AgentFaultsTest, WithoutItsStateFolderAnAgentDoesNotGuess) {
  StartRun({"a"}, 2);
  AgentOptions options = Options("a", 1);
  StartAgent(options);
  const auto ranks = JoinAll("a", 1);
  Opened(ranks);
  KillAgent("a");
  options.state_dir.clear();
  StartAgent(options);
  const absl::Status status = ranks[0]->WaitUpdate().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("started again without its --state_dir"));
}

TEST_F(AgentFaultsTest, ARankThatDisconnectsIsNamedUpstream) {
  StartTwoNodes();
  b_[0]->Submit(opened_, Pieces(0, 1, 2), {10, 1});
  a_[1].reset();
  EXPECT_TRUE(CoordinatorSays("rank 1 of 2 disconnected"));
  // It comes back, and is named no more.
  a_[1] = MakeRank("a");
  ASSERT_TRUE(a_[1]->Join(Request(1, 2)).ok());
  EXPECT_TRUE(Eventually(
      [&] { return coordinator_->host().WaitingFor().find("disconnected") == std::string::npos; }));
  a_[0]->Submit(opened_, Pieces(0, 2, 1), {10, 1});
  EXPECT_TRUE(CoordinatorSays("rank 1 of 2 has not sent its part"));
  a_[1]->Submit(opened_, Pieces(1, 2, 1), {10, 1});
  for (const RankClient::Update& update : Updates(a_)) EXPECT_TRUE(update.included);
}

TEST_F(AgentFaultsTest, AGroupThatLeavesNamesTheRankThatVanishedFirst) {
  StartTwoNodes();
  b_[0]->Submit(opened_, Pieces(0, 1, 2), {10, 1});
  // Both ranks live and neither sends, as when one of them hangs.
  EXPECT_TRUE(CoordinatorSays("no rank of 2 has sent its part"));
  a_[1].reset();
  EXPECT_TRUE(CoordinatorSays("rank 1 of 2 disconnected"));
  a_[0]->Leave("lost another rank");
  EXPECT_TRUE(CoordinatorSays("a (left: rank 1 of 2 disconnected; rank 0: lost another rank"));
}

TEST_F(AgentFaultsTest, PartsThatEndAfterTheirGroupAreAborted) {
  StartRun({"a"}, 2);
  StartAgent("a", 2);
  a_ = JoinAll("a", 2);
  Opened(a_);
  const auto joined = agents_["a"]->agent().JoinRun(Request(0, 2));
  ASSERT_TRUE(joined.ok()) << joined.status();
  std::vector<std::unique_ptr<SubmissionSink>> parts;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    v1::SubmitHeader header;
    header.set_role(v1::ROLE_RANK);
    header.set_rank(rank);
    header.set_round(1);
    header.set_incarnation(joined->incarnation());
    header.set_attempt(joined->attempt());
    header.set_codec(v1::PAYLOAD_CODEC_COMPONENTS);
    auto part = agents_["a"]->agent().BeginSubmit(header);
    ASSERT_TRUE(part.ok()) << part.status();
    parts.push_back(*std::move(part));
  }
  for (const auto& rank : a_) rank->Leave("stopped by its operator");
  ASSERT_TRUE(Eventually([&] { return coordinator_->host().live_nodes() == 0; }));
  // A part that is refused now is nobody's abstention, and the other one ends in peace.
  EXPECT_EQ(parts[0]->AddPiece(WithNan(Pieces(0, 2, 1)[0])).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(parts[1]->End(v1::SubmitEnd()).status().code(), absl::StatusCode::kAborted);
}

TEST_F(AgentFaultsTest, ACoordinatorThatLostTheRunIsToldToTheRanks) {
  StartRun({"a"}, 3);
  StartAgent("a", 2);
  const auto ranks = JoinAll("a", 2);
  for (uint64_t round = 1; round <= 2; ++round) {
    const v1::RoundOpened opened = Opened(ranks);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ranks[rank]->Submit(opened, Pieces(rank, 2, round), {10, 1});
    }
    Updates(ranks);
  }
  Opened(ranks);
  const std::string address = coordinator_->address();
  coordinator_.reset();
  coordinator_ = std::make_unique<TestCoordinator>(spec_, address);
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->WaitUpdate().status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST_F(AgentFaultsTest, AStoppedAgentLeavesTheRun) {
  StartTwoNodes();
  ASSERT_EQ(coordinator_->host().live_nodes(), 2U);
  agents_["a"]->agent().Stop("agent stopping");
  EXPECT_EQ(coordinator_->host().live_nodes(), 1U);
  EXPECT_TRUE(agents_["a"]->agent().WaitEnded(0));
  EXPECT_TRUE(agents_["a"]->agent().ended().ok());
}

TEST_F(AgentFaultsTest, AnAgentWhoseRanksLeftTakesTheNextGroup) {
  StartTwoNodes();
  for (const auto& rank : a_) rank->Leave("stopped by its operator");
  ASSERT_TRUE(Eventually([&] { return coordinator_->host().live_nodes() == 1; }));
  a_ = JoinAll("a", 2, 'h');
  EXPECT_EQ(coordinator_->host().live_nodes(), 2U);
}

}  // namespace
}  // namespace isthmus
