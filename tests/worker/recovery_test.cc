// Trainers that end in the middle of a run and go on from their checkpoints (design rule 12).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "spec/run_spec.h"
#include "tests/worker/local_run.h"
#include "tests/worker/torch_fixture.h"
#include "worker/train_state.h"
#include "worker/trainer.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSteps = 20;  // with local steps: rounds
constexpr uint32_t kLocalSteps = 5;

struct Trained {
  std::vector<TrainSummary> summaries;
  absl::Status status;                       // the first that is not OK
  std::map<std::string, TrainState> states;  // at the end, by "node-rank"
};

class RecoveryTest : public testing::Test {
 protected:
  RecoveryTest() {
    folder_ =
        testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    options_.data = WriteText("recovery.txt", 20000, 1);
    options_.quiet = true;
  }

  // `method`: a preset, or "demo_" and what else there is.
  static v1::RunSpec Spec(const std::string& method, bool deterministic) {
    v1::RunSpec spec = SmallSpec();
    spec.set_steps(kSteps);
    const std::string preset = method.rfind("demo_", 0) == 0 ? "demo" : method;
    spec.set_preset(preset);
    spec.clear_codec();
    if (preset == "demo") spec.mutable_codec()->set_chunk_side(16);
    if (method == "demo_momentum") spec.mutable_optimizer()->set_momentum(0.5f);
    if (method == "demo_every") {  // rounds as long as those of local steps
      spec.set_steps(kSteps * kLocalSteps);
      spec.mutable_schedule()->set_every(kLocalSteps);
      spec.set_allow_drift(true);
    }
    if (preset == "none") spec.set_allow_drift(true);
    if (preset == "diloco" || preset == "sparse_loco") {
      spec.set_steps(kSteps * kLocalSteps);
      spec.mutable_schedule()->set_local_steps(kLocalSteps);
      spec.set_placement(v1::PLACEMENT_REPLICATED);
      spec.mutable_optimizer()->clear_beta2();
    }
    spec.mutable_optimizer()->clear_base();
    if (method == "demo_adamw") spec.mutable_optimizer()->set_base(v1::BASE_OPTIMIZER_ADAMW);
    spec.set_deterministic(deterministic);
    EXPECT_TRUE(CompleteRunSpec(&spec).ok());
    return spec;
  }

  // Trains nodes a (with `ranks`) and b until the run has `until` rounds. `every`: of checkpoints.
  Trained Train(LocalRun* run, int ranks, uint64_t until, uint64_t every,
                const std::string& name = "checkpoints") {
    Trained trained;
    std::mutex mutex;
    std::vector<std::thread> threads;
    std::map<std::string, int> nodes = {{"a", ranks}};
    if (with_b_) nodes["b"] = 1;
    for (const auto& [node, node_ranks] : nodes) {
      threads.emplace_back([&, node = node, node_ranks = node_ranks] {
        RunRanks(node_ranks, [&](ProcessGroup* group) {
          auto client = run->Client(node, group->rank());
          TrainerOptions options = options_;
          options.group = group;
          options.client = client.get();
          if (every > 0) options.checkpoint_dir = folder_ + "/" + name + "-" + node;
          options.checkpoint_every = every;
          if (until < kSteps) options.stop = [&] { return run->rounds() >= until; };
          auto trainer = Trainer::Make(options);
          absl::Status status = trainer.status();
          if (trainer.ok()) status = (*trainer)->Run();
          std::lock_guard<std::mutex> lock(mutex);
          if (!status.ok() && trained.status.ok()) trained.status = status;
          if (!trainer.ok()) return;
          trained.summaries.push_back((*trainer)->summary());
          trained.states[node + "-" + std::to_string(group->rank())] =
              (*trainer)->replica().State();
        });
      });
    }
    for (std::thread& thread : threads) thread.join();
    return trained;
  }

  // Of any rank.
  static const TrainSummary& SummaryOf(const Trained& trained) { return trained.summaries[0]; }
  static std::multiset<std::string> StatesOf(const Trained& trained) {
    std::multiset<std::string> states;
    for (const TrainSummary& summary : trained.summaries) states.insert(summary.state_sha256);
    return states;
  }

