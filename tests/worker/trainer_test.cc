// The trainer's loop on a run inside this process, ranks and nodes as threads.

#include "worker/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "base/safetensors.h"
#include "base/sha256.h"
#include "spec/run_spec.h"
#include "tests/worker/local_run.h"
#include "tests/worker/torch_fixture.h"

namespace isthmus {
namespace {

struct Trained {
  std::vector<TrainSummary> summaries;  // of all ranks of all nodes
  absl::Status status;                  // the first that is not OK
};

Trained Train(LocalRun* run, const std::map<std::string, int>& nodes,
              const TrainerOptions& common) {
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
        if (node.first != "a") options.save_file.clear();
        auto trainer = Trainer::Make(options);
        const absl::Status status = trainer.ok() ? (*trainer)->Run() : trainer.status();
        std::lock_guard<std::mutex> lock(mutex);
        if (!status.ok() && trained.status.ok()) trained.status = status;
        if (trainer.ok()) trained.summaries.push_back((*trainer)->summary());
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return trained;
}

std::map<std::string, std::vector<float>> ReadAll(const std::string& path) {
  std::map<std::string, std::vector<float>> values;
  auto file = SafetensorsFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  for (const auto& [name, entry] : (*file)->entries()) {
    values[name].resize((entry.end - entry.begin) / 4);
    EXPECT_TRUE((*file)->Read(name, 0, absl::MakeSpan(values[name])).ok());
  }
  return values;
}

// Issue 3: with k = m and sign off the number of ranks changes only the order of sums.
TEST(Trainer, FiveStepsOnOneAndTwoRanksAgree) {
  v1::RunSpec spec = SmallSpec();
  spec.mutable_codec()->set_matrix_density(1);
  spec.mutable_codec()->set_vector_density(1);
  spec.mutable_codec()->set_sign(false);
  spec.mutable_optimizer()->set_lr(0.3f);
  TrainerOptions options;
  options.data = WriteText("five_steps.txt", 20000, 1);
  std::map<int, std::map<std::string, std::vector<float>>> saved;
  for (int ranks : {1, 2}) {
    LocalRun run(spec, {{"a", ranks}, {"b", 1}});
    options.save_file = testing::TempDir() + "/ranks" + std::to_string(ranks) + ".safetensors";
    const Trained trained = Train(&run, {{"a", ranks}, {"b", 1}}, options);
    ASSERT_TRUE(trained.status.ok()) << trained.status;
    for (const TrainSummary& summary : trained.summaries) {
      EXPECT_EQ(summary.state_sha256, trained.summaries[0].state_sha256);
      EXPECT_EQ(summary.steps, 5u);
    }
    saved[ranks] = ReadAll(options.save_file);
  }
  double moved = 0;
  for (const auto& [name, values] : saved[1]) {
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], saved[2].at(name)[i], 1e-5) << name << " element " << i;
      moved = std::max(moved, std::abs(static_cast<double>(values[i])));
    }
  }
  EXPECT_GT(moved, 0.1);
}

TEST(Trainer, LossFallsAndNodesHoldTheSameState) {
  v1::RunSpec spec = SmallSpec();
  spec.set_steps(40);
  spec.mutable_data()->set_eval_every(15);
  TrainerOptions options;
  options.data = WriteText("falls.txt", 40000, 2);
  options.metrics_file = testing::TempDir() + "/metrics.jsonl";
  options.sample_bytes = 20;
  LocalRun run(spec, {{"a", 2}, {"b", 3}});
  run.LeaveOut(7, "b");
  const Trained trained = Train(&run, {{"a", 2}, {"b", 3}}, options);
  ASSERT_TRUE(trained.status.ok()) << trained.status;
  ASSERT_EQ(trained.summaries.size(), 5u);
  for (const TrainSummary& summary : trained.summaries) {
    EXPECT_EQ(summary.state_sha256, trained.summaries[0].state_sha256);
    EXPECT_NEAR(summary.val_loss, trained.summaries[0].val_loss, 1e-6);
    EXPECT_EQ(summary.sample.size(), options.sample_prompt.size() + 20);
  }
  const TrainSummary& summary = trained.summaries[0];
  // Logits start with a variance of 0.4, which costs half of that over the uniform guess.
  EXPECT_NEAR(summary.start_loss, std::log(256.0) + 0.2, 0.15);
  EXPECT_LT(summary.val_loss, summary.start_loss - 1);
  EXPECT_EQ(summary.rounds, 40u);
  for (const TrainSummary& each : trained.summaries) {  // two ranks of a, three of b
    const bool is_b = each.tokens == 39 * 6 * 16;
    EXPECT_EQ(each.skipped_steps, is_b ? 1u : 0u);
    EXPECT_EQ(each.skipped_sequences, is_b ? 6u : 0u);
  }
  EXPECT_LT(summary.bytes_up / 40, summary.dense_bytes_per_round / 10);
  ASSERT_EQ(run.joins().size(), 5u);
  for (const auto& join : run.joins()) {
    EXPECT_EQ(join.state_sha256(), run.joins()[0].state_sha256());
    EXPECT_EQ(join.fingerprint(), run.joins()[0].fingerprint());
  }
}

