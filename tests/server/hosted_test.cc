// Runs with local steps through a coordinator: hosted and replicated, their snapshots and checks.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "server/outer_fold.h"
#include "tests/server/hosted_runs.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const char kShort[] =
    "preset: 'dist_sign_momentum_short' optimizer { lr: 0.01 } "
    "outer { sign: OUTER_SIGN_RANDOM_THREE_POINT } ";

class HostedTest : public HostedFixture {
 protected:
  // Plain replicas that take the outer step themselves, with the same contributions.
  std::vector<float> Replicated(const std::string& text, uint64_t rounds) {
    Begin(text + " placement: PLACEMENT_REPLICATED");
    Start();
    std::vector<float> x = start_, first(x.size()), second(x.size());
    OuterPowers powers;
    for (uint64_t round = 1; round <= rounds; ++round) {
      Round(round);
      const std::vector<float> g = ModelOf(*grid_, ChunksOf(*grid_, last_pieces_), false);
      const float gamma = RoundLearningRate(spec_, round);
      const OuterSettings settings = OuterSettingsOf(spec_.outer(), gamma);
      powers = NextOuterPowers(settings, powers);
      const int arrays = OuterStateArrays(settings.kind);
      OuterStep(
          *MakeOuterRound(settings, {static_cast<double>(gamma), powers, DrawKeyOf(spec_, round)}),
          0, g,
          {absl::MakeSpan(x), arrays > 0 ? absl::MakeSpan(first) : absl::Span<float>(),
           arrays > 1 ? absl::MakeSpan(second) : absl::Span<float>()});
    }
    return x;
  }
};

// The replicas after 100 rounds are the coordinator's x, whatever replies lose.
TEST_F(HostedTest, NodesHoldTheModelBitForBit) {
  for (const std::string& text :
       {std::string("preset: 'diloco' "), std::string(kShort),
        std::string("preset: 'diloco' codec { reply { format: NUMBER_FORMAT_INT8 } }"),
        std::string("preset: 'sparse_loco' codec { topk_chunk: 512 topk_k: 16 "
                    "reply { format: NUMBER_FORMAT_INT4 hadamard: 32 } }"),
        std::string("preset: 'demo_local'")}) {
    SCOPED_TRACE(text);
    Begin(text + " steps: 200 schedule { local_steps: 2 } snapshot { every_rounds: 40 }");
    Start();
    for (uint64_t round = 1; round <= 100 && !HasFatalFailure(); ++round) {
      Round(round);
      Finish();
      if (round % 40 == 0 || round == 100) ExpectSnapshot(round, nodes_[0].x);
      EXPECT_EQ(Kept().back(), round == 100 ? 100 : round / 40 * 40);
    }
    EXPECT_TRUE(host()->finished());
    for (const Node& node : nodes_) EXPECT_TRUE(SameBits(node.x, nodes_[0].x));
    EXPECT_FALSE(SameBits(nodes_[0].x, start_));
    EXPECT_THAT(Kept(), ElementsAre(80, 100));
  }
}

TEST_F(HostedTest, HostedIsReplicated) {
  for (const std::string& text :
       {std::string("preset: 'diloco' "), std::string("preset: 'slowmo' "),
        std::string("preset: 'diloco' outer { kind: OUTER_KIND_ADAMW } "),
        std::string("preset: 'demo_local' "), std::string("preset: 'sparse_loco' "),
        std::string("preset: 'diloco' aggregate { kind: AGGREGATE_KIND_MEDIAN } "),
        std::string("preset: 'diloco' aggregate { kind: AGGREGATE_KIND_NORM_CLIPPED_MEAN } ")}) {
    SCOPED_TRACE(text);
    const std::vector<float> replicated = Replicated(text, 20);
    Begin(text + " placement: PLACEMENT_HOSTED");
    Start();
    RunRounds(1, 20);
    EXPECT_TRUE(SameBits(nodes_[0].x, replicated));
  }
}

// Whoever votes, and whichever way the numbers travel, an update says what its round was made of.
TEST_F(HostedTest, RecordsSayStepAndLearningRate) {
  Begin("preset: 'diloco' steps: 7 optimizer { warmup_steps: 4 } schedule { local_steps: 3 }");
  Start();
  RunRounds(1, 3);
  EXPECT_TRUE(host()->finished());
  std::vector<uint64_t> steps;
  for (const v1::UpdateRecord& record : nodes_[0].records) {
    steps.push_back(record.step());
    const float gamma = RoundLearningRate(spec_, record.round());
    uint32_t bits = 0;
    std::memcpy(&bits, &gamma, sizeof(bits));
    EXPECT_EQ(record.lr_bits(), bits);
    EXPECT_EQ(record.codec(), v1::PAYLOAD_CODEC_REPLY);
    EXPECT_GT(record.norm_bits(), 0u);
  }
  EXPECT_THAT(steps, ElementsAre(3, 6, 7));
}

