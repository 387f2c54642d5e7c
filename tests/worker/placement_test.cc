// Full tensors apart from the shard, as on a GPU, here in memory of the CPU: the same numbers.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <random>
#include <vector>

#include "tests/worker/torch_fixture.h"
#include "worker/gpt2.h"
#include "worker/sharded_model.h"

namespace isthmus {
namespace {

at::Tensor RandomTokens(int64_t sequences, int64_t length, uint32_t seed) {
  std::mt19937 random(seed);
  at::Tensor tokens = at::empty({sequences, length}, at::kLong);
  int64_t* values = tokens.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < tokens.numel(); ++i) values[i] = random() % 256;
  return tokens;
}

// What each rank gets of two steps with a change of the parameters between them.
struct Result {
  double loss = 0;
  std::vector<float> gradients;
  std::vector<float> full;  // of rank 0: every tensor

  bool operator==(const Result& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() &&
             (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
    };
    return loss == other.loss && same(gradients, other.gradients) && same(full, other.full);
  }
};

std::vector<Result> TwoSteps(int ranks, bool reshard, bool apart) {
  const v1::RunSpec spec = SmallSpec();
  std::vector<Result> results(ranks);
  RunRanks(ranks, [&](ProcessGroup* group) {
    auto model = MakeGpt2(spec.model());
    ASSERT_TRUE(model.ok()) << model.status();
    ShardedModelOptions options;
    options.group = group;
    options.codec = spec.codec();
    options.reshard_after_forward = reshard;
    options.placement.apart = apart;
    auto sharded = ShardedModel::Make(*std::move(model), options);
    ASSERT_TRUE(sharded.ok()) << sharded.status();
    const auto fill = [&](const ModelTensor& tensor, uint64_t first, absl::Span<float> out) {
      InitializeGpt2(spec.model(), spec.seed(), tensor.name, first, out);
      return absl::OkStatus();
    };
    ASSERT_TRUE((*sharded)->Fill(fill).ok());
    Result& result = results[group->rank()];
    for (uint32_t step = 0; step < 2; ++step) {
      const uint32_t seed = 10 * step + static_cast<uint32_t>(group->rank());
      const Batch batch = {RandomTokens(3, spec.model().context(), seed),
                           RandomTokens(3, spec.model().context(), seed + 100)};
      const auto loss = (*sharded)->ForwardBackward(batch);
      ASSERT_TRUE(loss.ok()) << loss.status();
      result.loss += *loss;
      const auto gradients = (*sharded)->gradients();
      const auto parameters = (*sharded)->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        const auto& data = gradients[i].data;
        result.gradients.insert(result.gradients.end(), data.begin(), data.end());
        for (size_t j = 0; j < data.size(); ++j) parameters[i].data[j] -= 0.1f * data[j];
      }
      (*sharded)->ParametersChanged();
    }
    const auto visit = [&](const ModelTensor&, absl::Span<const float> values) {
      if (group->rank() == 0) {
        result.full.insert(result.full.end(), values.begin(), values.end());
      }
      return absl::OkStatus();
    };
    ASSERT_TRUE((*sharded)->VisitFullTensors(visit).ok());
  });
  return results;
}

TEST(Placement, ApartGivesTheSameBits) {
  for (const bool reshard : {true, false}) {
    for (const int ranks : {1, 2, 3}) {
      const std::vector<Result> apart = TwoSteps(ranks, reshard, true);
      EXPECT_FALSE(apart[0].gradients.empty());
      EXPECT_TRUE(apart == TwoSteps(ranks, reshard, false)) << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace isthmus
