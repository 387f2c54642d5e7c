// The baselines `full` and `none`, and the base optimizers behind them.
#include "worker/methods/gradient_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

#include "base/limits.h"
#include "kernels/demo.h"
#include "spec/run_spec.h"
#include "tests/worker/method_fixture.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

const std::vector<Shape> kShapes = {{130, 70}, {5000}, {}, {3, 3}};

v1::CodecSpec Codec(v1::CodecKind kind) {
  v1::CodecSpec codec;
  codec.set_kind(kind);
  return CompleteCodec(codec);
}

MethodOptions Options(const Grid& grid, const v1::CodecSpec& codec, v1::BaseOptimizer base) {
  MethodOptions options;
  options.grid = &grid;
  options.codec = codec;
  options.optimizer.set_base(base);
  options.optimizer.set_beta1(0.9f);
  options.optimizer.set_beta2(0.95f);
  options.optimizer.set_eps(1e-8f);
  return options;
}

std::unique_ptr<Method> Make(const MethodOptions& options,
                             const std::vector<TensorPart<const float>>& parts) {
  auto method = MakeMethod(options, parts);
  EXPECT_TRUE(method.ok()) << method.status();
  return *std::move(method);
}

double Norm(const Tensors& tensors) {
  double squares = 0;
  for (const auto& tensor : tensors) {
    for (float value : tensor) squares += static_cast<double>(value) * value;
  }
  return std::sqrt(squares);
}

// AdamW in double, element by element, as the paper has it.
struct PlainAdamW {
  double beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  std::vector<double> m, v;
  int t = 0;

  void Step(const std::vector<double>& g, double lr, double decay, std::vector<double>* p) {
    m.resize(g.size());
    v.resize(g.size());
    ++t;
    for (size_t i = 0; i < g.size(); ++i) {
      (*p)[i] *= 1 - lr * decay;
      m[i] = beta1 * m[i] + (1 - beta1) * g[i];
      v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
      const double corrected = std::sqrt(v[i] / (1 - std::pow(beta2, t)));
      (*p)[i] -= lr * m[i] / (1 - std::pow(beta1, t)) / (corrected + eps);
    }
  }
};

TEST(GradientShard, FullIsAdamWOnTheClippedMeanWithDecayGroups) {
  const Grid grid = MakeGrid(kShapes, Codec(v1::CODEC_KIND_DENSE));
  MethodOptions options = Options(grid, Codec(v1::CODEC_KIND_DENSE), v1::BASE_OPTIMIZER_ADAMW);
  options.optimizer.set_clip_norm(20);
  v1::DecayGroup* group = options.optimizer.add_decay_groups();
  group->add_tensors("t1");
  group->add_tensors("t2*");
  Tensors p = RandomTensors(grid, 1);
  const auto method = Make(options, WholeParts(p));
  const auto other = Make(options, WholeParts(p));
  std::vector<std::vector<double>> expected;
  for (const auto& tensor : p) expected.emplace_back(tensor.begin(), tensor.end());
  std::vector<PlainAdamW> plain(p.size());
  for (uint64_t round = 1; round <= 4; ++round) {
    const Tensors a = RandomTensors(grid, 10 + round), b = RandomTensors(grid, 20 + round);
    auto sent_a = method->Encode(round, 0.1f, WholeParts(a));
    auto sent_b = other->Encode(round, 0.1f, WholeParts(b));
    ASSERT_TRUE(sent_a.ok() && sent_b.ok()) << sent_a.status();
    Tensors mean = a;
    for (size_t t = 0; t < a.size(); ++t) {
      for (size_t i = 0; i < a[t].size(); ++i) mean[t][i] = (a[t][i] + b[t][i]) / 2;
    }
    const double norm = Norm(mean);
    ASSERT_GT(norm, 20);  // so that it is clipped
    method->Settle(round, true);
    const UpdateRates rates = {0.01f, 0.5f, static_cast<float>(norm)};
    const auto update = Merge(grid, {*sent_a, *sent_b}, kPieceBytesMax);
    ASSERT_TRUE(method->Apply(rates, Pointers(update), WholeParts(&p)).ok());
    for (size_t t = 0; t < p.size(); ++t) {
      std::vector<double> g;
      for (float value : mean[t]) g.push_back(value * 20.0 / norm);
      const double decay = t == 1 || t == 2 ? 0.0 : 0.5;
      plain[t].Step(g, 0.01, decay, &expected[t]);
      for (size_t i = 0; i < p[t].size(); ++i) {
        ASSERT_NEAR(p[t][i], expected[t][i], 1e-5) << "round " << round << " tensor " << t;
      }
    }
  }
}