TEST_F(HostedTest, NoRoundOpensBeforeTheStartStateIsHere) {
  Begin("preset: 'diloco' quorum: 1");
  const v1::SnapshotFacts facts = StartFacts();
  for (Node& node : nodes_) {
    node.x = start_;
    node.speaker->join_request.set_state_sha256(facts.state_sha256());
  }
  speaker(0).JoinAndWatch();
  speaker(1).JoinAndWatch();  // which holds the same state already
  speaker(2).JoinAndWatch();
  EXPECT_THAT(host()->WaitingFor(),
              HasSubstr("when the coordinator holds the start state, which comes from a"));
  EXPECT_TRUE(speaker(0).reader->Empty());
  UploadStart(facts);
  EXPECT_THAT(Kept(), ElementsAre(0));
  ExpectSnapshot(0, start_);
  Round(1);
}

TEST_F(HostedTest, AStartStateThatIsNotFiniteStopsTheRun) {
  Begin("preset: 'diloco'");
  start_[grid_->tensor_offset(1) + 3] = std::numeric_limits<float>::infinity();
  const v1::SnapshotFacts facts = StartFacts();
  speaker(0).join_request.set_state_sha256(facts.state_sha256());
  speaker(0).JoinAndWatch();
  v1::UploadSnapshotHeader header;
  header.set_run("test");
  header.set_node("a");
  header.set_incarnation(speaker(0).joined.incarnation());
  *header.mutable_facts() = facts;
  WriteRanges(AllRanges(1, grid_->elements()), header.mutable_ranges());
  auto sink = host()->BeginUpload(header);
  v1::SnapshotPiece piece;
  piece.set_data(BytesOfValues(start_));
  ASSERT_TRUE((*sink)->AddPiece(piece).ok());
  ASSERT_TRUE((*sink)->End().ok());
  const absl::Status stopped = host()->FinishSnapshot();
  EXPECT_TRUE(absl::IsDataLoss(stopped)) << stopped;
  EXPECT_THAT(host()->WaitingFor(), HasSubstr("bias, element 3, is inf"));
}

TEST_F(HostedTest, WhatAContributionSaysOfItselfIsChecked) {
  struct Wrong {
    std::string reason, sentence;
    std::function<void(v1::SubmitHeader*)> spoil;
  };
  const std::vector<Wrong> cases = {
      {"WRONG_LEARNING_RATE", "lr_bits is 0 (0)", [](auto* h) { h->set_lr_bits(0); }},
      {"WRONG_LEARNING_RATE", "(0.5); the learning rate of round 1 is",
       [](auto* h) { h->set_lr_bits(0x3f000000); }},
      {"WRONG_STEPS", "steps is 0; it is 1 to aggregate.steps_max, 12",
       [](auto* h) { h->set_steps(0); }},
      {"WRONG_STEPS", "steps is 13", [](auto* h) { h->set_steps(13); }},
      {"TOKENS_LIMIT", "tokens is 5001; it is at most aggregate.tokens_max, 5000",
       [](auto* h) { h->set_tokens(5001); }},
      {"WRONG_WEIGHT", "says that 0 tokens made it", [](auto* h) { h->set_tokens(0); }},
  };
  for (const Wrong& wrong : cases) {
    SCOPED_TRACE(wrong.sentence);
    Begin("preset: 'diloco' aggregate { kind: AGGREGATE_KIND_WEIGHTED_MEAN tokens_max: 5000 }");
    Start();
    for (Node& node : nodes_) node.speaker->ExpectOpened(1);
    const auto pieces = OuterPieces(*grid_, 1);
    v1::SubmitHeader header = speaker(0).Header(1, pieces);
    wrong.spoil(&header);
    const absl::Status refused = host()->BeginSubmit(header).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_EQ(ReasonOf(refused), wrong.reason);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(wrong.sentence));
    // That contribution only.
    Submit(1, 1);
    Submit(1, 2);
    ASSERT_TRUE(host()->CommitOne().ok());
    Receive(1, 1);
    EXPECT_EQ(nodes_[1].records.back().included_size(), 2);
  }
}