// Nodes of other numbers of ranks in one run: after every round they hold the same bits.
TEST(Trainer, MixedRanksHoldTheSameBitsAfterEveryRound) {
  constexpr uint64_t kRounds = 8;
  const std::string text = WriteText("mixed.txt", 20000, 3);
  const std::map<std::string, int> mixes[] = {
      {{"a", 4}, {"b", 1}}, {{"a", 2}, {"b", 3}}, {{"a", 1}, {"b", 5}, {"c", 2}}};
  for (const char* preset : {"demo", "full"}) {
    for (const auto& nodes : mixes) {
      v1::RunSpec spec = SmallSpec();
      spec.set_steps(kRounds);
      spec.set_preset(preset);
      if (spec.preset() == "full") spec.clear_codec();
      spec.mutable_optimizer()->clear_base();
      spec.clear_nodes();
      uint32_t sequences = 1;  // each rank of any node has an equal part of them
      for (const auto& [node, ranks] : nodes) {
        spec.add_nodes()->set_name(node);
        sequences = std::lcm(sequences, static_cast<uint32_t>(ranks));
      }
      spec.mutable_data()->set_sequences_per_node(sequences);
      ASSERT_TRUE(CompleteRunSpec(&spec).ok());
      LocalRun run(spec, nodes);
      std::mutex mutex;
      std::map<uint64_t, std::set<std::string>> states;  // by rounds applied
      std::vector<std::thread> threads;
      for (const auto& node : nodes) {
        threads.emplace_back([&, node] {
          RunRanks(node.second, [&](ProcessGroup* group) {
            auto client = run.Client(node.first, group->rank());
            TrainerOptions options;
            options.data = text;
            options.group = group;
            options.client = client.get();
            options.quiet = true;
            std::unique_ptr<Trainer> trainer;
            uint64_t round = 0;
            // It is asked on all ranks before every step.
            options.stop = [&] {
              const auto state = trainer->replica().StateSha256(round);
              std::lock_guard<std::mutex> lock(mutex);
              states[round++].insert(state.ok() ? *state : state.status().ToString());
              return false;
            };
            auto made = Trainer::Make(options);
            ASSERT_TRUE(made.ok()) << made.status();
            trainer = *std::move(made);
            const absl::Status status = trainer->Run();
            EXPECT_TRUE(status.ok()) << status;
            options.stop();
          });
        });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_GT(states.size(), kRounds);
      std::set<std::string> all;
      for (const auto& [round, of_ranks] : states) {
        EXPECT_EQ(of_ranks.size(), 1u) << preset << ", round " << round;
        all.insert(of_ranks.begin(), of_ranks.end());
      }
      EXPECT_EQ(all.size(), states.size());  // and every round changes them
    }
  }
}

// AdamW on the averaged gradient: ranks change only the order of sums, and one node of one rank and
// one of two hold the same bits, moments included.
TEST(Trainer, FullAgreesOverRanksAndMicroBatches) {
  v1::RunSpec spec = SmallSpec();
  spec.set_preset("full");
  spec.clear_codec();
  spec.mutable_optimizer()->clear_base();
  spec.mutable_optimizer()->set_clip_norm(0.5f);
  spec.mutable_optimizer()->set_weight_decay(0.1f);
  spec.mutable_optimizer()->add_decay_groups()->add_tensors("*.bias");
  ASSERT_TRUE(CompleteRunSpec(&spec).ok());
  TrainerOptions options;
  options.data = WriteText("full.txt", 20000, 1);
  std::vector<std::map<std::string, std::vector<float>>> saved;
  for (int ranks : {1, 2, 3}) {
    LocalRun run(spec, {{"a", ranks}, {"b", 1}});
    options.save_file = testing::TempDir() + "/full" + std::to_string(ranks) + ".safetensors";
    options.micro_batch = ranks == 3 ? 1 : 0;
    const Trained trained = Train(&run, {{"a", ranks}, {"b", 1}}, options);
    ASSERT_TRUE(trained.status.ok()) << trained.status;
    for (const TrainSummary& summary : trained.summaries) {
      EXPECT_EQ(summary.state_sha256, trained.summaries[0].state_sha256);
    }
    saved.push_back(ReadAll(options.save_file));
  }
  for (const auto& [name, values] : saved[0]) {
    for (size_t i = 0; i < values.size(); ++i) {
      // AdamW's first steps are nearly signs, so a gradient near 0 moves by what its rounding says.
      ASSERT_NEAR(values[i], saved[1].at(name)[i], 2e-3) << name << " element " << i;
      ASSERT_NEAR(values[i], saved[2].at(name)[i], 2e-3) << name << " element " << i;
    }
  }
}

TEST(Trainer, WithoutAnExchangeNodesLearnAndDriftApart) {
  v1::RunSpec spec = SmallSpec();
  spec.set_preset("none");
  spec.set_allow_drift(true);
  spec.clear_codec();
  spec.mutable_optimizer()->clear_base();
  spec.set_steps(30);
  ASSERT_TRUE(CompleteRunSpec(&spec).ok());
  TrainerOptions options;
  options.data = WriteText("none.txt", 40000, 2);
  LocalRun run(spec, {{"a", 2}, {"b", 1}});
  const Trained trained = Train(&run, {{"a", 2}, {"b", 1}}, options);
  ASSERT_TRUE(trained.status.ok()) << trained.status;
  std::set<std::string> states;
  for (const TrainSummary& summary : trained.summaries) {
    states.insert(summary.state_sha256);
    EXPECT_LT(summary.val_loss, summary.start_loss - 1);
    EXPECT_LT(summary.bytes_up, 30 * 1000u);
  }
  EXPECT_EQ(states.size(), 2u);
}

// Rule 22, and case C5's beginning: what is not finite never leaves the node.
TEST(Trainer, ANodeWithNonFiniteGradientsAbstainsAndNamesTheTensor) {
  v1::RunSpec spec = SmallSpec();
  spec.set_steps(2);
  TrainerOptions clean;
  clean.data = WriteText("nan.txt", 20000, 3);
  // A start file with one value that is not finite.
  LocalRun maker(spec, {{"a", 1}, {"b", 1}});
  clean.save_file = testing::TempDir() + "/good.safetensors";
  ASSERT_TRUE(Train(&maker, {{"a", 1}, {"b", 1}}, clean).status.ok());
  auto values = ReadAll(clean.save_file);
  auto good = SafetensorsFile::Open(clean.save_file);
  std::vector<NamedShape> shapes;
  for (const auto& [name, entry] : (*good)->entries()) shapes.push_back({name, entry.shape});
  const std::string bad = testing::TempDir() + "/bad.safetensors";
  auto writer = SafetensorsWriter::Create(bad, shapes);
  values["transformer.h.1.mlp.c_fc.weight"][5] = std::numeric_limits<float>::quiet_NaN();
  for (const NamedShape& shape : shapes) ASSERT_TRUE((*writer)->Write(values[shape.name]).ok());
  ASSERT_TRUE((*writer)->Finish().ok());

  TrainerOptions options;
  options.data = clean.data;
  options.start_file = bad;
  LocalRun run(spec, {{"a", 2}, {"b", 1}});
  const Trained trained = Train(&run, {{"a", 2}, {"b", 1}}, options);
  ASSERT_TRUE(trained.status.ok()) << trained.status;
  ASSERT_EQ(run.abstain_reasons().size(), 6u);
  for (const std::string& reason : run.abstain_reasons()) {
    EXPECT_NE(reason.find("non-finite gradient in 'transformer."), std::string::npos) << reason;
  }
  for (const auto& update : run.updates()) EXPECT_TRUE(update->record.is_void());
}

// The names of GPT-2 files: no "transformer.", buffers and the tied copy beside the parameters.
TEST(Trainer, StartsFromAFileWithGpt2Names) {
  v1::RunSpec spec = SmallSpec();
  spec.set_steps(1);
  TrainerOptions options;
  options.data = WriteText("names.txt", 20000, 6);
  options.save_file = testing::TempDir() + "/named.safetensors";
  LocalRun first(spec, {{"a", 1}});
  ASSERT_TRUE(Train(&first, {{"a", 1}}, options).status.ok());
  const auto values = ReadAll(options.save_file);
  auto file = SafetensorsFile::Open(options.save_file);
  const auto write = [&](const std::string& path, const std::string& leave_out) {
    const std::string embedding = "transformer.wte.weight";
    std::vector<NamedShape> shapes = {{"lm_head.weight", (*file)->entries().at(embedding).shape},
                                      {"h.0.attn.bias", {1}}};
    for (const auto& [name, entry] : (*file)->entries()) {
      if (name != leave_out) shapes.push_back({name.substr(12), entry.shape});
    }
    auto writer = SafetensorsWriter::Create(path, shapes);
    for (const NamedShape& shape : shapes) {
      const bool is_tied = shape.name == "lm_head.weight";
      const auto found = values.find(is_tied ? embedding : "transformer." + shape.name);
      const std::vector<float> one(1);
      EXPECT_TRUE((*writer)->Write(found == values.end() ? one : found->second).ok());
    }
    EXPECT_TRUE((*writer)->Finish().ok());
    return path;
  };
  std::vector<std::string> states;
  for (const std::string& start :
       {options.save_file, write(testing::TempDir() + "/bare.safetensors", "")}) {
    LocalRun run(spec, {{"a", 2}});
    TrainerOptions again;
    again.data = options.data;
    again.start_file = start;
    const Trained trained = Train(&run, {{"a", 2}}, again);
    ASSERT_TRUE(trained.status.ok()) << trained.status;
    states.push_back(run.joins()[0].state_sha256());
  }
  EXPECT_EQ(states[0], states[1]);

  LocalRun run(spec, {{"a", 1}});
  TrainerOptions lacking;
  lacking.data = options.data;
  lacking.start_file =
      write(testing::TempDir() + "/lacking.safetensors", "transformer.ln_f.weight");
  EXPECT_NE(Train(&run, {{"a", 1}}, lacking)
                .status.message()
                .find("lacks tensor 'transformer.ln_f.weight'"),
            std::string::npos);
}

TEST(Trainer, RefusesBadInputInASentence) {
  const v1::RunSpec spec = SmallSpec();
  LocalRun run(spec, {{"a", 1}, {"b", 1}});
  const auto refusal = [&](const TrainerOptions& changed, int ranks) {
    return std::string(Train(&run, {{"a", ranks}}, changed).status.message());
  };
  TrainerOptions options;
  options.data = testing::TempDir() + "/missing.txt";
  EXPECT_NE(refusal(options, 1).find("missing.txt"), std::string::npos);
  options.data = WriteText("short.txt", 100, 4);
  EXPECT_NE(refusal(options, 1), "");
  options.data = WriteText("enough.txt", 20000, 4);
  EXPECT_EQ(refusal(options, 4),
            "data.sequences_per_node of the run is 6; the 4 ranks of this node need a multiple of "
            "4 so that each has an equal part");
  options.start_file = options.data;
  EXPECT_NE(refusal(options, 1).find("no valid safetensors file"), std::string::npos);
}

TEST(Trainer, StopsBetweenSteps) {
  v1::RunSpec spec = SmallSpec();
  spec.set_steps(100000);
  TrainerOptions options;
  options.data = WriteText("stop.txt", 20000, 5);
  LocalRun run(spec, {{"a", 2}});
  options.stop = [&run] { return run.rounds() >= 3; };
  const Trained trained = Train(&run, {{"a", 2}}, options);
  EXPECT_EQ(trained.status.code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace isthmus
