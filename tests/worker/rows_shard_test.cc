// Methods whose momentum travels in whole rows, and what methods of every step share with them:
// steps alone, the base step's momentum, and a learning rate that stays out of the residual.
#include "worker/methods/rows_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <random>

#include "kernels/demo.h"
#include "server/fold.h"
#include "spec/piece.h"
#include "tests/worker/method_fixture.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

const std::vector<Shape> kShapes = {{130, 70}, {5000}, {}, {3, 3}, {64, 64}, {1, 200}};
constexpr uint64_t kSeed = 11;
const v1::CodecKind kKinds[] = {v1::CODEC_KIND_RANDOM, v1::CODEC_KIND_STRIDING,
                                v1::CODEC_KIND_SLICING};

v1::CodecSpec CodecOf(v1::CodecKind kind, v1::NumberFormat format = v1::NUMBER_FORMAT_F32) {
  v1::CodecSpec codec;
  codec.set_kind(kind);
  codec.set_rate(0.125);
  if (kind != v1::CODEC_KIND_DEMO && kind != v1::CODEC_KIND_DENSE) {
    codec.mutable_numbers()->set_format(format);
  } else {
    codec.clear_rate();
  }
  return CompleteCodec(codec);
}

MethodOptions OptionsOf(const Grid& grid, const v1::CodecSpec& codec) {
  MethodOptions options;
  options.grid = &grid;
  options.codec = codec;
  options.optimizer.set_base(v1::BASE_OPTIMIZER_SGD);
  options.seed = kSeed;
  options.piece_bytes_max = 3000;
  options.threads = 2;
  return options;
}

std::unique_ptr<Method> MakeOrDie(const MethodOptions& options,
                                  const std::vector<TensorPart<const float>>& parts) {
  auto method = MakeMethod(options, parts);
  EXPECT_TRUE(method.ok()) << method.status();
  return *std::move(method);
}

// As the coordinator does it: pieces checked, then folded.
FoldedUpdate FoldOf(const std::shared_ptr<const Grid>& grid,
                    const std::vector<std::vector<std::string>>& contributions) {
  std::vector<std::vector<HeldPiece>> held;
  for (const auto& pieces : contributions) {
    std::map<uint64_t, HeldPiece> sorted;
    for (const std::string& bytes : pieces) {
      auto piece = CheckContributionPiece(*grid, bytes);
      EXPECT_TRUE(piece.ok()) << piece.status();
      sorted[piece->first_chunk] = *piece;
    }
    held.emplace_back();
    for (auto& [_, piece] : sorted) held.back().push_back(piece);
  }
  return FoldContributions(*grid, held, 2);
}

std::shared_ptr<const Grid> SharedGrid(const v1::CodecSpec& codec) {
  return std::make_shared<const Grid>(MakeGrid(kShapes, codec));
}

// Whether each element of each tensor travels in a round, the obvious way.
std::vector<std::vector<bool>> Travels(const Grid& grid, uint64_t round) {
  std::vector<std::vector<bool>> travels;
  for (uint32_t t = 0; t < grid.tensors(); ++t) travels.emplace_back(grid.tensor_elements(t));
  const RowChoice choice(&grid, kSeed, round);
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    const ChunkPlace place = grid.Place(chunk);
    for (const uint32_t i : choice.Elements(place)) {
      travels[place.tensor][place.first_element + i / place.shape.cols * place.stride +
                            i % place.shape.cols] = true;
    }
  }
  return travels;
}

void ExpectResidual(const Method& method, const Tensors& expected) {
  ASSERT_EQ(method.State().residual, expected);
}