// Node c was left out of rounds of 4 steps when an operator lowers them to 1: what it carries has
// more steps than the new spec's rounds could have made, and counts all the same.
TEST_F(HostedTest, WhatIsCarriedOverAnUpdateHasTheLimitsOfItsTime) {
  Begin(
      "preset: 'diloco' quorum: 2 schedule { local_steps: 4 } aggregate { kind: "
      "AGGREGATE_KIND_WEIGHTED_MEAN weight: CONTRIBUTION_WEIGHT_STEPS carry_rounds: 2 }");
  Start();
  const auto send = [this](uint64_t round, size_t node, uint64_t steps) {
    const uint32_t lr_bits = speaker(node).ExpectOpened(round).lr_bits();
    const auto pieces = OuterPieces(*grid_, static_cast<uint32_t>(10 * round + node));
    v1::SubmitHeader header = speaker(node).Header(round, pieces);
    header.set_lr_bits(lr_bits);
    header.set_steps(steps);
    return speaker(node).Submit(header, pieces, DigestOf(*grid_, pieces)).status();
  };
  const auto commit = [this](uint64_t round, int included) {
    const absl::Status committed = host()->CommitOne();
    ASSERT_TRUE(committed.ok()) << committed;
    for (size_t node = 0; node < 3; ++node) {
      EXPECT_EQ(speaker(node).ExpectUpdate(round).record.included_size(), included);
    }
  };
  for (size_t node = 0; node < 2; ++node) EXPECT_TRUE(send(1, node, 4).ok());
  commit(1, 2);  // c came when it had opened
  speaker(2).ExpectOpened(2);
  ASSERT_TRUE(speaker(2).Abstain(2, "away").ok());
  v1::UpdateRunRequest update;
  update.add_set("schedule.local_steps=1");
  ASSERT_TRUE(host()->UpdateRun(update).ok());
  for (size_t node = 0; node < 2; ++node) EXPECT_TRUE(send(2, node, 4).ok());
  for (size_t node = 0; node < 3; ++node) {
    EXPECT_TRUE(speaker(node).reader->NextEvent().has_revised());
  }
  commit(2, 2);
  for (size_t node = 0; node < 2; ++node) EXPECT_TRUE(send(3, node, 1).ok());
  const absl::Status carried = send(3, 2, 9);
  EXPECT_TRUE(carried.ok()) << carried;
  commit(3, 3);
  for (size_t node = 0; node < 2; ++node) EXPECT_TRUE(send(4, node, 1).ok());
  const absl::Status more = send(4, 2, 13);  // than three rounds of any spec
  EXPECT_THAT(std::string(more.message()), HasSubstr("1 to aggregate.steps_max, 12"));
  commit(4, 2);
  for (size_t node = 0; node < 2; ++node) EXPECT_TRUE(send(5, node, 1).ok());
  EXPECT_EQ(ReasonOf(send(5, 2, 4)), "WRONG_STEPS");  // nothing of before can be in it
}

TEST_F(HostedTest, AnAttemptIsOfOneSize) {
  Begin("preset: 'diloco'");
  Start();
  speaker(0).ExpectOpened(1);
  const auto pieces = OuterPieces(*grid_, 1);
  v1::SubmitHeader header = speaker(0).Header(1, pieces);
  ASSERT_TRUE(host()->BeginSubmit(header).ok());
  ASSERT_TRUE(host()->BeginSubmit(header).ok());
  header.set_tokens(header.tokens() + 1);
  EXPECT_EQ(ReasonOf(host()->BeginSubmit(header).status()), "OTHER_SIZE");
}

// Weights decide: a node that says ten times the tokens counts ten times as much.
TEST_F(HostedTest, TokensWeigh) {
  Begin("preset: 'local_sgd' aggregate { kind: AGGREGATE_KIND_WEIGHTED_MEAN }");
  Start();
  std::vector<OuterContribution> contributions;
  for (size_t node = 0; node < 3; ++node) {
    speaker(node).ExpectOpened(1);
    const auto pieces = OuterPieces(*grid_, static_cast<uint32_t>(node));
    v1::SubmitHeader header = speaker(node).Header(1, pieces);
    header.set_tokens(node == 2 ? 1000 : 100);
    ASSERT_TRUE(speaker(node).Submit(header, pieces, DigestOf(*grid_, pieces)).ok());
    contributions.push_back({{}, {header.tokens(), header.steps()}});
    for (const std::string& piece : pieces) {
      contributions.back().pieces.push_back(*CheckContributionPiece(*grid_, piece));
    }
  }
  ASSERT_TRUE(host()->CommitOne().ok());
  Receive(1, 0);
  const auto folded = FoldOuter(OuterFoldSettingsOf(spec_), *grid_, contributions, 1);
  for (size_t i = 0; i < start_.size(); ++i) start_[i] -= folded->g[i];
  EXPECT_TRUE(SameBits(nodes_[0].x, start_));
}

