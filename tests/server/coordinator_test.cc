// Whole rounds through the coordinator, without a network: two or three nodes that do what agents
// do.
#include "server/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "base/limits.h"
#include "spec/update_record.h"
#include "tests/server/fakes.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

// Runs all three rounds; nodes send in the order given. Returns node a's updates.
std::vector<ReceivedUpdate> RunAll(const std::vector<size_t>& order) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  FakeNode* const nodes[] = {&a, &b};
  a.JoinAndWatch();
  b.JoinAndWatch();
  std::vector<ReceivedUpdate> updates;
  for (uint64_t round = 1; round <= 3; ++round) {
    for (FakeNode* node : nodes) {
      const v1::RoundOpened opened = node->ExpectOpened(round);
      EXPECT_EQ(opened.base_round(), round - 1);
      EXPECT_EQ(opened.step(), round);
      EXPECT_EQ(opened.deadline_ms(), 0u);
    }
    for (size_t node : order) {
      const auto receipt =
          nodes[node]->SubmitRandom(round, static_cast<uint32_t>(10 * round + node));
      EXPECT_TRUE(receipt.ok()) << receipt.status();
      EXPECT_TRUE(receipt->complete());
    }
    updates.push_back(a.ExpectUpdate(round));
    const ReceivedUpdate other = b.ExpectUpdate(round);
    EXPECT_EQ(other.record.SerializeAsString(), updates.back().record.SerializeAsString());
    EXPECT_EQ(other.pieces, updates.back().pieces);
  }
  EXPECT_EQ(a.reader->NextEvent().finished().round(), 3u);
  EXPECT_TRUE(coordinator.host->finished());
  return updates;
}

TEST(Coordinator, SameUpdatesWhoeverComesFirst) {
  const auto one = RunAll({0, 1});
  const auto two = RunAll({1, 0});
  ASSERT_EQ(one.size(), two.size());
  std::string previous;
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].pieces, two[i].pieces);
    EXPECT_EQ(one[i].record.sha256(), two[i].record.sha256());
    const v1::UpdateRecord& record = one[i].record;
    EXPECT_TRUE(CheckUpdateRecord(record, previous).ok());
    previous = record.sha256();
    EXPECT_EQ(record.included_size(), 2);
    EXPECT_EQ(record.included(0).node(), "a");
    EXPECT_EQ(record.pieces(), one[i].pieces.size());
    EXPECT_EQ(record.payload_bytes(), BytesOf(one[i].pieces));
    EXPECT_EQ(record.payload_sha256(), DigestOf(*TestGrid(), one[i].pieces));
    float lr = 0;
    const uint32_t bits = record.lr_bits();
    std::memcpy(&lr, &bits, sizeof(lr));
    EXPECT_EQ(lr, LearningRate(TestSpec({"a", "b"}), record.step()));
  }
}

TEST(Coordinator, ASpecAloneAdmitsNobody) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  const auto response = coordinator.host->JoinRun(v1::JoinRunRequest());
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->spec().run(), "test");
  EXPECT_EQ(response->spec().nodes_size(), 2);
  EXPECT_EQ(response->incarnation(), 0u);
  EXPECT_EQ(coordinator.host->live_nodes(), 0u);
}

TEST(Coordinator, HeartbeatSaysWhomTheRoundWaitsFor) {
  TestCoordinator coordinator(TestSpec({"fra-1", "fra-2"}));
  FakeNode one(coordinator.host.get(), "fra-1"), two(coordinator.host.get(), "fra-2");
  one.JoinAndWatch();
  EXPECT_THAT(one.Beat()->waiting_for(), HasSubstr("missing fra-2 (not connected)"));
  two.JoinAndWatch();
  ASSERT_TRUE(two.Beat(0, "rank 1 of 2 disconnected").ok());
  ASSERT_TRUE(one.SubmitRandom(1, 1).ok());
  const auto beat = one.Beat();
  EXPECT_EQ(beat->waiting_for(),
            "round 1: waiting for fra-2 (rank 1 of 2 disconnected), no deadline, quorum 2 of 2 not "
            "reached (1 complete)");
  EXPECT_EQ(beat->lease_ms(), 15000u);
  EXPECT_EQ(beat->committed_round(), 0u);
}

