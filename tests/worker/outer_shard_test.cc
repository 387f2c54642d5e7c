// The worker half of outer runs against plain arithmetic on whole tensors.
#include "worker/methods/outer_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "google/protobuf/text_format.h"
#include "kernels/demo.h"
#include "spec/piece.h"
#include "spec/run_spec.h"
#include "tests/worker/method_fixture.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

const std::vector<Shape> kShapes = {{70, 65}, {130}, {1}, {5, 4100}, {}};

v1::RunSpec SpecOf(const std::string& more) {
  v1::RunSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(
      absl::StrCat("run: 'local' seed: 7 steps: 1000 nodes { name: 'a' } nodes { name: 'b' } "
                   "optimizer { lr: 0.01 } ",
                   more),
      &spec));
  const absl::Status complete = CompleteRunSpec(&spec);
  EXPECT_TRUE(complete.ok()) << complete;
  return spec;
}

// A node: its parameters, cut over ranks, and each rank's method.
class Node {
 public:
  Node(const v1::RunSpec& spec, uint32_t ranks, int threads = 1)
      : spec_(spec), grid_(MakeGrid(kShapes, spec.codec())), plan_(PlanOf(grid_, ranks)) {
    local_ = RandomTensors(grid_, 1);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      MethodOptions options;
      options.grid = &grid_;
      options.codec = spec.codec();
      options.optimizer = spec.optimizer();
      options.outer = spec;
      options.threads = threads;
      auto method = OuterShard::Make(options, Const(rank));
      EXPECT_TRUE(method.ok()) << method.status();
      methods_.push_back(std::make_unique<OuterShard>(*std::move(method)));
    }
  }

  const Grid& grid() const { return grid_; }
  Tensors& local() { return local_; }
  OuterShard& method(size_t rank = 0) { return *methods_[rank]; }
  std::vector<TensorPart<float>> Parts(uint32_t rank) { return RankParts(plan_, rank, &local_); }
  std::vector<TensorPart<const float>> Const(uint32_t rank) {
    return RankParts(plan_, rank, static_cast<const Tensors&>(local_));
  }

  // A local step: every parameter moves at random.
  void Move(uint32_t seed) {
    const Tensors by = RandomTensors(grid_, seed);
    for (size_t t = 0; t < by.size(); ++t) {
      for (size_t i = 0; i < by[t].size(); ++i) local_[t][i] -= 0.01f * by[t][i];
    }
    for (auto& method : methods_) method->AddWork({1, 10});
  }

  // What the contribution says, decoded: values of whole tensors.
  Tensors Encode(uint64_t round) {
    std::vector<std::string> pieces;
    for (uint32_t rank = 0; rank < methods_.size(); ++rank) {
      const auto own = methods_[rank]->Encode(round, 0.01f, Const(rank));
      EXPECT_TRUE(own.ok()) << own.status();
      if (own.ok()) pieces.insert(pieces.end(), own->begin(), own->end());
    }
    digest_ = *PayloadDigest(grid_, Pointers(pieces));
    Tensors values = ZeroTensors(grid_);
    for (const std::string& bytes : pieces) {
      const auto piece = OpenPiece(grid_, bytes);
      EXPECT_TRUE(piece.ok()) << piece.status();
      EXPECT_TRUE(ForEachChunk(grid_, *piece, [&](uint64_t chunk, const Components& sent) {
                    const ChunkPlace place = grid_.Place(chunk);
                    std::vector<float> all(place.shape.elements());
                    if (spec_.codec().kind() == v1::CODEC_KIND_DCT) {
                      DecodeComponents(place.shape, sent, absl::MakeSpan(all));
                    } else if (sent.index.empty()) {
                      all = sent.value;
                    }
                    for (size_t i = 0; i < sent.index.size(); ++i) {
                      if (spec_.codec().kind() != v1::CODEC_KIND_DCT) {
                        all[sent.index[i]] = sent.value[i];
                      }
                    }
                    for (uint32_t j = 0; j < place.shape.rows; ++j) {
                      std::copy_n(
                          all.begin() + j * place.shape.cols, place.shape.cols,
                          values[place.tensor].begin() + place.first_element + j * place.stride);
                    }
                    return absl::OkStatus();
                  }).ok());
    }
    return values;
  }
  const std::string& digest() const { return digest_; }

  void Apply(uint64_t round, const Tensors& values, bool included, bool encoded = true) {
    PieceWriter writer(&grid_, v1::PAYLOAD_CODEC_REPLY, 3000);
    for (uint64_t chunk = 0; chunk < grid_.chunks(); ++chunk) {
      const ChunkPlace place = grid_.Place(chunk);
      std::vector<float> all;
      for (uint32_t j = 0; j < place.shape.rows; ++j) {
        const auto row = values[place.tensor].begin() + place.first_element + j * place.stride;
        all.insert(all.end(), row, row + place.shape.cols);
      }
      writer.AppendValues(chunk, all);
    }
    Finish(round, writer.Finish(), included, encoded);
  }
  void ApplyVoid(uint64_t round, bool encoded) { Finish(round, {}, false, encoded); }

  // The replicated state's section, of all ranks.
  Tensors Section(size_t section) {
    Tensors whole = ZeroTensors(grid_);
    for (uint32_t rank = 0; rank < methods_.size(); ++rank) {
      const Sections sections = methods_[rank]->StateSections(Const(rank));
      const auto parts = Const(rank);
      for (size_t i = 0; i < parts.size(); ++i) {
        std::copy(sections[section][i].begin(), sections[section][i].end(),
                  whole[parts[i].tensor].begin() + parts[i].first_element);
      }
    }
    return whole;
  }

 private:
  void Finish(uint64_t round, const std::vector<std::string>& pieces, bool included, bool encoded) {
    UpdateRates rates;
    rates.lr = 0.01f;
    rates.round = round;
    for (uint32_t rank = 0; rank < methods_.size(); ++rank) {
      if (encoded) methods_[rank]->Settle(round, included);
      const absl::Status applied = methods_[rank]->Apply(rates, Pointers(pieces), Parts(rank));
      EXPECT_TRUE(applied.ok()) << applied;
    }
  }

  const v1::RunSpec spec_;
  const Grid grid_;
  const std::vector<UnitPlan> plan_;
  Tensors local_;
  std::vector<std::unique_ptr<OuterShard>> methods_;
  std::string digest_;
};