TEST_F(HostedTest, AVoidRoundChangesNothingButTheStep) {
  Begin("preset: 'diloco' snapshot { every_rounds: 1 }");
  Start();
  Round(1);
  const std::vector<float> before = nodes_[0].x;
  for (size_t node = 0; node < 3; ++node) {
    speaker(node).ExpectOpened(2);
    ASSERT_TRUE(speaker(node).Abstain(2, "no").ok());
  }
  ASSERT_TRUE(host()->CommitOne().ok());
  for (size_t node = 0; node < 3; ++node) Receive(2, node);
  EXPECT_TRUE(nodes_[0].records.back().is_void());
  EXPECT_EQ(nodes_[0].records.back().step(), 4u);
  Finish();
  ExpectSnapshot(2, before);
  Restart(2);  // it is replayed as what it was
  for (size_t node = 0; node < 3; ++node) speaker(node).Watch();
  Round(3);
  EXPECT_FALSE(SameBits(nodes_[0].x, before));
  Finish();
  ExpectSnapshot(3, nodes_[0].x);
}

TEST_F(HostedTest, OneThatComesLateStartsFromASnapshot) {
  Begin("preset: 'diloco' quorum: 2 snapshot { every_rounds: 4 }");
  const v1::SnapshotFacts facts = StartFacts();
  for (Node& node : nodes_) {
    node.x = start_;
    node.speaker->join_request.set_state_sha256(facts.state_sha256());
  }
  speaker(0).JoinAndWatch();
  UploadStart(facts);
  speaker(1).JoinAndWatch();
  for (uint64_t round = 1; round <= 6; ++round) {
    Round(round, {0, 1});
    Finish();
  }
  const auto fetched = Fetch();
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(fetched->facts.round(), 4u);
  nodes_[2].x = fetched->x;
  speaker(2).join_request.set_last_round(4);
  speaker(2).join_request.set_last_update_sha256(fetched->facts.update_sha256());
  speaker(2).join_request.set_state_sha256(fetched->facts.state_sha256());
  speaker(2).JoinAndWatch();
  Receive(5, 2);
  Receive(6, 2);
  EXPECT_TRUE(SameBits(nodes_[2].x, nodes_[0].x));
  // No more of it is served than nodes hold.
  v1::FetchSnapshotRequest request;
  WriteRanges(AllRanges(2, grid_->elements()), request.mutable_ranges());
  EXPECT_TRUE(absl::IsInvalidArgument(host()->BeginFetch(request).status()));
}

TEST_F(HostedTest, ASnapshotIsMadeWhenItIsAskedFor) {
  Begin("preset: 'diloco'");
  Start();
  Round(1);
  const auto asked = host()->RequestSnapshot();
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(*asked, 3u);
  RunRounds(2, 3);
  EXPECT_THAT(Kept(), ElementsAre(0));
  const std::vector<float> x = nodes_[0].x;
  Round(4);  // before its step the state after round 3 is written
  ExpectSnapshot(3, x);
  EXPECT_THAT(Kept(), ElementsAre(0, 3));
}

TEST_F(HostedTest, ARunThatDivergesStopsAndPublishesNothing) {
  Begin("preset: 'local_sgd' steps: 40");
  Start();
  for (size_t node = 0; node < 3; ++node) {
    speaker(node).ExpectOpened(1);
    PieceWriter writer(grid_.get(), v1::PAYLOAD_CODEC_NUMBERS, kPieceBytesMax);
    for (uint64_t chunk = 0; chunk < grid_->chunks(); ++chunk) {
      writer.AppendValues(chunk, std::vector<float>(grid_->Place(chunk).shape.elements(), -6e29f));
    }
    const auto pieces = writer.Finish();
    ASSERT_TRUE(speaker(node)
                    .Submit(speaker(node).Header(1, pieces), pieces, DigestOf(*grid_, pieces))
                    .ok());
  }
  ASSERT_TRUE(host()->CommitOne().ok());
  for (size_t node = 0; node < 3; ++node) Receive(1, node);
  for (size_t node = 0; node < 3; ++node) {
    speaker(node).ExpectOpened(2);
    PieceWriter writer(grid_.get(), v1::PAYLOAD_CODEC_NUMBERS, kPieceBytesMax);
    for (uint64_t chunk = 0; chunk < grid_->chunks(); ++chunk) {
      writer.AppendValues(chunk, std::vector<float>(grid_->Place(chunk).shape.elements(), -6e29f));
    }
    const auto pieces = writer.Finish();
    ASSERT_TRUE(speaker(node)
                    .Submit(speaker(node).Header(2, pieces), pieces, DigestOf(*grid_, pieces))
                    .ok());
  }
  const absl::Status stopped = host()->CommitOne();
  EXPECT_EQ(ReasonOf(stopped), "MODEL_DIVERGED") << stopped;
  EXPECT_THAT(host()->WaitingFor(), AllOf(HasSubstr("the run is stopped"), HasSubstr("wte, elem")));
  EXPECT_EQ(store_->last_round(), 1u);
  const WatchQueue::Taken end = speaker(0).reader->Next();
  EXPECT_EQ(end.event, nullptr);
  EXPECT_EQ(ReasonOf(end.status), "MODEL_DIVERGED");
}

}  // namespace
}  // namespace isthmus
