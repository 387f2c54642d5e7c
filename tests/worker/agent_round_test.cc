// Whole rounds: real ranks, real agents, a real coordinator.
#include "gmock/gmock.h"
#include "tests/worker/agent_harness.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

class AgentRoundTest : public AgentTest {};

TEST_F(AgentRoundTest, TwoNodesOfTwoAndOneRanksGoThroughARun) {
  StartRun({"a", "b"}, 3);
  AgentOptions options = Options("a", 2);
  options.exit_when_finished = true;
  StartAgent(options);
  StartAgent("b", 1);
  const auto a = JoinAll("a", 2), b = JoinAll("b", 1);
  for (uint64_t round = 1; round <= 3; ++round) {
    EXPECT_EQ(Opened(a).round(), round);
    const v1::RoundOpened opened = Opened(b);
    for (uint32_t rank = 0; rank < 2; ++rank)
      a[rank]->Submit(opened, Pieces(rank, 2, round), {10, 1});
    b[0]->Submit(opened, Pieces(0, 1, round + 100), {10, 1});
    const auto at_a = Updates(a), at_b = Updates(b);
    ASSERT_EQ(at_a.size(), 2U);
    ASSERT_EQ(at_b.size(), 1U);
    const v1::UpdateRecord& record = at_b[0].committed->record;
    EXPECT_EQ(record.round(), round);
    ASSERT_EQ(record.included_size(), 2);
    EXPECT_TRUE(at_b[0].included);
    EXPECT_EQ(at_b[0].committed->pieces.size(), record.pieces());
    for (uint32_t rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(at_a[rank].included);
      EXPECT_EQ(at_a[rank].committed->record.sha256(), record.sha256());
      // A rank's pieces cover what it holds.
      ChunkRanges covered;
      for (const std::string& piece : at_a[rank].committed->pieces) {
        const auto view = OpenPiece(*grid_, piece);
        ASSERT_TRUE(view.ok());
        covered.Add(view->first_chunk, view->end_chunk);
      }
      const ChunkRanges part = PartOf(*grid_, rank, 2);
      for (const auto& [begin, end] : part.list()) {
        EXPECT_TRUE(covered.Contains(begin, end));
      }
    }
  }
  for (const auto* clients : {&a, &b}) {
    for (const auto& client : *clients) {
      const auto end = client->WaitOpened();
      ASSERT_TRUE(end.ok()) << end.status();
      EXPECT_FALSE(end->has_value());
      EXPECT_EQ(client->WaitUpdate().status().code(), absl::StatusCode::kOutOfRange);
      client->Leave("finished");
    }
  }
  // Every update came to each node once, for all of its ranks.
  EXPECT_EQ(coordinator_->counts().watches, 2);
  EXPECT_EQ(coordinator_->counts().submissions, 6);
  ASSERT_TRUE(agents_["a"]->agent().WaitEnded(30000));
  EXPECT_TRUE(agents_["a"]->agent().ended().ok());
  EXPECT_FALSE(agents_["b"]->agent().WaitEnded(0)) << "it waits for the next group";
}

// Of a rank that holds its share of the blocks; their hashes follow from `seed`.
std::vector<v1::StatePart> StateParts(const Grid& grid, uint64_t round, uint32_t rank,
                                      uint32_t ranks, char seed) {
  const auto blocks = static_cast<uint32_t>(grid.blocks().size());
  v1::StatePart part;
  part.set_round(round);
  part.set_step(round);
  part.set_sections(1);
  // In two messages, of which one may be empty.
  std::vector<v1::StatePart> parts(2, part);
  for (uint32_t block = blocks * rank / ranks; block < blocks * (rank + 1) / ranks; ++block) {
    v1::BlockHashes& hashes = *parts[block % 2].add_blocks();
    hashes.set_first_block(block);
    hashes.set_sha256s(std::string(32, static_cast<char>(seed + block)));
  }
  return parts;
}