// Value by value.
template <typename Function>
Tensors Map(const Tensors& a, const Tensors& b, const Function& function) {
  Tensors result = a;
  for (size_t t = 0; t < a.size(); ++t) {
    for (size_t i = 0; i < a[t].size(); ++i) result[t][i] = function(a[t][i], b[t][i]);
  }
  return result;
}
Tensors Minus(const Tensors& a, const Tensors& b) {
  return Map(a, b, [](float x, float y) { return x - y; });
}
Tensors Plus(const Tensors& a, const Tensors& b) {
  return Map(a, b, [](float x, float y) { return x + y; });
}

const char kDiloco[] = "preset: 'diloco' schedule { local_steps: 2 } ";
const char kReplicated[] = "placement: PLACEMENT_REPLICATED ";

TEST(OuterShardTest, SendsWhatTheStepsChangedAndTakesParametersOver) {
  for (const uint32_t ranks : {1u, 2u, 3u}) {
    Node node(SpecOf(kDiloco), ranks, /*threads=*/2);
    const Tensors x = node.local();
    node.Move(2);
    node.Move(3);
    EXPECT_EQ(node.method().work().steps, 2u);
    EXPECT_EQ(node.Encode(1), Minus(x, node.local()));
    const Tensors next = RandomTensors(node.grid(), 9);
    node.Apply(1, next, /*included=*/true);
    EXPECT_EQ(node.local(), next);
    EXPECT_EQ(node.Section(0), next);
    EXPECT_EQ(node.method().work().steps, 0u);
    EXPECT_EQ(node.method().StateSections(node.Const(0)).size(), 1u);
  }
}