TEST(RowsShard, TakesWholeRowsOutOfTheResidualAndGivesThemBack) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  for (const v1::CodecKind kind : kKinds) {
    v1::CodecSpec codec = CodecOf(kind);
    codec.set_beta(0.75f);
    const auto grid = SharedGrid(codec);
    Tensors d = ZeroTensors(*grid);
    const auto method = MakeOrDie(OptionsOf(*grid, codec), WholeParts(d));
    for (uint64_t round = 1; round <= 12; ++round) {
      const Tensors gradients = RandomTensors(*grid, seed + static_cast<uint32_t>(round));
      for (size_t t = 0; t < d.size(); ++t) {
        UpdateMomentum(0.75f, 0.5f, gradients[t], absl::MakeSpan(d[t]));
      }
      const auto pieces = method->Encode(round, 0.5f, WholeParts(gradients));
      ASSERT_TRUE(pieces.ok()) << pieces.status();
      Tensors left = d;
      const std::vector<std::vector<bool>> travels = Travels(*grid, round);
      for (size_t t = 0; t < d.size(); ++t) {
        for (size_t i = 0; i < d[t].size(); ++i) {
          if (travels[t][i]) left[t][i] = 0.0f;
        }
      }
      ExpectResidual(*method, left);
      const bool included = round % 3 != 0;
      method->Settle(round, included);
      // Left out: as if nothing had been sent, bit for bit.
      if (included) d = left;
      ExpectResidual(*method, d);
    }
  }
}

TEST(RowsShard, TheResidualKeepsWhatANumberFormatLost) {
  for (const v1::CodecKind kind : kKinds) {
    for (const v1::NumberFormat format : {v1::NUMBER_FORMAT_BF16, v1::NUMBER_FORMAT_F16,
                                          v1::NUMBER_FORMAT_INT8, v1::NUMBER_FORMAT_INT4}) {
      const v1::CodecSpec codec = CodecOf(kind, format);
      const auto grid = SharedGrid(codec);
      const Tensors gradients = RandomTensors(*grid, 3);
      Tensors parameters = ZeroTensors(*grid);
      const auto method = MakeOrDie(OptionsOf(*grid, codec), WholeParts(std::as_const(parameters)));
      const auto pieces = method->Encode(1, 1.0f, WholeParts(gradients));
      ASSERT_TRUE(pieces.ok()) << pieces.status();
      method->Settle(1, true);
      // One node: u is what was sent, and without a sign a step by rate 1 leaves -u.
      MethodOptions plain = OptionsOf(*grid, codec);
      plain.codec.set_sign(false);
      const auto applying = MakeOrDie(plain, WholeParts(std::as_const(parameters)));
      const FoldedUpdate folded = FoldOf(grid, {*pieces});
      ASSERT_TRUE(applying
                      ->Apply({1.0f, 0.0f, folded.norm, 1}, Pointers(folded.pieces),
                              WholeParts(&parameters))
                      .ok());
      const MethodState state = method->State();
      double lost = 0;
      for (size_t t = 0; t < gradients.size(); ++t) {
        for (size_t i = 0; i < gradients[t].size(); ++i) {
          const float sent = -parameters[t][i];
          ASSERT_EQ(state.residual[t][i], gradients[t][i] - sent);
          if (sent != 0) lost += std::abs(state.residual[t][i]);
        }
      }
      EXPECT_GT(lost, 0);
    }
  }
}

// The update is the mean over the nodes in the rows of the round, in node order, and 0 elsewhere.
TEST(RowsShard, NodesStepByTheMeanOfTheirRows) {
  const v1::CodecSpec codec = [] {
    v1::CodecSpec c = CodecOf(v1::CODEC_KIND_STRIDING);
    c.set_sign(false);
    return c;
  }();
  const auto grid = SharedGrid(codec);
  constexpr int kNodes = 3;
  std::vector<std::vector<std::string>> contributions;
  std::vector<Tensors> gradients;
  const Tensors start = RandomTensors(*grid, 9);
  for (int node = 0; node < kNodes; ++node) {
    gradients.push_back(RandomTensors(*grid, 20 + static_cast<uint32_t>(node)));
    const auto method = MakeOrDie(OptionsOf(*grid, codec), WholeParts(start));
    contributions.push_back(*method->Encode(4, 0.5f, WholeParts(gradients.back())));
  }
  const FoldedUpdate folded = FoldOf(grid, contributions);
  Tensors parameters = start, expected = start;
  const auto method = MakeOrDie(OptionsOf(*grid, codec), WholeParts(start));
  ASSERT_TRUE(
      method->Apply({0.25f, 0.0f, folded.norm, 4}, Pointers(folded.pieces), WholeParts(&parameters))
          .ok());
  const std::vector<std::vector<bool>> travels = Travels(*grid, 4);
  for (size_t t = 0; t < expected.size(); ++t) {
    for (size_t i = 0; i < expected[t].size(); ++i) {
      if (!travels[t][i]) continue;
      float sum = 0.5f * gradients[0][t][i];
      for (int node = 1; node < kNodes; ++node) sum += 0.5f * gradients[node][t][i];
      const float u = sum / 3.0f;
      expected[t][i] -= 0.25f * u;
    }
  }
  EXPECT_EQ(parameters, expected);
}

