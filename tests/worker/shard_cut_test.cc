// The same full tensors, cut over 1, 2, 3 and 8 ranks: equal contributions, equal parameters, bit
// for bit (design section 7; cases C12 and C13).
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "base/limits.h"
#include "spec/piece.h"
#include "tests/worker/method_fixture.h"
#include "worker/methods/demo_shard.h"
#include "worker/state_hash.h"

namespace isthmus {
namespace {

// One node's ranks and its copy of the parameters.
struct Node {
  std::vector<UnitPlan> plan;
  std::vector<DemoShard> ranks;
  Tensors parameters;
};

Node MakeNode(const Grid& grid, const v1::CodecSpec& codec, uint32_t ranks, const Tensors& start) {
  Node node;
  node.plan = PlanOf(grid, ranks);
  node.parameters = start;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    // Threads and piece sizes differ as well: they must not matter.
    node.ranks.push_back(MakeShard(grid, codec, RankParts(node.plan, rank, start),
                                   static_cast<int>(1 + rank % 3), 500 + 1000 * rank));
    EXPECT_EQ(node.ranks.back().ranges(), RankChunkRanges(grid, node.plan, rank));
  }
  return node;
}

// The contribution of all ranks. `without_gradient`: a tensor that took no part in this step.
std::vector<std::string> Encode(Node* node, uint64_t round, float eta, const Tensors& gradients,
                                int without_gradient) {
  std::vector<std::string> pieces;
  for (uint32_t rank = 0; rank < node->ranks.size(); ++rank) {
    std::vector<TensorPart<const float>> parts;
    for (const auto& part : RankParts(node->plan, rank, gradients)) {
      if (static_cast<int>(part.tensor) != without_gradient) parts.push_back(part);
    }
    absl::StatusOr<std::vector<std::string>> sent = node->ranks[rank].Encode(round, eta, parts);
    EXPECT_TRUE(sent.ok()) << sent.status();
    for (std::string& piece : *sent) pieces.push_back(std::move(piece));
  }
  return pieces;
}

void Apply(Node* node, float eta, float decay, const std::vector<std::string>& update) {
  for (uint32_t rank = 0; rank < node->ranks.size(); ++rank) {
    const absl::Status status = node->ranks[rank].Apply(
        {eta, decay}, Pointers(update), RankParts(node->plan, rank, &node->parameters));
    EXPECT_TRUE(status.ok()) << status;
  }
}

// Two nodes; the first is cut in several ways at once, the other always over two ranks.
void ExpectCutsAgree(const std::vector<Shape>& shapes, v1::CodecSpec codec, int without_gradient) {
  codec = CompleteCodec(codec);
  const Grid grid = MakeGrid(shapes, codec);
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  const Tensors start = RandomTensors(grid, seed);
  std::vector<Node> cuts;
  for (uint32_t ranks : {1u, 2u, 3u, 8u}) cuts.push_back(MakeNode(grid, codec, ranks, start));
  Node other = MakeNode(grid, codec, 2, start);
  for (uint64_t round = 1; round <= 4; ++round) {
    const float eta = 0.25f / static_cast<float>(round);
    const Tensors gradients = RandomTensors(grid, seed + 2 * static_cast<uint32_t>(round));
    const int without = round == 2 ? without_gradient : -1;
    const auto theirs =
        Encode(&other, round, eta, RandomTensors(grid, seed + 2 * round + 1), without);
    std::vector<std::string> ours, digests;
    for (Node& cut : cuts) {
      ours = Encode(&cut, round, eta, gradients, without);
      const absl::StatusOr<std::string> digest = PayloadDigest(grid, Pointers(ours));
      ASSERT_TRUE(digest.ok()) << digest.status();
      digests.push_back(*digest);
    }
    for (const std::string& digest : digests) EXPECT_EQ(digest, digests[0]) << "round " << round;
    // Round 3 closes without this node: what it took must come back the same in every cut.
    const bool included = round != 3;
    const auto update = included ? Merge(grid, {ours, theirs}, 700) : Merge(grid, {theirs}, 700);
    Apply(&other, eta, 0.125f, update);
    for (DemoShard& rank : other.ranks) rank.Settle(round, true);
    for (Node& cut : cuts) {
      Apply(&cut, eta, 0.125f, update);
      for (DemoShard& rank : cut.ranks) rank.Settle(round, included);
      EXPECT_EQ(*SectionSha256(grid, WholeParts(cut.parameters), round, 1),
                *SectionSha256(grid, WholeParts(other.parameters), round, 1))
          << "round " << round;
    }
  }
  EXPECT_NE(cuts[0].parameters, start);
}

TEST(ShardCutTest, MatricesAndVectors) {
  ExpectCutsAgree({{200, 96}, {96}, {9000}, {}, {5, 6, 7}, {130, 130}}, {}, -1);
}

TEST(ShardCutTest, SignOff) {
  v1::CodecSpec codec;
  codec.set_sign(false);
  codec.set_alpha(0.5f);
  ExpectCutsAgree({{200, 96}, {9000}, {1, 1}}, codec, -1);
}

TEST(ShardCutTest, DivisorRule) {
  v1::CodecSpec codec;
  codec.set_chunk_rule(v1::CHUNK_RULE_DIVISOR);
  codec.set_top_k(32);
  ExpectCutsAgree({{96, 100}, {154}, {154}, {101, 7}}, codec, 1);
}

TEST(ShardCutTest, EighteenAndThreeRowsOnEightRanks) {
  v1::CodecSpec codec;
  codec.set_chunk_side(1);  // a block is one row
  codec.set_matrix_density(1);
  ExpectCutsAgree({{18, 40}, {3, 40}}, codec, 1);
  ExpectCutsAgree({{3, 40}}, codec, -1);
}

TEST(ShardCutTest, ThreeTileRowsOnEightRanks) { ExpectCutsAgree({{150, 40}}, {}, -1); }

// C12: of a model of eight tensors every second is frozen, so the manifest has four; one of those
// has no gradient in round 2.
TEST(ShardCutTest, FrozenTensorsAndOneWithoutGradient) {
  ExpectCutsAgree({{128, 64}, {64}, {64, 128}, {128}}, {}, 1);
}

// A missing gradient is a gradient of zeros, to the bit.
TEST(ShardCutTest, MissingGradientEqualsZeros) {
  const v1::CodecSpec codec = CompleteCodec();
  const Grid grid = MakeGrid({{70, 70}, {300}}, codec);
  Tensors gradients = RandomTensors(grid, 5);
  DemoShard missing = MakeShard(grid, codec, WholeParts(gradients));
  DemoShard zeros = MakeShard(grid, codec, WholeParts(gradients));
  EXPECT_EQ(*missing.Encode(1, 0.5f, WholeParts(gradients)),
            *zeros.Encode(1, 0.5f, WholeParts(gradients)));
  auto parts = WholeParts(gradients);
  parts.erase(parts.begin());
  std::fill(gradients[0].begin(), gradients[0].end(), 0.0f);
  EXPECT_EQ(*missing.Encode(2, 0.5f, parts), *zeros.Encode(2, 0.5f, WholeParts(gradients)));
}

}  // namespace
}  // namespace isthmus