TEST(OuterShardTest, WhatWasLeftOutIsInTheNextDelta) {
  Node node(SpecOf(kDiloco), 2);
  const Tensors x = node.local();
  node.Move(2);
  const Tensors end = node.local();
  node.Encode(1);
  const Tensors next = RandomTensors(node.grid(), 9);
  node.Apply(1, next, /*included=*/false);
  EXPECT_EQ(node.local(), Plus(next, Minus(end, x)));
  EXPECT_EQ(node.Section(0), next);
  EXPECT_EQ(node.method().work().steps, 1u);
  EXPECT_EQ(node.method().carried_rounds(), 1u);
  node.Move(3);
  EXPECT_EQ(node.method().work().steps, 2u);
  EXPECT_EQ(node.method().work().tokens, 20u);
  EXPECT_EQ(node.Encode(2), Minus(next, node.local()));
  node.Apply(2, x, /*included=*/true);
  EXPECT_EQ(node.local(), x);
  EXPECT_EQ(node.method().carried_rounds(), 0u);
}

TEST(OuterShardTest, WorkThatWasNotSentIsCarriedToo) {
  Node node(SpecOf(kDiloco), 1);
  const Tensors x = node.local();
  node.Move(2);
  const Tensors end = node.local();
  const Tensors next = RandomTensors(node.grid(), 9);
  node.Apply(1, next, false, /*encoded=*/false);
  EXPECT_EQ(node.local(), Plus(next, Minus(end, x)));
  // Without work there is nothing to carry.
  Node idle(SpecOf(kDiloco), 1);
  idle.Apply(1, next, false, false);
  EXPECT_EQ(idle.local(), next);
  EXPECT_EQ(idle.method().carried_rounds(), 0u);
}

TEST(OuterShardTest, OldWorkIsDroppedAndCounted) {
  Node node(SpecOf(absl::StrCat(kDiloco, "aggregate { carry_rounds: 2 }")), 1);
  Tensors next = node.local();
  for (uint64_t round = 1; round <= 3; ++round) {
    node.Move(static_cast<uint32_t>(round));
    node.Encode(round);
    next = RandomTensors(node.grid(), static_cast<uint32_t>(50 + round));
    node.Apply(round, next, false);
  }
  EXPECT_EQ(node.local(), next);
  EXPECT_EQ(node.method().dropped().steps, 3u);
  EXPECT_EQ(node.method().dropped_deltas(), 1u);
  EXPECT_EQ(node.method().work().steps, 0u);
}

TEST(OuterShardTest, AVoidRoundChangesNothing) {
  Node node(SpecOf(kDiloco), 1);
  node.Move(2);
  node.Encode(1);
  const Tensors before = node.local(), x = node.Section(0);
  node.ApplyVoid(1, true);
  EXPECT_EQ(node.local(), before);
  EXPECT_EQ(node.Section(0), x);
  node.ApplyVoid(2, false);
  EXPECT_EQ(node.local(), before);
  EXPECT_EQ(node.method().carried_rounds(), 2u);
}

// The outer step on every node, with any cut, is that on the whole tensors.
TEST(OuterShardTest, ReplicatedStepsAreThoseOfTheKernels) {
  const char* const outers[] = {
      "outer { kind: OUTER_KIND_NESTEROV lr: 0.7 momentum: 0.9 weight_decay: 0.1 }",
      "outer { kind: OUTER_KIND_ADAMW }",
      "outer { kind: OUTER_KIND_SIGN_MOMENTUM sign: OUTER_SIGN_RANDOM_THREE_POINT bound: 4 }",
      "outer { kind: OUTER_KIND_ASSIGN }"};
  for (const char* outer : outers) {
    const v1::RunSpec spec = SpecOf(absl::StrCat(kDiloco, kReplicated, outer));
    Node one(spec, 1), three(spec, 3, 2);
    Tensors x = one.local(), first = ZeroTensors(one.grid()), second = first;
    OuterPowers powers;
    const OuterSettings settings = OuterSettingsOf(spec.outer(), 0.01f);
    for (uint64_t round = 1; round <= 3; ++round) {
      const Tensors g = RandomTensors(one.grid(), static_cast<uint32_t>(round));
      for (Node* node : {&one, &three}) {
        node->Move(5);
        node->Encode(round);
        node->Apply(round, g, true);
      }
      powers = NextOuterPowers(settings, powers);
      const auto rule = MakeOuterRound(settings, {0.01f, powers, DrawKeyOf(spec, round)});
      ASSERT_TRUE(rule.ok()) << rule.status();
      const int arrays = OuterStateArrays(settings.kind);
      for (uint32_t t = 0; t < x.size(); ++t) {
        OuterStep(
            *rule, one.grid().tensor_offset(t), g[t],
            {absl::MakeSpan(x[t]), arrays > 0 ? absl::MakeSpan(first[t]) : absl::Span<float>(),
             arrays > 1 ? absl::MakeSpan(second[t]) : absl::Span<float>()});
      }
      EXPECT_EQ(one.digest(), three.digest());
      for (Node* node : {&one, &three}) {
        EXPECT_EQ(node->local(), x) << outer;
        if (arrays == 0) continue;
        EXPECT_EQ(node->Section(1), first) << outer;
      }
    }
  }
}