TEST(GradientShard, RanksThreadsAndPiecesChangeNoBit) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  const Grid grid = MakeGrid(kShapes, Codec(v1::CODEC_KIND_DENSE));
  for (const v1::BaseOptimizer base : {v1::BASE_OPTIMIZER_SGD, v1::BASE_OPTIMIZER_ADAMW}) {
    std::vector<Tensors> results;
    for (const uint32_t ranks : {1u, 2u, 3u, 7u}) {
      MethodOptions options = Options(grid, Codec(v1::CODEC_KIND_DENSE), base);
      options.threads = static_cast<int>(ranks);
      options.piece_bytes_max = ranks == 1 ? kPieceBytesMax : 20000;
      options.optimizer.set_clip_norm(5);
      Tensors p = RandomTensors(grid, seed);
      const auto plan = PlanOf(grid, ranks);
      std::vector<std::unique_ptr<Method>> methods;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        methods.push_back(Make(options, RankParts(plan, rank, std::as_const(p))));
      }
      for (uint64_t round = 1; round <= 3; ++round) {
        const Tensors gradients = RandomTensors(grid, seed + static_cast<uint32_t>(round));
        std::vector<std::string> sent;
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          auto pieces = methods[rank]->Encode(round, 0.1f, RankParts(plan, rank, gradients));
          ASSERT_TRUE(pieces.ok()) << pieces.status();
          for (std::string& piece : *pieces) sent.push_back(std::move(piece));
        }
        const auto update = Merge(grid, {sent}, 30000);
        const UpdateRates rates = {0.02f, 0.1f, static_cast<float>(Norm(gradients))};
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          ASSERT_TRUE(
              methods[rank]->Apply(rates, Pointers(update), RankParts(plan, rank, &p)).ok());
        }
      }
      results.push_back(p);
    }
    for (const Tensors& result : results) EXPECT_EQ(result, results[0]);
  }
}

TEST(GradientShard, NoneSendsNothingAndStepsWithItsOwnGradient) {
  const Grid grid = MakeGrid(kShapes, Codec(v1::CODEC_KIND_NONE));
  const MethodOptions options = Options(grid, Codec(v1::CODEC_KIND_NONE), v1::BASE_OPTIMIZER_SGD);
  Tensors p = RandomTensors(grid, 1);
  const Tensors start = p, gradients = RandomTensors(grid, 2);
  const auto method = Make(options, WholeParts(p));
  auto pieces = method->Encode(1, 0.1f, WholeParts(gradients));
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  size_t bytes = 0;
  for (const std::string& piece : *pieces) bytes += piece.size();
  EXPECT_LE(bytes, 20 * kShapes.size());  // headers
  const auto update = Merge(grid, {*pieces}, kPieceBytesMax);

  method->Settle(1, false);  // left out: no step
  ASSERT_TRUE(method->Apply({0.5f, 0, 0}, Pointers(update), WholeParts(&p)).ok());
  EXPECT_EQ(p, start);

  ASSERT_TRUE(method->Encode(2, 0.1f, WholeParts(gradients)).ok());
  method->Settle(2, true);
  ASSERT_TRUE(method->Apply({0.5f, 0, 0}, Pointers(update), WholeParts(&p)).ok());
  for (size_t t = 0; t < p.size(); ++t) {
    for (size_t i = 0; i < p[t].size(); ++i) {
      const float moved = 0.5f * gradients[t][i];
      ASSERT_EQ(p[t][i], start[t][i] - moved);
    }
  }
  const Tensors after = p;  // once only
  ASSERT_TRUE(method->Apply({0.5f, 0, 0}, Pointers(update), WholeParts(&p)).ok());
  EXPECT_EQ(p, after);
}