struct CutNode {
  std::vector<UnitPlan> plan;
  std::vector<std::unique_ptr<Method>> ranks;
  Tensors parameters;
};

CutNode MakeCut(const Grid& grid, const MethodOptions& options, uint32_t ranks,
                const Tensors& start) {
  CutNode node{PlanOf(grid, ranks), {}, start};
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    node.ranks.push_back(MakeOrDie(options, RankParts(node.plan, rank, start)));
  }
  return node;
}

std::vector<std::string> Encode(CutNode* node, uint64_t round, const Tensors& gradients) {
  std::vector<std::string> pieces;
  for (uint32_t rank = 0; rank < node->ranks.size(); ++rank) {
    auto own = node->ranks[rank]->Encode(round, 0.01f, RankParts(node->plan, rank, gradients));
    EXPECT_TRUE(own.ok()) << own.status();
    for (std::string& piece : *own) pieces.push_back(std::move(piece));
    node->ranks[rank]->Settle(round, true);
  }
  return pieces;
}

void Apply(CutNode* node, uint64_t round, const FoldedUpdate& folded) {
  for (uint32_t rank = 0; rank < node->ranks.size(); ++rank) {
    ASSERT_TRUE(node->ranks[rank]
                    ->Apply({0.01f, 0.1f, folded.norm, round}, Pointers(folded.pieces),
                            RankParts(node->plan, rank, &node->parameters))
                    .ok());
  }
}

TEST(RowsShard, AnyNumberOfRanksSendsTheSameBytes) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  for (const v1::CodecKind kind : kKinds) {
    for (const auto rules : {v1::METHOD_RULES_ISTHMUS, v1::METHOD_RULES_PUBLISHED}) {
      v1::CodecSpec codec = CodecOf(kind, v1::NUMBER_FORMAT_BF16);
      codec.set_rules(rules);
      const auto grid = SharedGrid(codec);
      MethodOptions options = OptionsOf(*grid, codec);
      options.optimizer.set_momentum(0.5f);
      const Tensors start = RandomTensors(*grid, seed);
      std::vector<CutNode> cuts;
      for (const uint32_t ranks : {1u, 2u, 5u}) {
        cuts.push_back(MakeCut(*grid, options, ranks, start));
      }
      for (uint64_t round = 1; round <= 4; ++round) {
        const Tensors gradients = RandomTensors(*grid, seed + static_cast<uint32_t>(round));
        std::vector<std::string> digests;
        FoldedUpdate folded;
        for (CutNode& cut : cuts) {
          const std::vector<std::string> pieces = Encode(&cut, round, gradients);
          digests.push_back(*PayloadDigest(*grid, Pointers(pieces)));
          folded = FoldOf(grid, {pieces, pieces});
        }
        for (CutNode& cut : cuts) {
          ASSERT_EQ(digests[0], digests[&cut - cuts.data()]);
          Apply(&cut, round, folded);
          ASSERT_EQ(cut.parameters, cuts[0].parameters);
        }
      }
    }
  }
}