// S(c) alone moves x as the coordinator's step did.
TEST(OuterShardTest, ADirectionMovesAsTheHostedStep) {
  const v1::RunSpec spec =
      SpecOf("preset: 'dist_sign_momentum_short' outer { beta1: 0.5 beta2: 0.7 eta: 1.7 } seed: 3");
  Node node(spec, 2);
  Tensors x = node.local(), m = ZeroTensors(node.grid());
  for (uint64_t round = 1; round <= 4; ++round) {
    const Tensors g = RandomTensors(node.grid(), static_cast<uint32_t>(round));
    const auto rule = MakeOuterRound(OuterSettingsOf(spec.outer(), 0.01f),
                                     {0.01f, OuterPowers(), DrawKeyOf(spec, round)});
    ASSERT_TRUE(rule.ok()) << rule.status();
    Tensors before = ZeroTensors(node.grid()), sign = before;  // of x = 0 the step is -s * S
    for (uint32_t t = 0; t < x.size(); ++t) {
      std::vector<float> again = m[t];
      OuterStep(*rule, node.grid().tensor_offset(t), g[t],
                {absl::MakeSpan(before[t]), absl::MakeSpan(again), {}});
      for (size_t i = 0; i < before[t].size(); ++i) {
        sign[t][i] = before[t][i] == 0 ? 0.0f : before[t][i] < 0 ? 1.0f : -1.0f;
      }
      OuterStep(*rule, node.grid().tensor_offset(t), g[t],
                {absl::MakeSpan(x[t]), absl::MakeSpan(m[t]), {}});
    }
    node.Move(5);
    node.Encode(round);
    node.Apply(round, sign, true);
    ASSERT_EQ(node.local(), x);
  }
}

TEST(OuterShardTest, DifferencesAreAdded) {
  Node node(SpecOf(absl::StrCat(kDiloco, "codec { reply { format: NUMBER_FORMAT_BF16 } }")), 2);
  const Tensors x = node.local();
  Tensors q = x;
  for (auto& tensor : q) std::fill(tensor.begin(), tensor.end(), 0.5f);
  node.Apply(1, q, false, false);
  EXPECT_EQ(node.local(), Plus(x, q));
}

// With feedback nothing is lost: what was included, and what the residual holds, are all that went
// in.
TEST(OuterShardTest, FeedbackKeepsWhatIsNotIncluded) {
  const char* const codecs[] = {
      "kind: CODEC_KIND_NUMBERS numbers { format: NUMBER_FORMAT_INT4 hadamard: 32 }",
      "kind: CODEC_KIND_NUMBERS numbers { format: NUMBER_FORMAT_BF16 }",
      "kind: CODEC_KIND_TOPK topk_chunk: 256 topk_k: 5", "kind: CODEC_KIND_DCT"};
  for (const char* codec : codecs) {
    const v1::RunSpec spec = SpecOf(absl::StrCat(
        "schedule { local_steps: 1 } source: SOURCE_PARAM_DELTA outer { kind: OUTER_KIND_SGD lr: 1 "
        "} codec { feedback { decay: 1 } ",
        codec, " }"));
    Node one(spec, 1), two(spec, 2, 2);
    for (Node* node : {&one, &two}) {
      Tensors went_in = ZeroTensors(node->grid()), came_out = went_in;
      Tensors x = node->local();
      for (uint64_t round = 1; round <= 5; ++round) {
        node->Move(static_cast<uint32_t>(round));
        went_in = Plus(went_in, Minus(x, node->local()));
        const bool encoded = round != 3, included = encoded && round % 2 == 1;
        if (encoded) {
          const Tensors sent = node->Encode(round);
          if (included) came_out = Plus(came_out, sent);
        }
        x = RandomTensors(node->grid(), static_cast<uint32_t>(20 + round));
        node->Apply(round, x, included, encoded);
        EXPECT_EQ(node->local(), x) << codec;
      }
      // The rest, at once: without new work the residual is all that is sent and kept.
      double left = 0, squares = 0;
      const Tensors rest = Minus(went_in, came_out);
      for (const auto& tensor : rest) {
        for (const float value : tensor) left += static_cast<double>(value) * value;
      }
      const uint32_t ranks = node == &one ? 1 : 2;
      for (uint32_t r = 0; r < ranks; ++r) squares += node->method(r).ResidualSquares();
      EXPECT_NEAR(squares / left, 1.0, 1e-4) << codec;
    }
    EXPECT_EQ(one.digest(), two.digest()) << codec;
  }
}

