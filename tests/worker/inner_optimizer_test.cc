#include "worker/inner_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "spec/grid.h"
#include "tests/worker/method_fixture.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

// The rules in plain code: one element, one operation after the other, each rounded to float32.
struct PlainElement {
  float p = 0, m = 0, v = 0;
};

struct PlainRule {
  v1::OptimizerSpec spec;
  float decay_scale = 1;
  double power1 = 1, power2 = 1;
};

float Sign(float value) { return value > 0 ? 1.0f : value < 0 ? -1.0f : 0.0f; }

void PlainStep(const PlainRule& rule, float lr, float g, PlainElement* e) {
  const float product = lr * (rule.spec.weight_decay() * rule.decay_scale);
  const float factor = 1.0f - product;
  e->p = e->p * factor;
  const float beta1 = rule.spec.beta1(), beta2 = rule.spec.beta2();
  if (rule.spec.base() == v1::BASE_OPTIMIZER_SGD) {
    e->p = e->p - lr * g;
  } else if (rule.spec.base() == v1::BASE_OPTIMIZER_ADAMW) {
    e->m = e->m + (1.0f - beta1) * (g - e->m);
    e->v = beta2 * e->v + ((1.0f - beta2) * g) * g;
    const float rate = lr / static_cast<float>(1.0 - rule.power1);
    const float root = std::sqrt(static_cast<float>(1.0 - rule.power2));
    e->p = e->p - (rate * e->m) / (std::sqrt(e->v) / root + rule.spec.eps());
  } else {
    const double b1 = beta1, b2 = beta2;
    const float c = beta1 * e->m + static_cast<float>(1.0 - b1) * g;
    e->m = beta2 * e->m + static_cast<float>(1.0 - b2) * g;
    e->p = e->p - lr * Sign(c);
  }
}

v1::OptimizerSpec Optimizer(v1::BaseOptimizer base) {
  v1::OptimizerSpec optimizer;
  optimizer.set_base(base);
  optimizer.set_lr(0.1f);
  optimizer.set_weight_decay(0.2f);
  optimizer.set_beta1(0.9f);
  optimizer.set_beta2(base == v1::BASE_OPTIMIZER_LION ? 0.99f : 0.95f);
  optimizer.set_eps(1e-8f);
  auto* group = optimizer.add_decay_groups();
  group->add_tensors("t1");
  group->set_scale(0.5f);
  return optimizer;
}

class InnerOptimizerTest : public testing::TestWithParam<v1::BaseOptimizer> {
 protected:
  // A vector of one element, one that ends inside of a vector register, a matrix of several pieces.
  InnerOptimizerTest() : grid_(MakeGrid({{1}, {4099}, {150, 301}}, CompleteCodec())) {}