TEST(Coordinator, AnAbstentionIsNotWaitedFor) {
  TestCoordinator coordinator(TestSpec({"a", "b", "c"}, 2));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b"),
      c(coordinator.host.get(), "c");
  a.JoinAndWatch();
  b.JoinAndWatch();
  a.ExpectOpened(1);
  b.ExpectOpened(1);
  ASSERT_TRUE(a.SubmitRandom(1, 1).ok());
  // Below the quorum without b, so that c, which came late, is taken in.
  c.JoinAndWatch();
  const auto receipt = b.Abstain(1, "non-finite gradient in wte");
  ASSERT_TRUE(receipt.ok()) << receipt.status();
  EXPECT_FALSE(receipt->complete());
  c.ExpectOpened(1);
  ASSERT_TRUE(c.SubmitRandom(1, 3).ok());
  const ReceivedUpdate update = b.ExpectUpdate(1);
  ASSERT_EQ(update.record.included_size(), 2);
  EXPECT_EQ(update.record.included(0).node(), "a");
  EXPECT_EQ(update.record.included(1).node(), "c");
}

TEST(Coordinator, AllAbstainMakesAVoidUpdate) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  a.ExpectOpened(1);
  ASSERT_TRUE(a.Abstain(1, "non-finite gradient").ok());
  ASSERT_TRUE(b.Abstain(1, "non-finite loss").ok());
  const ReceivedUpdate update = a.ExpectUpdate(1);
  EXPECT_TRUE(update.record.is_void());
  EXPECT_EQ(update.record.step(), 1u);
  EXPECT_EQ(update.record.included_size(), 0);
  EXPECT_TRUE(update.pieces.empty());
  EXPECT_TRUE(CheckUpdateRecord(update.record, "").ok());
  a.ExpectOpened(2);
}

TEST(Coordinator, ARefusedContributionIsNotWaitedFor) {
  TestCoordinator coordinator(TestSpec({"a", "b"}, 1));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  a.ExpectOpened(1);
  ASSERT_TRUE(a.SubmitRandom(1, 1).ok());
  a.ExpectUpdate(1);
  b.ExpectUpdate(1);
  a.ExpectOpened(2);
  b.ExpectOpened(2);
  const auto grid = TestGrid();
  const auto pieces = RandomContribution(*grid, 1);
  const auto refused = b.Submit(b.Header(2, pieces), pieces, std::string(32, 'x'));
  EXPECT_EQ(ReasonOf(refused.status()), "DIGEST_MISMATCH");
  ASSERT_TRUE(a.SubmitRandom(2, 1).ok());
  const ReceivedUpdate update = b.ExpectUpdate(2);
  ASSERT_EQ(update.record.included_size(), 1);
  EXPECT_EQ(update.record.included(0).node(), "a");
}

TEST(Coordinator, DeadlineClosesTheRoundWithTheQuorum) {
  v1::RunSpec spec = TestSpec({"a", "b", "c"}, 2);
  TestCoordinator coordinator(spec);
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b"),
      c(coordinator.host.get(), "c");
  a.JoinAndWatch();
  b.JoinAndWatch();
  c.JoinAndWatch();
  for (FakeNode* node : {&a, &b}) {
    EXPECT_EQ(node->ExpectOpened(1).deadline_ms(), 60000u);
    ASSERT_TRUE(node->SubmitRandom(1, 5).ok());
  }
  c.ExpectUpdate(1);
  c.ExpectOpened(2);
  a.ExpectUpdate(1);
  a.ExpectOpened(2);
  ASSERT_TRUE(a.SubmitRandom(2, 6).ok());
  ASSERT_TRUE(b.SubmitRandom(2, 7).ok());
  coordinator.Pass(4900, {&a, &b, &c});
  EXPECT_TRUE(a.reader->Empty());
  coordinator.Pass(200);
  EXPECT_EQ(a.ExpectUpdate(2).record.included_size(), 2);
  // c's contribution comes too late for it.
  const auto late = c.SubmitRandom(2, 8);
  EXPECT_TRUE(absl::IsAborted(late.status())) << late.status();
  EXPECT_EQ(ReasonOf(late.status()), "ROUND_CLOSED");
}

TEST(Coordinator, WhatItWaitsForIsLoggedWithItsRun) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a");
  a.JoinAndWatch();
  testing::internal::CaptureStderr();
  coordinator.Pass(4000, {&a});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::ContainsRegex("round 1 opens when .* run=test"));
}

TEST(Coordinator, ALeaseEndsAndTheNodeComesBack) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  a.ExpectOpened(1);
  b.ExpectOpened(1);
  ASSERT_TRUE(a.SubmitRandom(1, 1).ok());
  coordinator.Pass(15000, {&a});
  const WatchQueue::Taken end = b.reader->Next();
  ASSERT_TRUE(end.closed);
  EXPECT_EQ(ReasonOf(end.status), kReasonNotJoined);
  EXPECT_EQ(ReasonOf(b.Beat().status()), kReasonNotJoined);
  EXPECT_THAT(a.Beat()->waiting_for(), HasSubstr("b (lease ended)"));
  b.JoinAndWatch();
  b.ExpectOpened(1);
  ASSERT_TRUE(b.SubmitRandom(1, 2).ok());
  EXPECT_EQ(a.ExpectUpdate(1).record.included_size(), 2);
}

