// Views and the history of rounds, without gRPC: what operators see of a state.
#include "server/monitor_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "server/monitor_history.h"
#include "tests/server/fakes.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::Run RunOf(TestCoordinator* coordinator) {
  const RunFacts facts = coordinator->host->Look();
  return ViewOfRun(facts, coordinator->host->history().PaceAt(facts.now_ms), true);
}

v1::Node NodeOf(TestCoordinator* coordinator, const std::string& name) {
  const RunFacts facts = coordinator->host->Look();
  for (const NodeFacts& node : facts.nodes) {
    if (node.name == name) return ViewOfNode(facts, node);
  }
  ADD_FAILURE() << "no node " << name;
  return {};
}

v1::Round RoundOf(TestCoordinator* coordinator, uint64_t round) {
  const RunFacts facts = coordinator->host->Look();
  const RoundPtr kept = coordinator->host->history().Find(round, facts.now_ms);
  EXPECT_NE(kept, nullptr);
  return kept == nullptr ? v1::Round() : ViewOfRound(facts, *kept);
}

std::vector<std::string> Awaited(const v1::Run& run) {
  return {run.waiting_nodes().begin(), run.waiting_nodes().end()};
}

TEST(View, ARunThatHasNotBegunNamesWhoIsMissing) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a");
  a.JoinAndWatch();
  coordinator.Pass(2000, {&a});
  const v1::Run run = RunOf(&coordinator);
  EXPECT_EQ(run.state(), v1::RUN_STATE_STARTING);
  EXPECT_THAT(Awaited(run), ElementsAre("b"));
  EXPECT_THAT(run.waiting_for(), HasSubstr("b (not connected)"));
  EXPECT_EQ(run.waiting_ms(), 2000u);
  EXPECT_EQ(run.live_nodes(), 1u);
  EXPECT_EQ(run.parameters(), TestGrid()->elements());
  EXPECT_EQ(run.spec().run(), "test");
  EXPECT_FALSE(run.has_last_commit_ms());
  EXPECT_EQ(NodeOf(&coordinator, "a").state(), v1::NODE_STATE_JOINED);
  const v1::Node b = NodeOf(&coordinator, "b");
  EXPECT_EQ(b.state(), v1::NODE_STATE_NEVER_JOINED);
  EXPECT_EQ(b.state_ms(), 2000u);
  EXPECT_TRUE(b.is_waited_for());
  EXPECT_FALSE(b.has_heartbeat_ms());
}

TEST(View, TheOpenRoundNamesTheNodeThatIsAwaitedAndItsOwnWords) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  ASSERT_TRUE(a.SubmitRandom(1, 1).ok());
  ASSERT_TRUE(b.Beat(0, "rank 1 of 2: computing").ok());
  coordinator.Pass(1000);
  const v1::Run run = RunOf(&coordinator);
  EXPECT_EQ(run.state(), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(run.open_round(), 1u);
  EXPECT_THAT(Awaited(run), ElementsAre("b"));
  EXPECT_EQ(run.waiting_ms(), 1000u);
  const v1::Node node_a = NodeOf(&coordinator, "a"), node_b = NodeOf(&coordinator, "b");
  EXPECT_EQ(node_a.state(), v1::NODE_STATE_MEMBER);
  EXPECT_EQ(node_a.outcome(), v1::NODE_OUTCOME_INCLUDED);
  EXPECT_GT(node_a.received_bytes(), run.contribution_bytes());
  EXPECT_FALSE(node_a.is_waited_for());
  EXPECT_TRUE(node_a.watches());
  EXPECT_EQ(node_b.outcome(), v1::NODE_OUTCOME_OUTSTANDING);
  EXPECT_EQ(node_b.waiting_for(), "rank 1 of 2: computing");
  EXPECT_EQ(node_b.heartbeat_ms(), 1000u);
  EXPECT_EQ(node_b.received_bytes(), 0u);
  const v1::Round round = RoundOf(&coordinator, 1);
  EXPECT_EQ(round.state(), v1::ROUND_STATE_OPEN);
  EXPECT_EQ(round.duration_ms(), 1000u);
  EXPECT_THAT(round.waiting_for(), HasSubstr("waiting for b (rank 1 of 2: computing)"));
  EXPECT_FALSE(round.has_deadline_left_ms());
}