// FlexDeMo's chain "full, then demo": the gradients of a near group become their mean, and the far
// group exchanges components of that. Here the near group is the ranks of a node.
TEST(Chain, ANodeOfTwoRanksIsFullThenDemo) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  const v1::CodecSpec codec = CodecOf(v1::CODEC_KIND_DEMO);
  const auto grid = SharedGrid(codec);
  const Tensors start = RandomTensors(*grid, seed);
  // The chain by itself: one whole replica a node, whose gradient `full` has averaged.
  std::vector<CutNode> chain, nodes;
  for (int node = 0; node < 2; ++node) {
    chain.push_back(MakeCut(*grid, OptionsOf(*grid, codec), 1, start));
    nodes.push_back(MakeCut(*grid, OptionsOf(*grid, codec), 2, start));
  }
  for (uint64_t round = 1; round <= 4; ++round) {
    std::vector<std::vector<std::string>> of_chain, of_nodes;
    for (uint32_t node = 0; node < 2; ++node) {
      const uint32_t own = seed + static_cast<uint32_t>(round) * 4 + node * 2;
      const Tensors first = RandomTensors(*grid, own), second = RandomTensors(*grid, own + 1);
      // `full` over the near group, with a fold as the coordinator does it.
      const auto dense = SharedGrid(CodecOf(v1::CODEC_KIND_DENSE));
      std::vector<std::vector<std::string>> near;
      for (const Tensors* half : {&first, &second}) {
        near.push_back(*MakeOrDie(OptionsOf(*dense, dense->codec()), WholeParts(start))
                            ->Encode(round, 0.01f, WholeParts(*half)));
      }
      Tensors mean = ZeroTensors(*dense);
      MethodOptions descend = OptionsOf(*dense, dense->codec());
      const FoldedUpdate averaged = FoldOf(dense, near);
      ASSERT_TRUE(MakeOrDie(descend, WholeParts(start))
                      ->Apply({1.0f, 0.0f, averaged.norm, round}, Pointers(averaged.pieces),
                              WholeParts(&mean))
                      .ok());
      for (std::vector<float>& tensor : mean) {
        for (float& value : tensor) value = -value;
      }
      of_chain.push_back(Encode(&chain[node], round, mean));
      // The node: a reduce-scatter with mean, of which each rank has its part.
      Tensors scattered = first;
      for (size_t t = 0; t < first.size(); ++t) {
        for (size_t i = 0; i < first[t].size(); ++i) {
          scattered[t][i] = (first[t][i] + second[t][i]) / 2.0f;
        }
      }
      of_nodes.push_back(Encode(&nodes[node], round, scattered));
      ASSERT_EQ(*PayloadDigest(*grid, Pointers(of_chain.back())),
                *PayloadDigest(*grid, Pointers(of_nodes.back())));
    }
    const FoldedUpdate folded = FoldOf(grid, of_chain);
    for (int node = 0; node < 2; ++node) {
      Apply(&chain[node], round, folded);
      Apply(&nodes[node], round, FoldOf(grid, of_nodes));
      ASSERT_EQ(nodes[node].parameters, chain[0].parameters);
    }
  }
}

TEST(StepAlone, IsTheBaseStepOnTheOwnGradient) {
  for (const v1::CodecKind kind :
       {v1::CODEC_KIND_DEMO, v1::CODEC_KIND_RANDOM, v1::CODEC_KIND_DENSE}) {
    const v1::CodecSpec codec = CodecOf(kind);
    const auto grid = SharedGrid(codec);
    Tensors parameters = RandomTensors(*grid, 1), expected = parameters;
    const Tensors gradients = RandomTensors(*grid, 2);
    MethodOptions options = OptionsOf(*grid, codec);
    options.drifts = true;
    const auto method = MakeOrDie(options, WholeParts(std::as_const(parameters)));
    ASSERT_TRUE(method->Encode(1, 0.5f, WholeParts(RandomTensors(*grid, 3))).ok());
    const MethodState before = method->State();
    ASSERT_TRUE(
        method->StepAlone({0.25f, 0.5f}, WholeParts(gradients), WholeParts(&parameters)).ok());
    for (size_t t = 0; t < expected.size(); ++t) {
      std::vector<float> u = gradients[t];
      if (codec.sign()) SignInPlace(absl::MakeSpan(u));
      DecayInPlace(DecayFactor(0.25f, 0.5f), absl::MakeSpan(expected[t]));
      SgdStep(0.25f, u, absl::MakeSpan(expected[t]));
    }
    EXPECT_EQ(parameters, expected);
    EXPECT_EQ(method->State().residual, before.residual);
    EXPECT_EQ(method->State().pending.size(), before.pending.size());
    EXPECT_TRUE(method->keeps_own());
  }
}

