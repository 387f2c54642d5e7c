// Runs whose updates come one or two rounds late (RunSpec.overlap), with the look ahead and
// without.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "kernels/demo.h"
#include "spec/piece.h"
#include "spec/run_spec.h"
#include "tests/worker/local_run.h"
#include "tests/worker/torch_fixture.h"
#include "worker/replica.h"
#include "worker/trainer.h"

namespace isthmus {
namespace {

constexpr uint64_t kSteps = 9;

v1::RunSpec Spec(uint32_t overlap, double look) {
  v1::RunSpec spec = SmallSpec();
  spec.set_steps(kSteps);
  spec.mutable_optimizer()->set_weight_decay(0.1f);
  spec.set_overlap(overlap);
  if (overlap > 0) spec.set_look(look);
  EXPECT_TRUE(CompleteRunSpec(&spec).ok());
  return spec;
}

std::vector<TrainSummary> Train(LocalRun* run, const std::map<std::string, int>& nodes,
                                const TrainerOptions& common) {
  std::vector<TrainSummary> summaries;
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
        if (node.first != "a") options.metrics_file.clear();
        auto trainer = Trainer::Make(options);
        const absl::Status status = trainer.ok() ? (*trainer)->Run() : trainer.status();
        std::lock_guard<std::mutex> lock(mutex);
        EXPECT_TRUE(status.ok()) << status;
        if (trainer.ok()) summaries.push_back((*trainer)->summary());
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return summaries;
}

// A node as the algorithm page has it (section 14), step by step, with nothing of the trainer.
class PlainNode {
 public:
  PlainNode(const v1::RunSpec& spec, const std::string& node, const std::string& file,
            ProcessGroup* group)
      : spec_(spec) {
    v1::RunSpec now = spec;  // a replica that knows of no overlap
    now.clear_overlap();
    now.clear_look();
    ReplicaOptions options;
    options.spec = now;
    options.group = group;
    auto replica = Replica::Make(options);
    EXPECT_TRUE(replica.ok()) << replica.status();
    replica_ = *std::move(replica);
    RankDataOptions files;
    files.spec = now;
    files.node = node;
    files.files = file;
    auto data = RankData::Open(files);
    EXPECT_TRUE(data.ok()) << data.status();
    data_ = std::make_unique<RankData>(*std::move(data));
  }

  // The digest of what is sent for the step.
  std::string Contribute(uint64_t step) {
    const std::vector<std::vector<float>> settled = Parameters();
    std::vector<std::vector<float>> ahead = settled;
    for (const auto& [round, pieces] : sent_) {
      const auto eta = static_cast<float>(spec_.look()) * LearningRate(spec_, round);
      Subtract(eta, pieces, &ahead);
    }
    SetParameters(ahead);
    const auto rows = data_->Step(step);
    EXPECT_TRUE(rows.ok() && replica_->ForwardBackward(*rows).ok());
    SetParameters(settled);
    const double norm = std::sqrt(replica_->GradientSquares());
    const double limit = spec_.optimizer().clip_norm();
    auto pieces = replica_->Encode(step, LearningRate(spec_, step),
                                   limit > 0 && norm > limit ? limit / norm : 1.0);
    EXPECT_TRUE(pieces.ok()) << pieces.status();
    sent_[step] = *std::move(pieces);
    std::vector<const std::string*> views;
    for (const std::string& piece : sent_[step]) views.push_back(&piece);
    return PayloadDigest(replica_->model().grid(), views).value();
  }

  void Apply(const CommittedUpdate& update, bool included) {
    const uint64_t round = update.record.round();
    replica_->Settle(round, included);
    sent_.erase(round);
    const UpdateRates rates = {LearningRate(spec_, round), spec_.optimizer().weight_decay(), 0,
                               round};
    EXPECT_TRUE(replica_->Apply(rates, update.pieces).ok());
  }

  std::string StateSha256() { return replica_->StateSha256(spec_.steps()).value(); }

 private:
  std::vector<std::vector<float>> Parameters() {
    std::vector<std::vector<float>> values;
    for (const auto& part : replica_->model().parameters()) {
      values.emplace_back(part.data.begin(), part.data.end());
    }
    return values;
  }
  void SetParameters(const std::vector<std::vector<float>>& values) {
    const auto parts = replica_->model().parameters();
    for (size_t i = 0; i < parts.size(); ++i) {
      std::copy(values[i].begin(), values[i].end(), parts[i].data.begin());
    }
    replica_->model().ParametersChanged();
  }
  // values <- values - eta * u, with u the sign of what was sent, or that itself. One rank holds
  // whole tensors.
  void Subtract(float eta, const std::vector<std::string>& pieces,
                std::vector<std::vector<float>>* values) {
    const Grid& grid = replica_->model().grid();
    std::map<uint32_t, std::vector<float>*> of_tensor;
    const auto parts = replica_->model().parameters();
    for (size_t i = 0; i < parts.size(); ++i) of_tensor[parts[i].tensor] = &(*values)[i];
    for (const std::string& bytes : pieces) {
      const auto piece = OpenPiece(grid, bytes);
      ASSERT_TRUE(piece.ok());
      const absl::Status read =
          ForEachChunk(grid, *piece, [&](uint64_t chunk, const Components& sent) {
            const ChunkPlace place = grid.Place(chunk);
            std::vector<float> u(place.shape.elements());
            DecodeComponents(place.shape, sent, absl::MakeSpan(u));
            for (size_t e = 0; e < u.size(); ++e) {
              if (spec_.codec().sign()) u[e] = static_cast<float>((u[e] > 0) - (u[e] < 0));
              float& value = (*of_tensor[place.tensor])[place.first_element +
                                                        e / place.shape.cols * place.stride +
                                                        e % place.shape.cols];
              const float step = eta * u[e];
              value = value - step;
            }
            return absl::OkStatus();
          });
      ASSERT_TRUE(read.ok());
    }
  }