TEST(View, BytesThatAreSentAgainCountOnce) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  const auto pieces = RandomContribution(*TestGrid(), 1);
  for (int i = 0; i < 2; ++i) {
    auto sink = coordinator.host->BeginSubmit(a.Header(1, pieces));
    ASSERT_TRUE(sink.ok()) << sink.status();
    ASSERT_TRUE((*sink)->AddPiece(pieces[0]).ok());
    EXPECT_EQ(NodeOf(&coordinator, "a").received_bytes(), pieces[0].size());
  }
}

TEST(View, LostLeftRefusedAndAbstainedAreTold) {
  TestCoordinator coordinator(TestSpec({"a", "b", "c", "d"}));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  FakeNode c(coordinator.host.get(), "c"), d(coordinator.host.get(), "d");
  for (FakeNode* node : {&a, &b, &c, &d}) node->JoinAndWatch();
  ASSERT_TRUE(a.Abstain(1, "non-finite gradient in wte").ok());
  ASSERT_TRUE(b.Leave().ok());
  v1::SubmitHeader bad = d.Header(1, RandomContribution(*TestGrid(), 1));
  bad.set_steps(7);
  EXPECT_FALSE(d.Submit(bad, {}, "").ok());
  coordinator.Pass(16000, {&a, &d});
  const v1::Node node_a = NodeOf(&coordinator, "a");
  EXPECT_EQ(node_a.outcome(), v1::NODE_OUTCOME_ABSTAINED);
  EXPECT_EQ(node_a.last_refusal().reason(), "non-finite gradient in wte");
  EXPECT_EQ(node_a.last_refusal().round(), 1u);
  const v1::Node node_b = NodeOf(&coordinator, "b");
  EXPECT_EQ(node_b.state(), v1::NODE_STATE_LEFT);
  EXPECT_EQ(node_b.state_ms(), 16000u);
  EXPECT_EQ(node_b.lease_left_ms(), 0u);
  const v1::Node node_c = NodeOf(&coordinator, "c");
  EXPECT_EQ(node_c.state(), v1::NODE_STATE_LEASE_ENDED);
  EXPECT_EQ(node_c.state_ms(), 1000u);  // a lease is 15 s
  EXPECT_EQ(node_c.heartbeat_ms(), 16000u);
  const v1::Node node_d = NodeOf(&coordinator, "d");
  EXPECT_EQ(node_d.outcome(), v1::NODE_OUTCOME_REFUSED);
  EXPECT_THAT(node_d.last_refusal().reason(), HasSubstr("steps is 7"));
  const v1::Round round = RoundOf(&coordinator, 1);
  ASSERT_EQ(round.nodes_size(), 4);
  EXPECT_EQ(round.nodes(1).outcome(), v1::NODE_OUTCOME_LEFT);
  EXPECT_EQ(round.nodes(1).reason(), "test");
  EXPECT_EQ(round.nodes(2).outcome(), v1::NODE_OUTCOME_LEASE_ENDED);
}

TEST(View, ARefusedJoinIsRememberedAtItsNode) {
  TestCoordinator coordinator(TestSpec({"a"}));
  FakeNode a(coordinator.host.get(), "a"), stranger(coordinator.host.get(), "x");
  a.join_request.set_secret("short");
  EXPECT_FALSE(a.Join().ok());
  EXPECT_FALSE(stranger.Join().ok());
  const v1::Node node = NodeOf(&coordinator, "a");
  EXPECT_EQ(node.state(), v1::NODE_STATE_NEVER_JOINED);
  EXPECT_THAT(node.last_refusal().reason(), HasSubstr("secret has 5 bytes"));
  EXPECT_EQ(node.last_refusal().round(), 0u);
}