  static void ExpectSameState(const Trained& one, const Trained& other) {
    ASSERT_EQ(one.states.size(), other.states.size());
    for (const auto& [name, state] : one.states) {
      const TrainState& same = other.states.at(name);
      EXPECT_EQ(state.parameters, same.parameters) << name;
      EXPECT_EQ(state.method.residual, same.method.residual) << name;
      EXPECT_EQ(state.method.x, same.method.x) << name;
      EXPECT_EQ(state.inner.first_moments, same.inner.first_moments) << name;
      EXPECT_EQ(state.inner.second_moments, same.inner.second_moments) << name;
      EXPECT_EQ(state.inner.beta2_power, same.inner.beta2_power) << name;
      EXPECT_EQ(state.method.step.first_moments, same.method.step.first_moments) << name;
      EXPECT_EQ(state.method.step.second_moments, same.method.step.second_moments) << name;
      EXPECT_EQ(state.method.step.beta1_power, same.method.step.beta1_power) << name;
      EXPECT_EQ(state.method.step.beta2_power, same.method.step.beta2_power) << name;
      EXPECT_TRUE(state.method.pending.empty() && same.method.pending.empty()) << name;
    }
    EXPECT_EQ(StatesOf(one), StatesOf(other));
    EXPECT_EQ(SummaryOf(one).steps, SummaryOf(other).steps);
  }

  std::string folder_;
  TrainerOptions options_;
  bool with_b_ = true;
};

// Case C15: 20 steps, and 10 steps with a checkpoint and 10 after a restart.
TEST_F(RecoveryTest, TenStepsAndTenAfterARestartAreTwenty) {
  for (const char* method : {"demo", "demo_adamw", "demo_momentum", "demo_every", "random", "full",
                             "none", "diloco", "sparse_loco"}) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(testing::Message() << method << ", ranks " << ranks);
      const v1::RunSpec spec = Spec(method, /*deterministic=*/false);
      const std::string name = std::string(method) + std::to_string(ranks);
      LocalRun whole(spec, {{"a", ranks}, {"b", 1}});
      const Trained undisturbed = Train(&whole, ranks, kSteps, 0);
      ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status;

      LocalRun run(spec, {{"a", ranks}, {"b", 1}});
      EXPECT_EQ(Train(&run, ranks, 10, 10, name).status.code(), absl::StatusCode::kCancelled);
      const Trained resumed = Train(&run, ranks, kSteps, 10, name);
      ASSERT_TRUE(resumed.status.ok()) << resumed.status;
      EXPECT_EQ(SummaryOf(resumed).resumed_round, 10u);
      EXPECT_EQ(SummaryOf(resumed).fresh_residuals, 0u);
      EXPECT_EQ(run.joins().back().last_round(), 10u);
      EXPECT_EQ(run.joins().back().last_update_sha256(), run.updates()[9]->record.sha256());
      EXPECT_EQ(run.checkpointed().at("a"), 20u);
      ExpectSameState(undisturbed, resumed);
    }
  }
}

// Rounds that were committed after the checkpoint are computed again, and fit.
TEST_F(RecoveryTest, DeterministicModeReplaysWhatWasLost) {
  for (const auto& [method, ranks] : std::vector<std::pair<std::string, int>>{{"demo", 1},
                                                                              {"demo", 2},
                                                                              {"demo_every", 2},
                                                                              {"striding", 2},
                                                                              {"diloco", 1},
                                                                              {"diloco", 2},
                                                                              {"sparse_loco", 2}}) {
    for (const uint64_t every : {0, 4}) {  // 0: from the start state
      SCOPED_TRACE(testing::Message() << method << " every " << every << ", ranks " << ranks);
      const v1::RunSpec spec = Spec(method, /*deterministic=*/true);
      LocalRun whole(spec, {{"a", ranks}, {"b", 1}});
      const Trained undisturbed = Train(&whole, ranks, kSteps, 0);
      ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status;

      const std::string name = method + std::to_string(ranks) + "-" + std::to_string(every);
      LocalRun run(spec, {{"a", ranks}, {"b", 1}});
      EXPECT_EQ(Train(&run, ranks, 10, every, name).status.code(), absl::StatusCode::kCancelled);
      const Trained resumed = Train(&run, ranks, kSteps, every, name);
      ASSERT_TRUE(resumed.status.ok()) << resumed.status;
      EXPECT_EQ(SummaryOf(resumed).replayed_rounds, every == 0 ? 10u : 2u);
      EXPECT_EQ(SummaryOf(resumed).fresh_residuals, 0u);
      ExpectSameState(undisturbed, resumed);
    }
  }
}