  InnerOptimizer MakeInner(const std::vector<TensorPart<const float>>& parts, int threads) {
    InnerOptimizerOptions options;
    options.grid = &grid_;
    options.optimizer = Optimizer(GetParam());
    options.threads = threads;
    auto made = InnerOptimizer::Make(options, parts);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  Grid grid_;
};

TEST_P(InnerOptimizerTest, MatchesThePlainRuleOverStepsAndThreads) {
  constexpr uint32_t kSeed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  for (const int threads : {1, 3}) {
    Tensors parameters = RandomTensors(grid_, kSeed);
    InnerOptimizer inner = MakeInner(WholeParts(parameters), threads);
    std::vector<std::vector<PlainElement>> plain;
    for (const auto& tensor : parameters) {
      plain.emplace_back();
      for (const float p : tensor) plain.back().push_back({p, 0, 0});
    }
    PlainRule rule;
    rule.spec = Optimizer(GetParam());
    for (uint32_t step = 1; step <= 4; ++step) {
      const float lr = 0.1f / static_cast<float>(step);
      Tensors gradients = RandomTensors(grid_, kSeed + step);
      if (step == 3) gradients = ZeroTensors(grid_);
      ASSERT_TRUE(inner.Step(lr, WholeParts(gradients), WholeParts(&parameters)).ok());
      rule.power1 *= static_cast<double>(rule.spec.beta1());
      rule.power2 *= static_cast<double>(rule.spec.beta2());
      for (size_t t = 0; t < parameters.size(); ++t) {
        rule.decay_scale = t == 1 ? 0.5f : 1.0f;
        for (size_t i = 0; i < parameters[t].size(); ++i) {
          PlainStep(rule, lr, gradients[t][i], &plain[t][i]);
          ASSERT_EQ(parameters[t][i], plain[t][i].p)
              << "step " << step << ", tensor " << t << ", element " << i;
        }
      }
    }
  }
}

TEST_P(InnerOptimizerTest, RanksTogetherDoWhatOneDoes) {
  Tensors whole = RandomTensors(grid_, 5), cut = whole;
  const Tensors gradients = RandomTensors(grid_, 6);
  InnerOptimizer one = MakeInner(WholeParts(whole), 1);
  ASSERT_TRUE(one.Step(0.05f, WholeParts(gradients), WholeParts(&whole)).ok());
  const std::vector<UnitPlan> plan = PlanOf(grid_, 2);
  for (const uint32_t rank : {0u, 1u}) {
    const auto parts = RankParts(plan, rank, &cut);
    InnerOptimizer inner = MakeInner(AsConst(parts), 2);
    ASSERT_TRUE(inner.Step(0.05f, RankParts(plan, rank, gradients), parts).ok());
  }
  EXPECT_EQ(whole, cut);
}

TEST_P(InnerOptimizerTest, GoesOnFromAStateAsIfNothingHadHappened) {
  Tensors parameters = RandomTensors(grid_, 7);
  InnerOptimizer first = MakeInner(WholeParts(parameters), 1);
  ASSERT_TRUE(first.Step(0.1f, WholeParts(RandomTensors(grid_, 8)), WholeParts(&parameters)).ok());
  Tensors again = parameters;
  InnerOptimizer second = MakeInner(WholeParts(again), 1);
  ASSERT_TRUE(second.SetState(first.state()).ok());
  const Tensors gradients = RandomTensors(grid_, 9);
  ASSERT_TRUE(first.Step(0.1f, WholeParts(gradients), WholeParts(&parameters)).ok());
  ASSERT_TRUE(second.Step(0.1f, WholeParts(gradients), WholeParts(&again)).ok());
  EXPECT_EQ(parameters, again);
  EXPECT_EQ(first.state().first_moments, second.state().first_moments);
  EXPECT_EQ(first.state().second_moments, second.state().second_moments);
  EXPECT_EQ(first.state().beta2_power, second.state().beta2_power);
  EXPECT_EQ(first.state().first_moments.empty(), GetParam() == v1::BASE_OPTIMIZER_SGD);
  EXPECT_EQ(first.state().second_moments.empty(), GetParam() != v1::BASE_OPTIMIZER_ADAMW);
}

TEST_P(InnerOptimizerTest, WhatDoesNotFitIsRefusedBeforeAnythingChanges) {
  Tensors parameters = RandomTensors(grid_, 3);
  const Tensors before = parameters, gradients = RandomTensors(grid_, 4);
  InnerOptimizer inner = MakeInner(WholeParts(parameters), 1);
  const auto parts = WholeParts(&parameters);
  const auto refused = [&](const absl::Status& status, const char* text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  for (const float lr : {-0.1f, std::numeric_limits<float>::quiet_NaN()}) {
    refused(inner.Step(lr, WholeParts(gradients), parts), "learning rate");
  }
  auto some = WholeParts(gradients);
  some.pop_back();
  refused(inner.Step(0.1f, some, parts), "gradients of 2 parts");
  some.push_back({2, 0, absl::MakeConstSpan(gradients[1])});
  refused(inner.Step(0.1f, some, parts), "part 2 of a step has 4099 gradients");
  if (GetParam() != v1::BASE_OPTIMIZER_SGD) {
    StepState state = inner.state();
    state.first_moments.pop_back();
    refused(inner.SetState(state), "inner first moment");
  }
  EXPECT_EQ(parameters, before);
  EXPECT_EQ(inner.state().beta1_power, 1.0);
}

TEST_P(InnerOptimizerTest, ARankThatHoldsNothingSteps) {
  InnerOptimizer inner = MakeInner({}, 2);
  EXPECT_TRUE(inner.Step(0.1f, {}, {}).ok());
  const std::vector<TensorPart<const float>> empty = {{0, 0, {}}};
  InnerOptimizer of_empty = MakeInner(empty, 2);
  EXPECT_TRUE(of_empty.Step(0.1f, empty, {{0, 0, {}}}).ok());
}

INSTANTIATE_TEST_SUITE_P(All, InnerOptimizerTest,
                         testing::Values(v1::BASE_OPTIMIZER_SGD, v1::BASE_OPTIMIZER_ADAMW,
                                         v1::BASE_OPTIMIZER_LION),
                         [](const auto& info) {
                           return std::string(info.param == v1::BASE_OPTIMIZER_SGD     ? "Sgd"
                                              : info.param == v1::BASE_OPTIMIZER_ADAMW ? "AdamW"
                                                                                       : "Lion");
                         });

}  // namespace
}  // namespace isthmus
