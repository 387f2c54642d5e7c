// Who may join at an agent, and what is said to those who may not.
#include "base/sha256.h"
#include "gmock/gmock.h"
#include "tests/worker/agent_harness.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

class AgentJoinTest : public AgentTest {
 protected:
  void ExpectRefused(const absl::Status& status, absl::StatusCode code, const std::string& text) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
};

TEST_F(AgentJoinTest, RanksHearThatTheCoordinatorIsNotThere) {
  StartRun({"a"}, 1);
  const std::string address = coordinator_->address();
  AgentOptions options = Options("a", 1);
  coordinator_.reset();
  StartAgent(options);
  const auto early = MakeRank("a", 500)->FetchSpec();
  ExpectRefused(early.status(), absl::StatusCode::kDeadlineExceeded,
                "agent a waits for the coordinator at " + address);
  // It comes, and a rank that waits gets the spec.
  std::thread later([&] { coordinator_ = std::make_unique<TestCoordinator>(spec_, address); });
  const auto spec = MakeRank("a")->FetchSpec();
  later.join();
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->spec().run(), "small");
  EXPECT_EQ(spec->node(), "a");
}

TEST_F(AgentJoinTest, ANodeThatTheSpecDoesNotNameEndsTheAgent) {
  StartRun({"a", "b"}, 1);
  StartAgent("c", 1);
  ASSERT_TRUE(agents_["c"]->agent().WaitEnded(30000));
  ExpectRefused(agents_["c"]->agent().ended(), absl::StatusCode::kNotFound,
                "run 'small' has no node 'c'");
  const auto spec = MakeRank("c")->FetchSpec();
  ExpectRefused(spec.status(), absl::StatusCode::kNotFound, "run 'small' has no node 'c'");
}

TEST_F(AgentJoinTest, RanksWaitForEachOther) {
  StartRun({"a"}, 1);
  StartAgent("a", 2);
  const auto alone = MakeRank("a", 600)->Join(Request(0, 2));
  ExpectRefused(alone.status(), absl::StatusCode::kDeadlineExceeded,
                "node a waits for rank 1 of 2");
  EXPECT_EQ(coordinator_->host().live_nodes(), 0U);
  const auto ranks = JoinAll("a", 2);
  EXPECT_EQ(coordinator_->host().live_nodes(), 1U);
}

TEST_F(AgentJoinTest, RanksThatDifferAreRefused) {
  StartRun({"a"}, 1);
  StartAgent("a", 2);
  MakeRank("a", 300)->Join(Request(0, 2)).status().IgnoreError();
  v1::JoinRunRequest request = Request(1, 2);
  request.mutable_rank()->mutable_settings(0)->set_value("999");
  ExpectRefused(MakeRank("a")->Join(request).status(), absl::StatusCode::kFailedPrecondition,
                "differ in data_bytes (999 and 1000)");
  ExpectRefused(MakeRank("a")->Join(Request(1, 3)).status(), absl::StatusCode::kFailedPrecondition,
                "with --ranks 2");
}

TEST_F(AgentJoinTest, ASecondTrainerGroupIsRefusedWhileTheFirstLives) {
  StartRun({"a"}, 2);
  StartAgent("a", 2);
  auto first = JoinAll("a", 2);
  Opened(first);
  ExpectRefused(MakeRank("a")->Join(Request(0, 2, 'h')).status(), absl::StatusCode::kAlreadyExists,
                "node a already has a live trainer group (ranks 0, 1 connected)");
  // The first one dies; another may take over, and its contributions count.
  first.clear();
  ASSERT_TRUE(Eventually([&] {
    return coordinator_->host().WaitingFor().find("ranks 0, 1 of 2 disconnected") !=
           std::string::npos;
  }));
  auto second = JoinAll("a", 2, 'h');
  const v1::RoundOpened opened = Opened(second);
  for (uint32_t rank = 0; rank < 2; ++rank)
    second[rank]->Submit(opened, Pieces(rank, 2, 1), {1, 1});
  const auto updates = Updates(second);
  ASSERT_EQ(updates.size(), 2U);
  EXPECT_TRUE(updates[0].included && updates[1].included);
}

TEST_F(AgentJoinTest, ARefusalOfTheCoordinatorReachesEveryRank) {
  v1::RunSpec spec = SmallSpec({"a"}, 1);
  spec.set_start_state_sha256(Sha256Of("another start"));
  StartRun(spec);
  AgentOptions options = Options("a", 2);
  options.exit_when_finished = true;
  StartAgent(options);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ExpectRefused(MakeRank("a")->Join(Request(rank, 2)).status(),
                    absl::StatusCode::kFailedPrecondition, "holds start state");
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(agents_["a"]->agent().WaitEnded(30000));
  EXPECT_EQ(agents_["a"]->agent().ended().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(AgentJoinTest, ARankThatIsStoppedWaitsNoMore) {
  StartRun({"a"}, 1);
  StartAgent("a", 2);
  RankClientOptions options;
  options.agent = folder_.Socket("a");
  std::string told;
  options.on_waiting = [&told](const std::string& sentence) { told = sentence; };
  options.stop = [&told] { return told == "node a waits for rank 1 of 2"; };
  const auto client = RankClient::Make(options);
  ASSERT_TRUE(client.ok());
  ExpectRefused((*client)->Join(Request(0, 2)).status(), absl::StatusCode::kCancelled,
                "stopped while waiting: node a waits for rank 1 of 2");
}

TEST_F(AgentJoinTest, BadOptionsAreRefused) {
  AgentOptions options;
  options.node = "a";
  options.coordinator = "127.0.0.1:1";
  options.ranks = 0;
  EXPECT_EQ(Agent::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.ranks = 1;
  options.coordinator = "nowhere";
  EXPECT_EQ(Agent::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace isthmus