// With overlap what was under way at the checkpoint is sent again, and what followed is computed.
TEST_F(RecoveryTest, WhatWasUnderWayIsRepeated) {
  for (const uint32_t overlap : {1u, 2u}) {
    for (const auto& [ranks, every] : std::vector<std::pair<int, uint64_t>>{{1, 0}, {2, 4}}) {
      SCOPED_TRACE(testing::Message() << "overlap " << overlap << " every " << every);
      v1::RunSpec spec = Spec("demo", /*deterministic=*/true);
      spec.set_overlap(overlap);
      ASSERT_TRUE(CompleteRunSpec(&spec).ok());
      LocalRun whole(spec, {{"a", ranks}, {"b", 1}});
      const Trained undisturbed = Train(&whole, ranks, kSteps, 0);
      ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status;

      const std::string name = std::to_string(overlap) + "-" + std::to_string(every);
      LocalRun run(spec, {{"a", ranks}, {"b", 1}});
      EXPECT_EQ(Train(&run, ranks, 10, every, name).status.code(), absl::StatusCode::kCancelled);
      const Trained resumed = Train(&run, ranks, kSteps, every, name);
      ASSERT_TRUE(resumed.status.ok()) << resumed.status;
      EXPECT_GE(SummaryOf(resumed).replayed_rounds, every == 0 ? 10u : 2u);
      EXPECT_EQ(SummaryOf(resumed).fresh_residuals, 0u);
      ExpectSameState(undisturbed, resumed);
    }
  }
  // Without deterministic mode it is of another life, and given up.
  v1::RunSpec spec = Spec("demo", /*deterministic=*/false);
  spec.set_overlap(1);
  ASSERT_TRUE(CompleteRunSpec(&spec).ok());
  LocalRun run(spec, {{"a", 2}, {"b", 1}});
  EXPECT_EQ(Train(&run, 2, 10, 4, "fresh").status.code(), absl::StatusCode::kCancelled);
  const Trained resumed = Train(&run, 2, kSteps, 4, "fresh");
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  for (const TrainSummary& summary : resumed.summaries) {
    EXPECT_EQ(summary.fresh_residuals, 1u);
    EXPECT_GT(summary.fresh_residual_norm, 0);
    EXPECT_EQ(summary.state_sha256, resumed.summaries[0].state_sha256);
  }
}

// Another batch would be another contribution: what it left behind is not known.
TEST_F(RecoveryTest, AContributionThatCannotBeComputedAgainCostsTheResidual) {
  const v1::RunSpec spec = Spec("demo", /*deterministic=*/true);
  LocalRun run(spec, {{"a", 1}, {"b", 1}});
  EXPECT_EQ(Train(&run, 1, 10, 4).status.code(), absl::StatusCode::kCancelled);
  options_.data = WriteText("other.txt", 20000, 2);
  const Trained resumed = Train(&run, 1, kSteps, 4);
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  for (const TrainSummary& summary : resumed.summaries) {
    EXPECT_EQ(summary.replayed_rounds, 1u);
    EXPECT_EQ(summary.fresh_residuals, 1u);
    EXPECT_GT(summary.fresh_residual_norm, 0);
    EXPECT_EQ(summary.steps, kSteps);
    EXPECT_EQ(summary.state_sha256, resumed.summaries[0].state_sha256);
  }
}

TEST_F(RecoveryTest, WithoutDeterministicModeAnOldResidualIsDroppedAndCounted) {
  const v1::RunSpec spec = Spec("demo", /*deterministic=*/false);
  LocalRun run(spec, {{"a", 2}, {"b", 1}});
  EXPECT_EQ(Train(&run, 2, 10, 4).status.code(), absl::StatusCode::kCancelled);
  const Trained resumed = Train(&run, 2, kSteps, 4);
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  for (const TrainSummary& summary : resumed.summaries) {
    EXPECT_EQ(summary.replayed_rounds, 0u);
    EXPECT_EQ(summary.fresh_residuals, 1u);
    EXPECT_GT(summary.fresh_residual_norm, 0);
    EXPECT_EQ(summary.state_sha256, resumed.summaries[0].state_sha256);
  }
}

TEST_F(RecoveryTest, ADamagedSetIsPassedOverForTheOneBefore) {
  const v1::RunSpec spec = Spec("demo", /*deterministic=*/true);
  LocalRun whole(spec, {{"a", 2}, {"b", 1}});
  const Trained undisturbed = Train(&whole, 2, kSteps, 0);
  LocalRun run(spec, {{"a", 2}, {"b", 1}});
  EXPECT_EQ(Train(&run, 2, 10, 4).status.code(), absl::StatusCode::kCancelled);
  const std::string file = folder_ + "/checkpoints-a/round-0000000008/rank-1-of-2.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  const Trained resumed = Train(&run, 2, kSteps, 4);
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  EXPECT_TRUE(std::filesystem::exists(file + ".damaged"));
  std::set<uint64_t> rounds;
  for (const TrainSummary& summary : resumed.summaries) rounds.insert(summary.resumed_round);
  EXPECT_EQ(rounds, (std::set<uint64_t>{4, 8}));  // b's is whole
  ExpectSameState(undisturbed, resumed);
}