TEST(Coordinator, OnlyTheSameSecretTakesOver) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a"), twin(coordinator.host.get(), "a");
  a.JoinAndWatch();
  twin.join_request.set_secret("another secret of a");
  absl::Status status = twin.Join();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_EQ(ReasonOf(status), kReasonNodeAlive);
  EXPECT_EQ(RetryAfterMsOf(status), 15000);
  coordinator.Pass(5000);
  EXPECT_EQ(RetryAfterMsOf(twin.Join()), 10000);

  const uint64_t before = a.joined.incarnation();
  ASSERT_TRUE(a.Join().ok());
  EXPECT_GT(a.joined.incarnation(), before);
  const WatchQueue::Taken end = a.reader->Next();
  EXPECT_TRUE(end.closed);
  EXPECT_EQ(ReasonOf(end.status), "WATCH_REPLACED");

  coordinator.Pass(15000);
  ASSERT_TRUE(twin.Join().ok());
  EXPECT_EQ(ReasonOf(a.Beat().status()), kReasonIncarnationFenced);
  EXPECT_EQ(ReasonOf(a.SubmitRandom(1, 1).status()), kReasonIncarnationFenced);
  // An older incarnation cannot make the newer one leave.
  EXPECT_TRUE(a.Leave().ok());
  EXPECT_TRUE(twin.Beat().ok());
}

TEST(Coordinator, AnAttemptOutlivesItsIncarnation) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  const uint64_t attempt = a.joined.attempt();
  EXPECT_EQ(attempt, a.joined.incarnation());
  // Half of it is sent, then the agent dies and comes back with the same ranks.
  const auto grid = TestGrid();
  const auto pieces = RandomContribution(*grid, 1);
  {
    auto sink = coordinator.host->BeginSubmit(a.Header(1, pieces));
    ASSERT_TRUE(sink.ok()) << sink.status();
    ASSERT_TRUE((*sink)->AddPiece(pieces[0]).ok());
    ASSERT_TRUE((*sink)->AddPiece(pieces[1]).ok());
    a.join_request.set_attempt(attempt);
    ASSERT_TRUE(a.Join().ok());
    EXPECT_EQ(ReasonOf((*sink)->AddPiece(pieces[2])), kReasonIncarnationFenced);
  }
  EXPECT_EQ(a.joined.attempt(), attempt);
  const v1::WatchStart start = a.Watch();
  ASSERT_EQ(start.held_size(), 1);
  EXPECT_EQ(start.held(0).attempt(), attempt);
  EXPECT_FALSE(start.held(0).complete());
  ASSERT_EQ(start.held(0).ranges_size(), 1);
  // The rest only.
  const std::vector<std::string> rest(pieces.begin() + 2, pieces.end());
  v1::SubmitHeader header = a.Header(1, rest);
  header.mutable_ranges(0)->set_begin(start.held(0).ranges(0).end());
  const auto receipt = a.Submit(header, rest, DigestOf(*grid, pieces));
  ASSERT_TRUE(receipt.ok()) << receipt.status();
  EXPECT_TRUE(receipt->complete());
  EXPECT_EQ(receipt->digest(), DigestOf(*grid, pieces));
  ASSERT_TRUE(b.SubmitRandom(1, 2).ok());
  a.ExpectOpened(1);
  EXPECT_EQ(a.ExpectUpdate(1).record.included(0).digest(), DigestOf(*grid, pieces));
}

TEST(Coordinator, ACompleteContributionStandsAgainstANewAttempt) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  const auto first = a.SubmitRandom(1, 1);
  ASSERT_TRUE(first.ok()) << first.status();
  // The same again: the same answer.
  const auto again = a.SubmitRandom(1, 1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->SerializeAsString(), first->SerializeAsString());
  // Other bytes under the same key.
  EXPECT_TRUE(absl::IsAlreadyExists(a.SubmitRandom(1, 2).status()));
  // A new rank group computes something else: the digest that is held is the answer.
  ASSERT_TRUE(a.Join().ok());
  const auto other = a.SubmitRandom(1, 2);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->digest(), first->digest());
  EXPECT_EQ(other->attempt(), first->attempt());
  EXPECT_NE(other->attempt(), a.joined.attempt());
}

