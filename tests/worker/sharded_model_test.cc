// Sharding over real Gloo groups: the number of ranks changes nothing but the order of sums.

#include "worker/sharded_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <vector>

#include "tests/worker/torch_fixture.h"
#include "worker/batch.h"
#include "worker/gpt2.h"
#include "worker/replica.h"

namespace isthmus {
namespace {

using Values = std::map<std::string, std::vector<float>>;

// Full gradients by name, put together from the ranks' parts.
struct Result {
  double loss = 0;
  Values gradients;
};

void Collect(const ShardedModel& model, double loss, int ranks, Result* result) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  result->loss += loss / ranks;
  for (const auto& part : model.gradients()) {
    auto& whole = result->gradients[model.grid().tensor_name(part.tensor)];
    whole.resize(model.grid().tensor_elements(part.tensor), NAN);
    std::copy(part.data.begin(), part.data.end(), whole.begin() + part.first_element);
  }
}

Result Gpt2Gradients(const v1::RunSpec& spec, int ranks, bool reshard, int repeats = 1,
                     int64_t micro_batch = 0) {
  const TokenRows rows = RandomRows(6, spec.model().context(), 11);
  Result result;
  RunRanks(ranks, [&](ProcessGroup* group) {
    auto model = MakeGpt2(spec.model());
    ASSERT_TRUE(model.ok()) << model.status();
    auto sharded = ShardedModel::Make(*std::move(model), {group, spec.codec(), reshard});
    ASSERT_TRUE(sharded.ok()) << sharded.status();
    ASSERT_TRUE((*sharded)
                    ->Fill([&](const ModelTensor& tensor, uint64_t first, absl::Span<float> out) {
                      InitializeGpt2(spec.model(), spec.seed(), tensor.name, first, out);
                      return absl::OkStatus();
                    })
                    .ok());
    const Batch batch = ToBatch(RowsOfRank(rows, group->rank(), ranks));
    for (int i = 0; i < repeats; ++i) {
      auto loss = (*sharded)->ForwardBackward(batch, micro_batch);
      ASSERT_TRUE(loss.ok()) << loss.status();
      if (i + 1 == repeats) Collect(**sharded, *loss, ranks, &result);
    }
  });
  return result;
}

void ExpectNear(const Result& a, const Result& b, double tolerance) {
  EXPECT_NEAR(a.loss, b.loss, tolerance);
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (const auto& [name, values] : a.gradients) {
    const auto& others = b.gradients.at(name);
    ASSERT_EQ(values.size(), others.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], others[i], tolerance) << name << " element " << i;
    }
  }
}

TEST(ShardedModel, LossAndGradientsDoNotDependOnRanks) {
  const v1::RunSpec spec = SmallSpec();
  const Result one = Gpt2Gradients(spec, 1, true);
  EXPECT_NEAR(one.loss, std::log(256.0) + 0.2, 0.2);  // logits start with a variance of 0.4
  EXPECT_EQ(one.gradients.size(), 2 + 2 * 12 + 2u);
  ExpectNear(one, Gpt2Gradients(spec, 2, true), 1e-5);
  ExpectNear(one, Gpt2Gradients(spec, 3, true), 1e-5);
}

TEST(ShardedModel, KeepingUnitsGatheredChangesNoBit) {
  const v1::RunSpec spec = SmallSpec();
  ExpectNear(Gpt2Gradients(spec, 2, true), Gpt2Gradients(spec, 2, false), 0);
}

// Six rows over one and two ranks: parts of 1, of 2, of 4 and 2, and more than there are.
TEST(ShardedModel, MicroBatchesAddUpToTheSameMean) {
  const v1::RunSpec spec = SmallSpec();
  const Result whole = Gpt2Gradients(spec, 1, true);
  for (const int64_t micro_batch : {1, 2, 4, 100}) {
    for (const int ranks : {1, 2}) {
      ExpectNear(whole, Gpt2Gradients(spec, ranks, ranks == 1, 2, micro_batch), 1e-5);
    }
  }
}

TEST(ShardedModel, ASecondStepFindsTheSameGradients) {
  const v1::RunSpec spec = SmallSpec();
  ExpectNear(Gpt2Gradients(spec, 2, true), Gpt2Gradients(spec, 2, true, 3), 0);
}

TEST(ShardedModel, GradientsAgreeWithDifferences) {
  v1::RunSpec spec = SmallSpec();
  const Result exact = Gpt2Gradients(spec, 1, true);
  auto groups = StartThreadProcessGroups(1);
  ASSERT_TRUE(groups.ok());
  auto model = MakeGpt2(spec.model());
  auto sharded = ShardedModel::Make(*std::move(model), {groups->front().get(), spec.codec(), true});
  ASSERT_TRUE(sharded.ok());
  const Batch batch = ToBatch(RandomRows(6, spec.model().context(), 11));
  // The tied tensor gets gradient from both of its uses.
  const std::string name = "transformer.wte.weight";
  const auto& gradient = exact.gradients.at(name);
  const auto loss_at = [&](double step) {
    EXPECT_TRUE((*sharded)
                    ->Fill([&](const ModelTensor& tensor, uint64_t first, absl::Span<float> out) {
                      InitializeGpt2(spec.model(), spec.seed(), tensor.name, first, out);
                      if (tensor.name != name) return absl::OkStatus();
                      for (size_t i = 0; i < out.size(); ++i) {
                        out[i] += static_cast<float>(step * gradient[first + i]);
                      }
                      return absl::OkStatus();
                    })
                    .ok());
    auto loss = (*sharded)->Forward(batch);
    EXPECT_TRUE(loss.ok());
    return loss->item<double>();
  };
  double squares = 0;
  for (float g : gradient) squares += static_cast<double>(g) * g;
  const double h = 0.05;
  EXPECT_NEAR((loss_at(h) - loss_at(-h)) / (2 * h), squares, 0.02 * squares);
}