TEST(GradientShard, AVoidUpdateChangesNothing) {
  const Grid grid = MakeGrid(kShapes, Codec(v1::CODEC_KIND_DENSE));
  const auto options = Options(grid, Codec(v1::CODEC_KIND_DENSE), v1::BASE_OPTIMIZER_ADAMW);
  Tensors p = RandomTensors(grid, 1);
  const Tensors start = p;
  const auto method = Make(options, WholeParts(p));
  ASSERT_TRUE(method->Apply({0.5f, 0.5f, 0}, {}, WholeParts(&p)).ok());
  EXPECT_EQ(p, start);
}

TEST(GradientShard, BadInputIsRefusedInASentence) {
  const Grid grid = MakeGrid(kShapes, Codec(v1::CODEC_KIND_DENSE));
  MethodOptions options = Options(grid, Codec(v1::CODEC_KIND_DENSE), v1::BASE_OPTIMIZER_ADAMW);
  Tensors p = RandomTensors(grid, 1);
  const auto method = Make(options, WholeParts(p));
  Tensors gradients = RandomTensors(grid, 2);
  gradients[1][17] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(std::string(method->Encode(1, 0.1f, WholeParts(gradients)).status().message()),
              HasSubstr("the gradient of 't1' is inf at element 17"));
  gradients[1][17] = 0;
  auto pieces = method->Encode(1, 0.1f, WholeParts(gradients));
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  const auto update = Merge(grid, {*pieces}, kPieceBytesMax);
  const Tensors start = p;
  const float nan = std::nanf("");
  for (const UpdateRates& rates : {UpdateRates{nan, 0, 0}, {0.1f, -1, 0}, {0.1f, 0, nan}}) {
    EXPECT_THAT(std::string(method->Apply(rates, Pointers(update), WholeParts(&p)).message()),
                HasSubstr("give finite numbers, 0 or more"));
  }
  EXPECT_EQ(p, start);
  options.optimizer.add_decay_groups()->add_tensors("*.bias");
  EXPECT_THAT(std::string(MakeMethod(options, WholeParts(std::as_const(p))).status().message()),
              HasSubstr("optimizer.decay_groups[0].tensors: '*.bias' matches no trainable tensor"));
}

// The step of AdamW counts updates, so one that was void or missed by all must not count.
TEST(UpdateStep, MomentsAreThoseOfTheUpdatesApplied) {
  const Grid grid = MakeGrid({{4, 4}}, Codec(v1::CODEC_KIND_DENSE));
  const auto options = Options(grid, Codec(v1::CODEC_KIND_DENSE), v1::BASE_OPTIMIZER_ADAMW);
  std::vector<Tensors> results;
  for (const bool with_void : {false, true}) {
    Tensors p = RandomTensors(grid, 1);
    const auto method = Make(options, WholeParts(p));
    for (uint64_t round = 1; round <= 3; ++round) {
      if (with_void) {
        ASSERT_TRUE(method->Apply({0.1f, 0, 0}, {}, WholeParts(&p)).ok());
      }
      const Tensors gradients = RandomTensors(grid, static_cast<uint32_t>(round));
      auto pieces = method->Encode(round, 0.1f, WholeParts(gradients));
      const auto update = Merge(grid, {*pieces}, kPieceBytesMax);
      ASSERT_TRUE(method->Apply({0.1f, 0, 1}, Pointers(update), WholeParts(&p)).ok());
    }
    results.push_back(p);
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace isthmus