TEST(View, CommittedRoundsAndTheEnd) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  for (uint64_t round = 1; round <= 3; ++round) {
    a.ExpectOpened(round);
    coordinator.Pass(500);
    ASSERT_TRUE(a.SubmitRandom(round, 1).ok());
    ASSERT_TRUE(b.SubmitRandom(round, 2).ok());
    const ReceivedUpdate update = a.ExpectUpdate(round);
    b.ExpectOpened(round);
    b.ExpectUpdate(round);
    const v1::Round kept = RoundOf(&coordinator, round);
    EXPECT_EQ(kept.state(), v1::ROUND_STATE_COMMITTED);
    EXPECT_EQ(kept.duration_ms(), 500u);
    EXPECT_EQ(kept.payload_bytes(), update.record.payload_bytes());
    EXPECT_EQ(kept.sha256(), update.record.sha256());
    EXPECT_EQ(kept.waiting_for(), "");
    EXPECT_EQ(kept.nodes(0).outcome(), v1::NODE_OUTCOME_INCLUDED);
  }
  const v1::Run run = RunOf(&coordinator);
  EXPECT_EQ(run.state(), v1::RUN_STATE_FINISHED);
  EXPECT_EQ(run.committed_round(), 3u);
  EXPECT_EQ(run.mean_round_ms(), 500u);
  EXPECT_EQ(run.rounds_last_minute(), 3.0);
  EXPECT_THAT(Awaited(run), ElementsAre());
  EXPECT_EQ(run.waiting_ms(), 0u);
}

// --- The history.

Moment At(int64_t ms) { return {ms, absl::FromUnixMillis(1700000000000 + ms)}; }

void RunRounds(RoundHistory* history, uint64_t first, uint64_t last, int64_t each_ms = 100) {
  v1::RoundNode node;
  node.set_node("a");
  node.set_outcome(v1::NODE_OUTCOME_OUTSTANDING);
  for (uint64_t round = first; round <= last; ++round) {
    const auto now_ms = static_cast<int64_t>(round) * each_ms;
    history->Opened({round, round, 0.5f, {node}}, At(now_ms));
    history->Completed(round, "a", At(now_ms + each_ms / 2));
    history->Closed({node}, false);
    history->Committed(1000, "sha", At(now_ms + each_ms));
  }
}

std::vector<uint64_t> Numbers(const std::vector<RoundPtr>& rounds) {
  std::vector<uint64_t> numbers;
  for (const RoundPtr& round : rounds) numbers.push_back(round->round());
  return numbers;
}

constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

TEST(History, KeepsTheNewestAndPagesNewestFirst) {
  RoundHistory history({/*rounds=*/5, /*changes=*/10, /*bytes=*/1 << 20});
  EXPECT_EQ(history.oldest(), 0u);
  EXPECT_THAT(history.Before(kAll, 10, 1 << 20, 0), ElementsAre());
  RunRounds(&history, 1, 8);
  history.Opened({9, 9, 0.5f, {}}, At(900));
  EXPECT_EQ(history.oldest(), 4u);
  EXPECT_THAT(Numbers(history.Before(kAll, 3, 1 << 20, 1000)), ElementsAre(9, 8, 7));
  EXPECT_THAT(Numbers(history.Before(7, 10, 1 << 20, 1000)), ElementsAre(6, 5, 4));
  EXPECT_THAT(Numbers(history.Before(4, 10, 1 << 20, 1000)), ElementsAre());
  EXPECT_THAT(Numbers(history.Before(0, 10, 1 << 20, 1000)), ElementsAre());
  // A page has one round at least, however few bytes it may have.
  EXPECT_THAT(Numbers(history.Before(7, 10, 1, 1000)), ElementsAre(6));
  EXPECT_EQ(history.Find(3, 0), nullptr);
  EXPECT_EQ(history.Find(10, 0), nullptr);
  EXPECT_EQ(history.Find(5, 0)->round(), 5u);
  EXPECT_EQ(history.Find(9, 950)->duration_ms(), 50u);
}