TEST_F(AgentRoundTest, NodesSayWhatTheirRanksHoldHoweverManyTheyAre) {
  v1::RunSpec spec = SmallSpec({"a", "b"}, 10);
  spec.set_check_every(1);
  StartRun(spec);
  StartAgent("a", 2);
  StartAgent("b", 3);
  const auto a = JoinAll("a", 2), b = JoinAll("b", 3);
  const auto run_round = [&](uint64_t round, char seed_of_b) {
    const v1::RoundOpened opened = Opened(a);
    EXPECT_EQ(Opened(b).round(), round);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      a[rank]->Submit(opened, Pieces(rank, 2, round), {10, 1});
    }
    for (uint32_t rank = 0; rank < 3; ++rank) {
      b[rank]->Submit(opened, Pieces(rank, 3, round + 100), {10, 1});
    }
    Updates(a);
    Updates(b);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      a[rank]->ReportParts(StateParts(*grid_, round, rank, 2, 'a'));
    }
    for (uint32_t rank = 0; rank < 3; ++rank) {
      b[rank]->ReportParts(StateParts(*grid_, round, rank, 3, seed_of_b));
    }
  };
  const auto check = [this] { return coordinator_->host().Look().state_check; };
  run_round(1, 'a');
  EXPECT_TRUE(Eventually([&] { return check().agreed_round() == 1; }));
  run_round(2, 'b');
  EXPECT_TRUE(Eventually([&] { return check().has_dispute(); }));
  EXPECT_EQ(check().dispute().round(), 2u);
  EXPECT_EQ(check().dispute().states_size(), 2);
  EXPECT_EQ(check().dispute().agreed_round(), 1u);

  v1::ChooseStateRequest choice;
  choice.set_node("a");
  ASSERT_TRUE(coordinator_->host().ChooseState(choice).ok());
  EXPECT_EQ(check().diverged_size(), 1);
}

TEST_F(AgentRoundTest, TheOrderOfRanksChangesNothing) {
  std::string digests[2];
  for (const bool backwards : {false, true}) {
    StartRun({"a"}, 1);
    StartAgent("a", 2);
    const auto ranks = JoinAll("a", 2);
    const v1::RoundOpened opened = Opened(ranks);
    const uint32_t first = backwards ? 1 : 0;
    ranks[first]->Submit(opened, Pieces(first, 2, 5), {10, 1});
    ASSERT_TRUE(Eventually([&] { return ranks[first]->counters().bytes_up > 0; }));
    EXPECT_EQ(coordinator_->counts().submissions, 0);
    ranks[1 - first]->Submit(opened, Pieces(1 - first, 2, 5), {10, 1});
    const auto updates = Updates(ranks);
    ASSERT_EQ(updates.size(), 2U);
    ASSERT_EQ(updates[0].committed->record.included_size(), 1);
    digests[first] = updates[0].committed->record.included(0).digest();
    KillAgent("a");
  }
  EXPECT_EQ(digests[0], digests[1]);
}

TEST_F(AgentRoundTest, TheNodeSaysItsTokensStepsAndLearningRate) {
  StartRun({"a"}, 2);
  StartAgent("a", 2);
  const auto ranks = JoinAll("a", 2);
  v1::RoundOpened opened = Opened(ranks);
  ranks[0]->Submit(opened, Pieces(0, 2, 1), {30, 1});
  ranks[1]->Submit(opened, Pieces(1, 2, 1), {40, 1});
  for (const RankClient::Update& update : Updates(ranks)) EXPECT_TRUE(update.included);
  const v1::SubmitHeader header = coordinator_->counts().last_header();
  EXPECT_EQ(header.tokens(), 70U);
  EXPECT_EQ(header.steps(), 1U);
  EXPECT_EQ(header.lr_bits(), opened.lr_bits());
  EXPECT_NE(header.lr_bits(), 0U);
  // Another rate than the round's is refused at the agent already.
  opened = Opened(ranks);
  v1::RoundOpened other = opened;
  other.set_lr_bits(opened.lr_bits() + 1);
  ranks[0]->Submit(other, Pieces(0, 2, 2), {30, 1});
  ranks[1]->Submit(opened, Pieces(1, 2, 2), {30, 1});
  for (const RankClient::Update& update : Updates(ranks)) {
    EXPECT_TRUE(update.committed->record.is_void());
  }
  EXPECT_THAT(coordinator_->counts().last_header().abstain_reason(), HasSubstr("lr_bits are"));
}