TEST(Coordinator, ANewerWatchReplacesTheOlder) {
  TestCoordinator coordinator(TestSpec({"a"}));
  FakeNode a(coordinator.host.get(), "a");
  a.JoinAndWatch();
  const auto older = std::move(a.reader);
  a.Watch();
  EXPECT_EQ(older->NextEvent().opened().round(), 1u);
  const WatchQueue::Taken end = older->Next();
  ASSERT_TRUE(end.closed);
  EXPECT_TRUE(absl::IsAborted(end.status));
  EXPECT_EQ(ReasonOf(end.status), "WATCH_REPLACED");
  // The end of the older call does not take the newer watch away.
  coordinator.host->WatchEnded(a.WatchRequest(), older->queue());
  a.ExpectOpened(1);
  ASSERT_TRUE(a.SubmitRandom(1, 1).ok());
  a.ExpectUpdate(1);
}

TEST(Coordinator, AWatchBeginsWithWhatTheNodeMissed) {
  TestCoordinator coordinator(TestSpec({"a", "b"}, 1));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  a.JoinAndWatch();
  std::vector<ReceivedUpdate> updates;
  for (uint64_t round = 1; round <= 2; ++round) {
    a.ExpectOpened(round);
    ASSERT_TRUE(a.SubmitRandom(round, 1).ok());
    updates.push_back(a.ExpectUpdate(round));
  }
  ASSERT_TRUE(b.Join().ok());
  EXPECT_EQ(b.joined.committed_round(), 2u);
  EXPECT_EQ(b.Watch().committed_round(), 2u);
  for (uint64_t round = 1; round <= 2; ++round) {
    EXPECT_EQ(b.ExpectUpdate(round).pieces, updates[round - 1].pieces);
  }
  // It is not a member of round 3 and is not asked for anything.
  EXPECT_TRUE(b.reader->Empty());
  EXPECT_EQ(ReasonOf(b.SubmitRandom(3, 2).status()), "NOT_A_MEMBER");
  ASSERT_TRUE(a.SubmitRandom(3, 1).ok());
  b.ExpectUpdate(3);
  EXPECT_EQ(b.reader->NextEvent().finished().round(), 3u);
  // A watch that is opened after the end gets what it lacks, and the end.
  a.join_request.set_last_round(2);
  a.join_request.set_last_update_sha256(updates[1].record.sha256());
  a.Watch();
  a.ExpectUpdate(3);
  EXPECT_EQ(a.reader->NextEvent().finished().round(), 3u);
}

TEST(Coordinator, AWatchGetsThePiecesOfItsRangesOnly) {
  v1::RunSpec spec = TestSpec({"a"});
  spec.mutable_codec()->set_matrix_density(1.0);  // large enough for a second piece
  TestCoordinator coordinator(spec);
  FakeNode a(coordinator.host.get(), "a");
  // 3 MB of vector in a second tensor behind the first ones.
  v1::TensorSpec* large = a.join_request.mutable_manifest()->add_tensors();
  large->set_name("large");
  large->set_dtype(v1::DTYPE_FLOAT32);
  large->add_shape(1000);
  large->add_shape(800);
  a.join_request.set_fingerprint(Fingerprint(a.join_request.manifest()));
  ASSERT_TRUE(a.Join().ok());
  const auto grid = Grid::Make(a.join_request.manifest(), spec.codec());
  v1::WatchUpdatesRequest request = a.WatchRequest();
  request.add_ranges()->set_end(1);
  a.Watch(request);
  a.ExpectOpened(1);
  const auto pieces = RandomContribution(*grid, 1, kPieceBytesMax);
  v1::SubmitHeader header = a.Header(1, pieces);
  header.mutable_ranges(0)->set_end(grid->chunks());
  ASSERT_TRUE(a.Submit(header, pieces, DigestOf(*grid, pieces)).ok());
  const ReceivedUpdate update = a.ExpectUpdate(1);
  EXPECT_GT(update.record.pieces(), 2u);
  EXPECT_EQ(update.pieces.size(), 1u);
  a.ExpectOpened(2);
}

// So many vectors in a model this small that a bit a parameter is less than what was merged.
TEST(Coordinator, AnUpdateHasTheSmallestForm) {
  v1::RunSpec spec = TestSpec({"a"});
  spec.mutable_codec()->clear_update_form();
  TestCoordinator coordinator(spec);
  FakeNode a(coordinator.host.get(), "a");
  a.JoinAndWatch();
  a.ExpectOpened(1);
  ASSERT_TRUE(a.SubmitRandom(1, 1).ok());
  const ReceivedUpdate update = a.ExpectUpdate(1);
  EXPECT_EQ(update.record.codec(), v1::PAYLOAD_CODEC_SIGN_PLANE);
  EXPECT_LT(BytesOf(update.pieces), BytesOf(RandomContribution(*TestGrid(), 1)));
  EXPECT_EQ(update.record.payload_sha256(), DigestOf(*TestGrid(), update.pieces));
}