  v1::RunSpec spec_;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<RankData> data_;
  std::map<uint64_t, std::vector<std::string>> sent_;  // not settled
};

// Whether the node sent in every round of the run what the page says, and ended where it says.
void ExpectPlain(const v1::RunSpec& spec, const LocalRun& run, const std::string& node,
                 const std::string& file, const std::string& state) {
  RunRanks(1, [&](ProcessGroup* group) {
    PlainNode plain(spec, node, file, group);
    std::map<uint64_t, std::string> digests;
    for (uint64_t round = 1; round <= kSteps + spec.overlap(); ++round) {
      if (round <= kSteps) digests[round] = plain.Contribute(round);
      if (round <= spec.overlap()) continue;
      const CommittedUpdate& update = *run.updates()[round - spec.overlap() - 1];
      bool included = false;
      for (const auto& one : update.record.included()) {
        if (one.node() != node) continue;
        included = true;
        EXPECT_EQ(one.digest(), digests[update.record.round()])
            << node << ", round " << update.record.round();
      }
      plain.Apply(update, included);
    }
    EXPECT_EQ(plain.StateSha256(), state) << node;
  });
}

// Rounds that leave a node out, and one that is void, among them.
TEST(Overlap, IsTheDelayedAlgorithm) {
  TrainerOptions options;
  options.data = WriteText("delayed.txt", 20000, 1);
  std::map<std::string, int> ends;  // all differ
  for (const uint32_t overlap : {1u, 2u}) {
    for (const double look : {0.0, 0.5, 1.0}) {
      for (const bool sign : {true, false}) {
        SCOPED_TRACE(testing::Message()
                     << "overlap " << overlap << " look " << look << " sign " << sign);
        if (overlap == 2 && look == 0.5) continue;
        v1::RunSpec spec = Spec(overlap, look);
        spec.mutable_codec()->set_sign(sign);
        LocalRun run(spec, {{"a", 1}, {"b", 1}});
        run.LeaveOut(4, "b");
        run.LeaveOut(6, "a");
        run.LeaveOut(6, "b");
        run.LeaveOut(7, "a");
        const std::vector<TrainSummary> summaries = Train(&run, {{"a", 1}, {"b", 1}}, options);
        ASSERT_EQ(summaries.size(), 2u);
        EXPECT_EQ(summaries[0].state_sha256, summaries[1].state_sha256);
        ++ends[summaries[0].state_sha256];
        for (const char* node : {"a", "b"}) {
          ExpectPlain(spec, run, node, options.data, summaries[0].state_sha256);
        }
      }
    }
  }
  EXPECT_EQ(ends.size(), 10u);
}

TEST(Overlap, NodesOfAnyRanksHoldTheSameStateAndReportEveryRound) {
  for (const char* preset : {"demo", "full"}) {
    for (const uint32_t overlap : {0u, 1u, 2u}) {
      SCOPED_TRACE(testing::Message() << preset << " overlap " << overlap);
      v1::RunSpec spec = SmallSpec();
      spec.set_steps(40);
      spec.set_preset(preset);
      if (spec.preset() == "full") spec.clear_codec();
      spec.mutable_optimizer()->clear_base();
      spec.mutable_data()->set_eval_every(15);
      spec.set_overlap(overlap);
      ASSERT_TRUE(CompleteRunSpec(&spec).ok());
      TrainerOptions options;
      options.data = WriteText("ranks.txt", 40000, 2);
      options.metrics_file = testing::TempDir() + "/overlap.jsonl";
      LocalRun run(spec, {{"a", 2}, {"b", 3}});
      run.LeaveOut(7, "b");
      const std::vector<TrainSummary> summaries = Train(&run, {{"a", 2}, {"b", 3}}, options);
      ASSERT_EQ(summaries.size(), 5u);
      for (const TrainSummary& summary : summaries) {
        EXPECT_EQ(summary.state_sha256, summaries[0].state_sha256);
        EXPECT_EQ(summary.rounds, 40u);
        EXPECT_LT(summary.val_loss, summary.start_loss - 0.7);
      }
      for (size_t i = 0; i < run.updates().size(); ++i) {
        EXPECT_EQ(run.updates()[i]->record.base_round(), i < overlap ? 0 : i - overlap);
      }
      std::ifstream metrics(options.metrics_file);
      std::string line;
      int reported = 0, evaluated = 0;
      while (std::getline(metrics, line)) {
        reported += line.find("\"wait_ms\"") != std::string::npos ? 1 : 0;
        evaluated += line.find("\"val_loss\"") != std::string::npos ? 1 : 0;
      }
      EXPECT_EQ(reported, 40);
      EXPECT_GE(evaluated, 3);  // 15, 30, 40
    }
  }
}

}  // namespace
}  // namespace isthmus