TEST_F(AgentRoundTest, RanksThatTookOtherStepsAbstainTogether) {
  StartRun({"a"}, 1);
  StartAgent("a", 2);
  const auto ranks = JoinAll("a", 2);
  const v1::RoundOpened opened = Opened(ranks);
  EXPECT_FALSE(ranks[0]->UpdateReady());
  ranks[0]->Submit(opened, Pieces(0, 2, 1), {10, 12});
  ranks[1]->Submit(opened, Pieces(1, 2, 1), {10, 11});
  ASSERT_TRUE(Eventually([&] { return ranks[0]->UpdateReady(); }));
  for (const RankClient::Update& update : Updates(ranks)) {
    EXPECT_TRUE(update.committed->record.is_void());
  }
  EXPECT_THAT(coordinator_->counts().last_header().abstain_reason(),
              HasSubstr("all ranks of a node take the same steps"));
}

TEST_F(AgentRoundTest, OneRankAbstainsForTheNode) {
  StartRun({"a"}, 2);
  StartAgent("a", 2);
  const auto ranks = JoinAll("a", 2);
  const v1::RoundOpened opened = Opened(ranks);
  ranks[0]->Submit(opened, Pieces(0, 2, 1), {10, 1});
  ranks[1]->Abstain(opened, "non-finite gradient in 'h.0.bias'");
  for (const RankClient::Update& update : Updates(ranks)) {
    EXPECT_TRUE(update.committed->record.is_void());
    EXPECT_FALSE(update.included);
    EXPECT_TRUE(update.committed->pieces.empty());
  }
  EXPECT_EQ(Opened(ranks).round(), 2U);
}

TEST_F(AgentRoundTest, APieceThatIsNotFiniteIsRefusedAtTheSource) {
  StartRun({"a"}, 2);
  StartAgent("a", 2);
  const auto ranks = JoinAll("a", 2);
  const v1::RoundOpened opened = Opened(ranks);
  std::vector<std::string> pieces = Pieces(0, 2, 1);
  pieces.back() = WithNan(pieces.back());
  ranks[0]->Submit(opened, pieces, {10, 1});
  ranks[1]->Submit(opened, Pieces(1, 2, 1), {10, 1});
  for (const RankClient::Update& update : Updates(ranks)) {
    EXPECT_TRUE(update.committed->record.is_void());
    EXPECT_FALSE(update.included);
  }
  // Only the abstention went up; the next round is a normal one.
  EXPECT_EQ(coordinator_->counts().submissions, 1);
  const v1::RoundOpened second = Opened(ranks);
  for (uint32_t rank = 0; rank < 2; ++rank)
    ranks[rank]->Submit(second, Pieces(rank, 2, 2), {10, 1});
  for (const RankClient::Update& update : Updates(ranks)) EXPECT_TRUE(update.included);
}

TEST_F(AgentRoundTest, ARoundThatClosedWithoutTheNodeIsNotIncluded) {
  v1::RunSpec spec = SmallSpec({"a", "b"}, 2);
  spec.set_quorum(1);
  spec.mutable_timing()->set_grace_ms(1);
  StartRun(spec);
  StartAgent("a", 2);
  StartAgent("b", 1);
  const auto a = JoinAll("a", 2);
  const v1::RoundOpened opened = Opened(a);
  ASSERT_EQ(opened.round(), 1U);
  const auto b = JoinAll("b", 1);
  for (uint32_t rank = 0; rank < 2; ++rank) a[rank]->Submit(opened, Pieces(rank, 2, 1), {10, 1});
  for (const RankClient::Update& update : Updates(a)) EXPECT_TRUE(update.included);
  const auto at_b = Updates(b);
  ASSERT_EQ(at_b.size(), 1U);
  EXPECT_FALSE(at_b[0].included);
  // What comes too late is refused, and the round after it goes on.
  b[0]->Submit(opened, Pieces(0, 1, 1), {10, 1});
  EXPECT_EQ(Opened(b).round(), 2U);
}

}  // namespace
}  // namespace isthmus