TEST(Coordinator, UpdatesSinceTheNewestSnapshotStayWhateverTheLimits) {
  TestCoordinator coordinator(TestSpec({"a", "b"}, 1), 1);
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  a.JoinAndWatch();
  for (uint64_t round = 1; round <= 2; ++round) {
    a.ExpectOpened(round);
    ASSERT_TRUE(a.SubmitRandom(round, 1).ok());
    a.ExpectUpdate(round);
  }
  // There is no snapshot: the start state and these are the only way back.
  b.JoinAndWatch();
  b.ExpectUpdate(1);
  b.ExpectUpdate(2);
}

TEST(Coordinator, StoppingEndsWatchesAndRefusesCalls) {
  TestCoordinator coordinator(TestSpec({"a", "b"}));
  FakeNode a(coordinator.host.get(), "a");
  a.JoinAndWatch();
  coordinator.host->Stop();
  const WatchQueue::Taken end = a.reader->Next();
  ASSERT_TRUE(end.closed);
  EXPECT_TRUE(absl::IsUnavailable(end.status));
  EXPECT_EQ(ReasonOf(end.status), kReasonShuttingDown);
  EXPECT_EQ(ReasonOf(a.Join()), kReasonShuttingDown);
  EXPECT_EQ(ReasonOf(a.Beat().status()), kReasonShuttingDown);
}

TEST(Coordinator, LeavingTwiceIsLeavingOnce) {
  TestCoordinator coordinator(TestSpec({"a", "b"}, 1));
  FakeNode a(coordinator.host.get(), "a"), b(coordinator.host.get(), "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  EXPECT_TRUE(b.Leave().ok());
  EXPECT_TRUE(b.Leave().ok());
  EXPECT_EQ(coordinator.host->live_nodes(), 1u);
  // Another process may take the name at once.
  FakeNode other(coordinator.host.get(), "b");
  other.join_request.set_secret("another secret of b");
  EXPECT_TRUE(other.Join().ok());
}

// Hash of the last record of a run in which three nodes send at once, each on a thread of its own,
// with pieces cut and ordered at random.
std::string RunAtOnce(uint32_t seed, uint64_t rounds) {
  const v1::RunSpec spec = TestSpec({"a", "b", "c"}, 0, rounds);
  CoordinatorOptions options;
  options.spec = spec;
  options.store = MakeMemoryStore();
  options.fold_threads = 1 + static_cast<int>(seed % 3);
  auto coordinator = Coordinator::Start(std::move(options));
  EXPECT_TRUE(coordinator.ok()) << coordinator.status();
  std::vector<std::string> last(3);
  std::vector<std::thread> threads;
  for (uint32_t index = 0; index < 3; ++index) {
    threads.emplace_back([&, index] {
      std::mt19937 random(seed + index);
      const auto grid = TestGrid();
      FakeNode node(coordinator->get(), std::string(1, static_cast<char>('a' + index)));
      node.JoinAndWatch();
      for (uint64_t round = 1; round <= rounds; ++round) {
        node.ExpectOpened(round);
        auto pieces = RandomContribution(*grid, static_cast<uint32_t>(round) * 3 + index,
                                         300 + random() % 2000);
        std::shuffle(pieces.begin(), pieces.end(), random);
        const auto receipt =
            node.Submit(node.Header(round, pieces), pieces, DigestOf(*grid, pieces));
        EXPECT_TRUE(receipt.ok()) << receipt.status();
        last[index] = node.ExpectUpdate(round).record.sha256();
        EXPECT_TRUE(node.Beat(round).ok());
      }
      EXPECT_EQ(node.reader->NextEvent().finished().round(), rounds);
      EXPECT_TRUE(node.Leave().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(last[0], last[1]);
  EXPECT_EQ(last[0], last[2]);
  return last[0];
}

TEST(Coordinator, NodesThatSendAtOnceMakeOneHistory) {
  const uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  const std::string first = RunAtOnce(seed, 30);
  EXPECT_EQ(RunAtOnce(seed + 1, 30), first);
  EXPECT_EQ(RunAtOnce(seed + 2, 30), first);
}

}  // namespace
}  // namespace isthmus
