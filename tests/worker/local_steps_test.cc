// Rounds of local steps on a run inside this process, ranks and nodes as threads (design rule 11).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/safetensors.h"
#include "spec/rounds.h"
#include "spec/run_spec.h"
#include "tests/worker/local_run.h"
#include "tests/worker/torch_fixture.h"
#include "worker/trainer.h"

namespace isthmus {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

using NodeRanks = std::map<std::string, int>;
using Values = std::map<std::string, std::vector<float>>;

struct Trained {
  std::map<std::string, TrainSummary> summaries;  // of rank 0, by node
  std::set<std::string> states;                   // of all ranks
  absl::Status status;                            // the first that is not OK
};

// `stop_of`: TrainerOptions::stop of a node, which is asked at every step.
Trained Train(LocalRun* run, const NodeRanks& nodes, const TrainerOptions& common,
              const std::map<std::string, std::function<bool()>>& stop_of = {}) {
  Trained trained;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (const auto& node : nodes) {
    threads.emplace_back([&, node] {
      RunRanks(node.second, [&](ProcessGroup* group) {
        auto client = run->Client(node.first, group->rank());
        TrainerOptions options = common;
        options.group = group;
        options.client = client.get();
        options.quiet = true;
        if (stop_of.count(node.first) > 0) options.stop = stop_of.at(node.first);
        if (node.first != "a") {
          options.save_file.clear();
          options.metrics_file.clear();
        }
        auto trainer = Trainer::Make(options);
        const absl::Status status = trainer.ok() ? (*trainer)->Run() : trainer.status();
        std::lock_guard<std::mutex> lock(mutex);
        if (!status.ok() && trained.status.ok()) trained.status = status;
        if (!trainer.ok()) return;
        trained.states.insert((*trainer)->summary().state_sha256);
        if (group->rank() == 0) trained.summaries[node.first] = (*trainer)->summary();
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return trained;
}

Values ReadAll(const std::string& path) {
  Values values;
  auto file = SafetensorsFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  for (const auto& [name, entry] : (*file)->entries()) {
    values[name].resize((entry.end - entry.begin) / 4);
    EXPECT_TRUE((*file)->Read(name, 0, absl::MakeSpan(values[name])).ok());
  }
  return values;
}

double LargestDifference(const Values& one, const Values& other) {
  double largest = 0;
  for (const auto& [name, values] : one) {
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(values[i]) - other.at(name)[i]));
    }
  }
  return largest;
}

v1::RunSpec LocalSpec(const std::string& preset, uint32_t local_steps, uint64_t steps) {
  v1::RunSpec spec = SmallSpec();
  spec.set_preset(preset);
  spec.clear_codec();
  spec.mutable_optimizer()->clear_base();
  spec.mutable_optimizer()->clear_beta2();
  spec.set_steps(steps);
  if (local_steps > 0) spec.mutable_schedule()->set_local_steps(local_steps);
  spec.set_placement(v1::PLACEMENT_REPLICATED);  // a local run hosts nothing
  if (preset != "dist_lion") {
    spec.mutable_codec()->mutable_reply()->set_format(v1::NUMBER_FORMAT_F32);
  }
  const absl::Status complete = CompleteRunSpec(&spec);
  EXPECT_TRUE(complete.ok()) << complete;
  return spec;
}

TEST(LocalSteps, OneNodeThatAveragesTrainsAsOneAlone) {
  TrainerOptions options;
  options.data = WriteText("alone.txt", 20000, 1);
  std::map<std::string, Values> saved;
  for (const char* preset : {"local_sgd", "none"}) {
    v1::RunSpec spec = LocalSpec("local_sgd", 4, 11);
    if (std::string(preset) == "none") {
      spec = SmallSpec();
      spec.set_preset("none");
      spec.set_allow_drift(true);
      spec.clear_codec();
      spec.mutable_optimizer()->clear_base();
      spec.set_steps(11);
      ASSERT_TRUE(CompleteRunSpec(&spec).ok());
    }
    spec.mutable_optimizer()->set_base(v1::BASE_OPTIMIZER_SGD);
    spec.mutable_optimizer()->set_lr(0.3f);
    options.save_file = testing::TempDir() + "/alone_" + preset + ".safetensors";
    LocalRun run(spec, {{"a", 1}});
    const Trained trained = Train(&run, {{"a", 1}}, options);
    ASSERT_TRUE(trained.status.ok()) << trained.status;
    const TrainSummary& summary = trained.summaries.at("a");
    EXPECT_EQ(summary.steps, 11u);
    EXPECT_EQ(summary.rounds, spec.has_outer() ? 3u : 11u);
    EXPECT_EQ(summary.tokens, 11u * 6 * 16);
    saved[preset] = ReadAll(options.save_file);
  }
  // x - (x - p) is rounded twice.
  EXPECT_LT(LargestDifference(saved["local_sgd"], saved["none"]), 1e-5);
}

TEST(LocalSteps, RanksChangeOnlyTheOrderOfSums) {
  v1::RunSpec spec = LocalSpec("diloco", 3, 9);
  spec.mutable_optimizer()->set_base(v1::BASE_OPTIMIZER_SGD);
  spec.mutable_optimizer()->set_lr(0.3f);
  TrainerOptions options;
  options.data = WriteText("ranks.txt", 20000, 1);
  std::map<int, Values> saved;
  for (const int ranks : {1, 2, 3}) {
    LocalRun run(spec, {{"a", ranks}, {"b", 1}});
    options.save_file = testing::TempDir() + "/local" + std::to_string(ranks) + ".safetensors";
    const Trained trained = Train(&run, {{"a", ranks}, {"b", 1}}, options);
    ASSERT_TRUE(trained.status.ok()) << trained.status;
    EXPECT_EQ(trained.states.size(), 1u);
    EXPECT_EQ(trained.summaries.at("a").rounds, 3u);
    for (const auto& [round, nodes] : run.works()) {
      EXPECT_EQ(nodes.at("a").steps, 3u) << "round " << round;
      EXPECT_EQ(nodes.at("a").tokens, 3u * 6 * 16);
    }
    saved[ranks] = ReadAll(options.save_file);
  }
  EXPECT_LT(LargestDifference(saved[1], saved[2]), 1e-5);
  EXPECT_LT(LargestDifference(saved[1], saved[3]), 1e-5);
}

TEST(LocalSteps, EveryPresetLearnsAndNodesHoldTheSameState) {
  for (const char* preset : {"local_sgd", "diloco", "slowmo", "dist_sign_momentum_short"}) {
    SCOPED_TRACE(preset);
    v1::RunSpec spec = LocalSpec(preset, 5, 60);
    spec.mutable_data()->set_eval_every(12);
    TrainerOptions options;
    options.data = WriteText("learns.txt", 40000, 2);
    options.metrics_file = testing::TempDir() + "/local_metrics.jsonl";
    LocalRun run(spec, {{"a", 2}, {"b", 1}});
    const Trained trained = Train(&run, {{"a", 2}, {"b", 1}}, options);
    ASSERT_TRUE(trained.status.ok()) << trained.status;
    EXPECT_EQ(trained.states.size(), 1u);
    for (const auto& [node, summary] : trained.summaries) {
      EXPECT_LT(summary.val_loss, summary.start_loss - 0.5) << node;
      EXPECT_EQ(summary.steps, 60u);
      EXPECT_EQ(summary.rounds, 12u);
      EXPECT_EQ(summary.tokens, 60u * 6 * 16);
      EXPECT_EQ(summary.skipped_steps, 0u);
      EXPECT_EQ(summary.carried_rounds, 0u);
    }
  }
}

// The sign of a local Lion direction, at every step.
TEST(LocalSteps, DistributedLionLearns) {
  v1::RunSpec spec = LocalSpec("dist_lion", 0, 40);
  TrainerOptions options;
  options.data = WriteText("lion.txt", 40000, 2);
  LocalRun run(spec, {{"a", 2}, {"b", 1}});
  const Trained trained = Train(&run, {{"a", 2}, {"b", 1}}, options);
  ASSERT_TRUE(trained.status.ok()) << trained.status;
  EXPECT_EQ(trained.states.size(), 1u);
  const TrainSummary& summary = trained.summaries.at("a");
  EXPECT_EQ(summary.rounds, 40u);
  EXPECT_LT(summary.val_loss, summary.start_loss - 0.5);
}

// What was left out goes into the next contribution, with the steps that made it.
TEST(LocalSteps, ADeltaThatWasLeftOutIsCarried) {
  const v1::RunSpec spec = LocalSpec("local_sgd", 3, 15);
  TrainerOptions options;
  options.data = WriteText("carried.txt", 20000, 3);
  LocalRun run(spec, {{"a", 1}, {"b", 2}});
  run.LeaveOut(2, "b");
  run.LeaveOut(3, "b");
  const Trained trained = Train(&run, {{"a", 1}, {"b", 2}}, options);
  ASSERT_TRUE(trained.status.ok()) << trained.status;
  EXPECT_EQ(trained.states.size(), 1u);
  EXPECT_EQ(run.works().at(3).at("b").steps, 6u);
  EXPECT_EQ(run.works().at(4).at("b").steps, 9u);
  EXPECT_EQ(run.works().at(4).at("b").tokens, 9u * 6 * 16);
  EXPECT_EQ(run.works().at(5).at("b").steps, 3u);
  EXPECT_EQ(trained.summaries.at("b").carried_rounds, 2u);
  EXPECT_EQ(trained.summaries.at("b").dropped_deltas, 0u);
  EXPECT_EQ(trained.summaries.at("b").tokens, 15u * 6 * 16);
  EXPECT_EQ(trained.summaries.at("b").skipped_steps, 0u);
}

TEST(LocalSteps, ADeltaIsCarriedNoFurtherThanTheSpecSays) {
  v1::RunSpec spec = LocalSpec("local_sgd", 3, 15);
  spec.mutable_aggregate()->set_carry_rounds(1);
  TrainerOptions options;
  options.data = WriteText("dropped.txt", 20000, 3);
  LocalRun run(spec, {{"a", 1}, {"b", 2}});
  run.LeaveOut(2, "b");
  run.LeaveOut(3, "b");
  const Trained trained = Train(&run, {{"a", 1}, {"b", 2}}, options);
  ASSERT_TRUE(trained.status.ok()) << trained.status;
  EXPECT_EQ(trained.states.size(), 1u);
  EXPECT_EQ(run.works().at(3).at("b").steps, 6u);
  EXPECT_EQ(run.works().at(4).at("b").steps, 3u);
  EXPECT_GT(trained.summaries.at("b").dropped_deltas, 0u);
}

// A round closes while b is in the middle of its steps: it goes on from the update with what it has
// done, and takes as many steps in the round that is open as are lacking.
TEST(LocalSteps, WorkOfARoundThatClosesIsCarriedFromTheNextStepBoundary) {
  TrainerOptions options;
  options.data = WriteText("closes.txt", 20000, 4);
  for (const bool feedback : {false, true}) {
    SCOPED_TRACE(feedback ? "the residual takes it" : "the parameters hold it");
    const v1::RunSpec spec = LocalSpec(feedback ? "sparse_loco" : "local_sgd", 4, 16);
    LocalRun run(spec, {{"a", 1}, {"b", 2}});
    run.CloseWithout(2, "b");
    // Each rank of b is asked at NextRound and then once a step: in a step of round 2 it waits
    // until the round is over.
    std::atomic<int> asked_of_b{0};
    const auto wait_in_round_2 = [&] {
      if (run.rounds() == 1 && ++asked_of_b > 2) run.WaitRounds(2);
      return false;
    };
    const Trained trained = Train(&run, {{"a", 1}, {"b", 2}}, options, {{"b", wait_in_round_2}});
    ASSERT_TRUE(trained.status.ok()) << trained.status;
    EXPECT_EQ(trained.states.size(), 1u);
    const Work third = run.works().at(3).at("b");
    EXPECT_EQ(third.steps, feedback ? 3u : 4u);  // one of them of round 2
    EXPECT_EQ(third.tokens, third.steps * 6 * 16);
    EXPECT_EQ(run.works().at(4).at("b").steps, 4u);
    const TrainSummary& summary = trained.summaries.at("b");
    EXPECT_EQ(summary.carried_rounds, feedback ? 0u : 1u);
    EXPECT_EQ(summary.skipped_steps, 4u);
    EXPECT_EQ(summary.tokens, (8u + third.steps) * 6 * 16);
  }
}

// SGD with a rate beyond float32: the first step leaves nothing finite.
TEST(LocalSteps, WhatIsNotFiniteStaysAndTheNodeGoesBackToX) {
  v1::RunSpec spec = LocalSpec("local_sgd", 3, 6);
  spec.mutable_optimizer()->set_base(v1::BASE_OPTIMIZER_SGD);
  spec.mutable_optimizer()->set_lr(3e38f);
  spec.mutable_optimizer()->set_clip_norm(1000.0f);
  spec.mutable_optimizer()->set_warmup_steps(0);
  TrainerOptions options;
  options.data = WriteText("infinite.txt", 20000, 5);
  LocalRun run(spec, {{"a", 2}});
  const Trained trained = Train(&run, {{"a", 2}}, options);
  ASSERT_TRUE(trained.status.ok()) << trained.status;
  ASSERT_EQ(run.abstain_reasons().size(), 4u);
  EXPECT_THAT(run.abstain_reasons(), Each(HasSubstr("is not finite, or too far away")));
  const TrainSummary& summary = trained.summaries.at("a");
  EXPECT_EQ(summary.val_loss, summary.start_loss);
  EXPECT_GT(summary.non_finite_steps, 0u);
  EXPECT_EQ(summary.dropped_deltas, 2u);
  EXPECT_EQ(summary.tokens, 0u);
  for (const auto& update : run.updates()) EXPECT_TRUE(update->record.is_void());
}

}  // namespace
}  // namespace isthmus