TEST(History, BytesBoundWhatIsKept) {
  RoundHistory history({/*rounds=*/1000, /*changes=*/1000, /*bytes=*/400});
  history.AddWatcher();
  RunRounds(&history, 1, 100);
  EXPECT_GT(history.oldest(), 90u);
  EXPECT_TRUE(history.Read(0).lost);
  // Even where one round is more than all bytes allowed, the last one is kept.
  RoundHistory tiny({/*rounds=*/1000, /*changes=*/1000, /*bytes=*/1});
  RunRounds(&tiny, 1, 3);
  EXPECT_EQ(tiny.oldest(), 3u);
}

TEST(History, PaceCountsTheLastMinute) {
  RoundHistory history({/*rounds=*/1000, /*changes=*/10, /*bytes=*/1 << 20});
  RunRounds(&history, 1, 50, 2000);  // commits at 4, 6, … 102 s
  EXPECT_EQ(history.PaceAt(102000).rounds_last_minute, 30.0);
  EXPECT_EQ(history.PaceAt(102000).mean_round_ms, 2000);
  EXPECT_EQ(history.PaceAt(1000000).rounds_last_minute, 0.0);
  // Those kept span half a minute only.
  RoundHistory fast({/*rounds=*/300, /*changes=*/10, /*bytes=*/1 << 20});
  RunRounds(&fast, 1, 1000, 100);
  EXPECT_NEAR(fast.PaceAt(100100).rounds_last_minute, 600.0, 5.0);
}

TEST(History, AWatcherReadsEveryChangeOrIsToldThatItLostSome) {
  RoundHistory history({/*rounds=*/10, /*changes=*/6, /*bytes=*/1 << 20});
  RunRounds(&history, 1, 2);  // nobody watches: not recorded
  history.AddWatcher();
  const RoundHistory::Start start = history.StartWatch(At(300));
  EXPECT_EQ(start.current.round().round(), 2u);
  EXPECT_EQ(history.Read(start.cursor).change, nullptr);
  RunRounds(&history, 3, 3);
  std::vector<v1::RoundChange> changes;
  uint64_t cursor = start.cursor;
  for (; history.Read(cursor).change != nullptr; ++cursor) {
    changes.push_back(history.Read(cursor).change->change());
  }
  EXPECT_THAT(changes, ElementsAre(v1::ROUND_CHANGE_OPENED, v1::ROUND_CHANGE_COMPLETE,
                                   v1::ROUND_CHANGE_COMMITTED));
  RunRounds(&history, 4, 5);
  EXPECT_FALSE(history.Read(cursor).lost);
  RunRounds(&history, 6, 6);
  EXPECT_TRUE(history.Read(cursor).lost);
  history.RemoveWatcher();
  history.AddWatcher();
  EXPECT_EQ(history.StartWatch(At(700)).cursor, history.end_cursor());
}

TEST(Page, SizesAndTokens) {
  EXPECT_EQ(ReadPage(0, "", 7)->begin, 7u);
  EXPECT_EQ(ReadPage(0, "", 7)->size, 50u);
  EXPECT_EQ(ReadPage(1000000, "", 7)->size, 500u);
  EXPECT_EQ(ReadPage(3, PageToken(42), 7)->begin, 42u);
  EXPECT_EQ(ReasonOf(ReadPage(-1, "", 0).status()), "WRONG_PAGE_SIZE");
  EXPECT_THAT(std::string(ReadPage(-1, "", 0).status().message()), HasSubstr("page_size is -1"));
  for (const char* token : {"p", "42", "p-1", "p1x", "x1", "p99999999999999999999999"}) {
    EXPECT_EQ(ReasonOf(ReadPage(0, token, 0).status()), "WRONG_PAGE_TOKEN") << token;
  }
}

}  // namespace
}  // namespace isthmus