// Case C12: every second parameter frozen.
TEST(ShardedModel, FrozenTensorsStayAndDoNotTravel) {
  v1::RunSpec spec = SmallSpec();
  const Result all = Gpt2Gradients(spec, 1, true);
  auto model = MakeGpt2(spec.model());
  for (size_t i = 1; i < model->tensors.size(); i += 2) {
    spec.mutable_model()->add_frozen(model->tensors[i].name);
  }
  const Result one = Gpt2Gradients(spec, 1, true);
  EXPECT_EQ(one.gradients.size(), model->tensors.size() / 2);
  for (const auto& [name, values] : one.gradients) EXPECT_EQ(values, all.gradients.at(name));
  ExpectNear(one, Gpt2Gradients(spec, 2, true), 1e-5);
}

// y = x W + b with rows of its own for W; loss = mean of y^2. `skip`: b takes no part.
Model RowsModel(int64_t rows, bool skip) {
  Model model;
  model.tensors = {{"w", {rows, 4}, false}, {"unused", {5}, false}, {"b", {4}, false}};
  model.stages.push_back(
      {"first", {0, 1}, [rows](const at::Tensor&, const auto& tensors, const Batch& batch) {
         return batch.tokens.to(at::kFloat).matmul(tensors[0]);
       }});
  model.stages.push_back({"last", {2}, [skip](const at::Tensor& x, const auto& t, const Batch&) {
                            return (skip ? x : x + t[0]).square().mean();
                          }});
  return model;
}

Result RowsGradients(int64_t rows, bool skip, int ranks) {
  v1::CodecSpec codec = SmallSpec().codec();
  codec.set_chunk_side(1);  // a row is a block
  Result result;
  RunRanks(ranks, [&](ProcessGroup* group) {
    auto sharded = ShardedModel::Make(RowsModel(rows, skip), {group, codec, true});
    ASSERT_TRUE(sharded.ok()) << sharded.status();
    ASSERT_TRUE((*sharded)
                    ->Fill([](const ModelTensor&, uint64_t first, absl::Span<float> out) {
                      for (size_t i = 0; i < out.size(); ++i) {
                        out[i] = 0.01f * static_cast<float>((first + i) % 7 + 1);
                      }
                      return absl::OkStatus();
                    })
                    .ok());
    // 24 rows of input over all ranks.
    const TokenRows all = RandomRows(24, rows, 3);
    Batch batch = ToBatch(RowsOfRank(all, group->rank(), ranks));
    auto loss = (*sharded)->ForwardBackward(batch);
    ASSERT_TRUE(loss.ok()) << loss.status();
    Collect(**sharded, *loss, ranks, &result);
  });
  return result;
}

void ExpectClose(const Result& a, const Result& b) {
  ASSERT_EQ(a.gradients.size(), 3u);
  for (const auto& [name, values] : a.gradients) {
    const auto& others = b.gradients.at(name);
    ASSERT_EQ(values.size(), others.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], others[i], 1e-5 * std::max(1.0f, std::abs(values[i]))) << name;
    }
  }
}

// Case C13: uneven and empty shards.
TEST(ShardedModel, EighteenRowsOnEightRanks) {
  ExpectClose(RowsGradients(18, false, 1), RowsGradients(18, false, 8));
}

TEST(ShardedModel, ThreeRowsOnEightRanks) {
  ExpectClose(RowsGradients(3, false, 1), RowsGradients(3, false, 8));
}

// Case C12: a parameter without gradient in this step.
TEST(ShardedModel, ATensorThatTookNoPartHasNoGradient) {
  for (int ranks : {1, 2}) {
    const Result result = RowsGradients(6, true, ranks);
    EXPECT_EQ(result.gradients.at("b"), std::vector<float>(4, 0.0f));
    EXPECT_EQ(result.gradients.at("unused"), std::vector<float>(5, 0.0f));
    EXPECT_NE(result.gradients.at("w"), std::vector<float>(24, 0.0f));
  }
}

TEST(Gpt2, StartValuesDoNotDependOnTheShard) {
  const v1::ModelSpec spec = SmallSpec().model();
  std::vector<float> whole(1000), part(300);
  InitializeGpt2(spec, 7, "transformer.wte.weight", 0, absl::MakeSpan(whole));
  InitializeGpt2(spec, 7, "transformer.wte.weight", 500, absl::MakeSpan(part));
  for (size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], whole[500 + i]);

  double squares = 0, sum = 0;
  for (float value : whole) squares += value * value, sum += value;
  const double deviation = std::sqrt(2.0 / (5.0 * spec.width()));
  EXPECT_NEAR(std::sqrt(squares / 1000), deviation, 0.1 * deviation);
  EXPECT_NEAR(sum / 1000, 0, 0.15 * deviation);
  // The first value as a constant: another machine must find the same.
  std::vector<float> other(1);
  InitializeGpt2(spec, 8, "transformer.wte.weight", 0, absl::MakeSpan(other));
  EXPECT_NE(other[0], whole[0]);
  InitializeGpt2(spec, 7, "transformer.h.0.ln_1.weight", 0, absl::MakeSpan(other));
  EXPECT_EQ(other[0], 1.0f);
}

TEST(Gpt2, RefusesWhatDoesNotFit) {
  v1::ModelSpec spec = SmallSpec().model();
  spec.set_heads(5);
  EXPECT_EQ(MakeGpt2(spec).status().message(),
            "model.heads is 5; it must divide model.width, which is 24");
  spec = SmallSpec().model();
  spec.add_frozen("transformer.h.9.*");
  EXPECT_EQ(MakeGpt2(spec).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace isthmus