TEST(OuterShardTest, VotesOfLion) {
  const v1::RunSpec spec = SpecOf("preset: 'dist_lion'");
  Node node(spec, 2);
  const Tensors x = node.local();
  Tensors m = ZeroTensors(node.grid());
  for (uint64_t round = 1; round <= 3; ++round) {
    const Tensors g = RandomTensors(node.grid(), static_cast<uint32_t>(round));
    node.local() = g;  // gradients in place of parameters
    const Tensors votes = node.Encode(round);
    Tensors expected = g;
    for (size_t t = 0; t < g.size(); ++t) {
      std::vector<float> c(g[t].size());
      LionDirection(MakeLionRule(spec.optimizer().beta1(), spec.optimizer().beta2()), g[t],
                    absl::MakeSpan(m[t]), absl::MakeSpan(c));
      for (size_t i = 0; i < c.size(); ++i) expected[t][i] = c[i] >= 0 ? 1.0f : -1.0f;
    }
    EXPECT_EQ(votes, expected);
    node.Apply(round, votes, true);
  }
  // x <- x - lr * vote, thrice; the whole of it is tested with the kernels.
  EXPECT_EQ(node.local(), node.Section(0));
  EXPECT_NE(node.local(), x);
}

TEST(OuterShardTest, GoesOnFromItsState) {
  for (const char* more : {"",
                           "codec { feedback { decay: 0.9 } numbers { format: "
                           "NUMBER_FORMAT_INT8 } } ",
                           kReplicated}) {
    const v1::RunSpec spec = SpecOf(absl::StrCat(kDiloco, more));
    Node first(spec, 1), second(spec, 1);
    for (uint64_t round = 1; round <= 2; ++round) {
      first.Move(static_cast<uint32_t>(round));
      first.Encode(round);
      first.Apply(round, RandomTensors(first.grid(), 9), round == 1);
    }
    second.local() = first.local();
    ASSERT_TRUE(second.method().StartAt(second.Const(0)).ok());
    ASSERT_TRUE(second.method().SetState(first.method().State()).ok());
    EXPECT_EQ(second.method().work().steps, first.method().work().steps);
    for (Node* node : {&first, &second}) {
      node->Move(7);
      node->Encode(3);
      node->Apply(3, RandomTensors(node->grid(), 11), false);
    }
    EXPECT_EQ(first.digest(), second.digest()) << more;
    EXPECT_EQ(first.local(), second.local()) << more;
    EXPECT_EQ(first.Section(0), second.Section(0)) << more;
  }
}

TEST(OuterShardTest, RefusesWhatIsNotFinite) {
  Node node(SpecOf(kDiloco), 1);
  node.Move(2);
  node.local()[3][4100] = std::numeric_limits<float>::infinity();
  const auto refused = node.method().Encode(1, 0.01f, node.Const(0));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("the local change of 't3' is -inf at element 4100"));
  const Tensors x = node.Section(0);
  ASSERT_TRUE(node.method().DropWork(node.Parts(0)).ok());
  EXPECT_EQ(node.local(), x);
  EXPECT_EQ(node.method().dropped().steps, 1u);
}

}  // namespace
}  // namespace isthmus