TEST(BaseStep, MomentumOfSgdIsStateThatGoesWithIt) {
  const v1::CodecSpec codec = CodecOf(v1::CODEC_KIND_DEMO);
  const auto grid = SharedGrid(codec);
  MethodOptions options = OptionsOf(*grid, codec);
  options.optimizer.set_momentum(0.5f);
  Tensors parameters = RandomTensors(*grid, 1);
  const Tensors start = parameters;
  auto method = MakeOrDie(options, WholeParts(start));
  EXPECT_EQ(method->StateSections(WholeParts(start)).size(), 2u);
  Tensors m = ZeroTensors(*grid), expected = start;
  for (uint64_t round = 1; round <= 4; ++round) {
    const auto pieces = method->Encode(round, 0.5f, WholeParts(RandomTensors(*grid, round)));
    ASSERT_TRUE(pieces.ok());
    method->Settle(round, true);
    const FoldedUpdate folded = FoldOf(grid, {*pieces});
    // u: a step of rate 1 without momentum from zeros leaves -u.
    Tensors u = ZeroTensors(*grid);
    ASSERT_TRUE(MakeOrDie(OptionsOf(*grid, codec), WholeParts(start))
                    ->Apply({1.0f, 0.0f, 0, round}, Pointers(folded.pieces), WholeParts(&u))
                    .ok());
    for (size_t t = 0; t < m.size(); ++t) {
      for (size_t i = 0; i < m[t].size(); ++i) {
        m[t][i] = 0.5f * m[t][i] + -u[t][i];
        expected[t][i] -= 0.125f * m[t][i];
      }
    }
    ASSERT_TRUE(method
                    ->Apply({0.125f, 0.0f, folded.norm, round}, Pointers(folded.pieces),
                            WholeParts(&parameters))
                    .ok());
    ASSERT_EQ(parameters, expected) << round;
    // Another process goes on from the state.
    auto next = MakeOrDie(options, WholeParts(start));
    ASSERT_TRUE(next->SetState(method->State()).ok());
    method = std::move(next);
  }
}

TEST(DemoShard, TheLearningRateStaysOutOfTheResidualWhereItIsToldTo) {
  for (const v1::CodecKind kind : {v1::CODEC_KIND_DEMO, v1::CODEC_KIND_SLICING}) {
    v1::CodecSpec codec = CodecOf(kind);
    codec.set_lr_in_momentum(false);
    const auto grid = SharedGrid(codec);
    const Tensors start = ZeroTensors(*grid), gradients = RandomTensors(*grid, 5);
    const auto without = MakeOrDie(OptionsOf(*grid, codec), WholeParts(start));
    v1::CodecSpec usual = CodecOf(kind);
    const auto with_one = MakeOrDie(OptionsOf(*grid, usual), WholeParts(start));
    const auto sent = without->Encode(1, 0.001f, WholeParts(gradients));
    const auto same = with_one->Encode(1, 1.0f, WholeParts(gradients));
    ASSERT_TRUE(sent.ok() && same.ok());
    EXPECT_EQ(*sent, *same);
    EXPECT_EQ(without->State().residual, with_one->State().residual);
  }
}

TEST(RowsShard, RefusesWhatDemoRefuses) {
  const v1::CodecSpec codec = CodecOf(v1::CODEC_KIND_RANDOM);
  const auto grid = SharedGrid(codec);
  Tensors gradients = RandomTensors(*grid, 1);
  const auto method = MakeOrDie(OptionsOf(*grid, codec), WholeParts(std::as_const(gradients)));
  gradients[1][17] = INFINITY;
  const auto pieces = method->Encode(1, 0.5f, WholeParts(std::as_const(gradients)));
  ASSERT_FALSE(pieces.ok());
  EXPECT_THAT(std::string(pieces.status().message()), HasSubstr("'t1' is inf at element 17"));
}

}  // namespace
}  // namespace isthmus