// Values of whole tensors, from the parts of all ranks of node a.
using Whole = std::map<std::string, std::map<uint64_t, float>>;
Whole WholeOf(const std::map<std::string, TrainState>& states,
              const std::function<const std::vector<std::vector<float>>&(const TrainState&)>& get) {
  Whole whole;
  for (const auto& [name, state] : states) {
    if (name[0] != 'a') continue;
    const std::vector<std::vector<float>>& values = get(state);
    for (size_t part = 0; part < values.size(); ++part) {
      const StatePart& place = state.parts[part];
      for (size_t i = 0; i < values[part].size(); ++i) {
        EXPECT_TRUE(whole[place.tensor].emplace(place.first_element + i, values[part][i]).second);
      }
    }
  }
  return whole;
}

// Node a goes on with another number of ranks: all that it held is there bit for bit, and the nodes
// stay equal.
TEST_F(RecoveryTest, AnotherNumberOfRanksGoesOn) {
  for (const char* method : {"demo_adamw", "diloco", "sparse_loco"}) {
    const bool adamw = std::string(method) == "demo_adamw";
    v1::RunSpec spec = Spec(adamw ? "demo" : method, /*deterministic=*/false);
    if (adamw) spec.mutable_optimizer()->set_base(v1::BASE_OPTIMIZER_ADAMW);
    constexpr int ranks = 3;
    auto run = std::make_unique<LocalRun>(spec, std::map<std::string, int>{{"a", 3}, {"b", 1}});
    const Trained begun = Train(run.get(), ranks, 10, 5, method);
    ASSERT_EQ(begun.status.code(), absl::StatusCode::kCancelled) << begun.status;
    for (const int other : {1, 2, 6}) {
      SCOPED_TRACE(testing::Message() << method << ", " << ranks << " ranks, then " << other);
      run->ChangeRanks("a", other);
      const Trained resumed = Train(run.get(), other, 10, 5, method);
      ASSERT_EQ(resumed.status.code(), absl::StatusCode::kCancelled) << resumed.status;
      for (const TrainSummary& summary : resumed.summaries) EXPECT_EQ(summary.resumed_round, 10u);
      const std::function<const std::vector<std::vector<float>>&(const TrainState&)> gets[] = {
          [](const TrainState& s) -> const auto& {return s.parameters;
    }
    , [](const TrainState& s) -> const auto& { return s.method.residual; }
    , [](const TrainState& s) -> const auto& { return s.method.step.first_moments; }
    , [](const TrainState& s) -> const auto& { return s.method.step.second_moments; }
    , [](const TrainState& s) -> const auto& { return s.method.x; }
    , [](const TrainState& s) -> const auto& { return s.inner.first_moments; }
    , [](const TrainState& s) -> const auto& { return s.inner.second_moments; }
  };
  for (const auto& get : gets) {
    EXPECT_EQ(WholeOf(begun.states, get), WholeOf(resumed.states, get));
  }
  EXPECT_EQ(begun.states.at("a-0").method.step.beta1_power,
            resumed.states.at("a-0").method.step.beta1_power);
}
const Trained finished = Train(run.get(), 6, kSteps, 5, method);
ASSERT_TRUE(finished.status.ok()) << finished.status;
for (const TrainSummary& summary : finished.summaries) {
  EXPECT_EQ(summary.fresh_residuals, 0u);
  EXPECT_EQ(summary.state_sha256, finished.summaries[0].state_sha256);
}
// The sets of three ranks have made room for those of six.
const std::string folder = folder_ + "/" + method + "-a";
EXPECT_FALSE(std::filesystem::exists(folder + "/round-0000000005"));
EXPECT_TRUE(std::filesystem::exists(folder + "/round-0000000020/rank-5-of-6.safetensors"));
}  // namespace
}  // namespace isthmus

TEST_F(RecoveryTest, WhatDoesNotFitIsRefusedInASentence) {
  const v1::RunSpec spec = Spec("demo", /*deterministic=*/false);
  LocalRun run(spec, {{"a", 1}, {"b", 1}});
  EXPECT_EQ(Train(&run, 1, 10, 5).status.code(), absl::StatusCode::kCancelled);
  with_b_ = false;  // it would wait for a
  v1::RunSpec changed = spec;
  changed.set_seed(99);
  LocalRun other_start(changed, {{"a", 1}, {"b", 1}});
  EXPECT_THAT(std::string(Train(&other_start, 1, 10, 5).status.message()),
              HasSubstr("of a run that began with state"));
  changed = spec;
  changed.set_run("another");
  LocalRun other_run(changed, {{"a", 1}, {"b", 1}});
  EXPECT_THAT(std::string(Train(&other_run, 1, 10, 5).status.message()),
              HasSubstr("in run 'small', this is"));
}

}  // namespace
}  // namespace isthmus
