// A coordinator with a hosted model that ends at any moment, and another one that goes on.
#include <gmock/gmock.h>

#include <cstdio>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/rocks_store.h"
#include "tests/server/hosted_runs.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A store that lasts, and finds no room, or damage, where it is told to.
class CrashStore final : public Store {
 public:
  CrashStore() : store_(MakeMemoryStore(StoreLimits())) {}
  absl::Status Write(const StoreBatch& batch) override {
    if (full) return absl::ResourceExhaustedError("no space left");
    return store_->Write(batch);
  }
  absl::Status WritePiece(uint64_t round, const SectionRange& range,
                          absl::string_view data) override {
    if (pieces_left-- == 0) return absl::ResourceExhaustedError("no space left");
    return store_->WritePiece(round, range, data);
  }
  StoredState State() const override { return store_->State(); }
  bool durable() const override { return true; }
  absl::StatusOr<std::vector<StoredUpdatePtr>> ReadAfter(uint64_t last_round,
                                                         uint64_t bytes_max) const override {
    return store_->ReadAfter(last_round, bytes_max);
  }
  uint64_t last_round() const override { return store_->last_round(); }
  uint64_t first_round() const override { return store_->first_round(); }
  uint64_t BytesAfter(uint64_t last_round) const override { return store_->BytesAfter(last_round); }
  const StoreLimits& limits() const override { return store_->limits(); }
  absl::StatusOr<std::string> RecordSha256(uint64_t round) const override {
    return store_->RecordSha256(round);
  }
  std::vector<SectionRange> Pieces(uint64_t round) const override { return store_->Pieces(round); }
  absl::StatusOr<std::string> ReadPiece(uint64_t round, const SectionRange& range) const override {
    auto piece = store_->ReadPiece(round, range);
    if (piece.ok() && range.section == damaged_section) (*piece)[piece->size() / 2] ^= 1;
    return piece;
  }
  absl::StatusOr<std::vector<float>> ReadAggregate(uint64_t round,
                                                   uint64_t elements) const override {
    auto aggregate = store_->ReadAggregate(round, elements);
    if (round == lost_round) return AggregateNotKept(round);
    if (aggregate.ok() && round == damaged_round) (*aggregate)[elements / 2] += 1.0f;
    return aggregate;
  }

  bool full = false;
  uint64_t pieces_left = std::numeric_limits<uint64_t>::max();
  uint64_t damaged_round = 0, lost_round = 0;
  uint32_t damaged_section = 99;

 private:
  const std::unique_ptr<Store> store_;
};

class HostedResumeTest : public HostedFixture {
 protected:
  void BeginCrashing(const std::string& text) {
    auto store = std::make_shared<CrashStore>();
    disk_ = store.get();
    Begin(text, std::move(store));
  }
  void RestartAndWatch(int threads) {
    disk_->full = false;
    disk_->pieces_left = std::numeric_limits<uint64_t>::max();
    ASSERT_NO_FATAL_FAILURE(Restart(threads));
    for (Node& node : nodes_) node.speaker->Watch();
  }
  // A round with an end of the process somewhere in it.
  void DisturbedRound(uint64_t round, uint32_t kind, int threads) {
    if (kind == 1) RestartAndWatch(threads);
    if (kind == 2) {  // the model has made its step, the store has it not
      for (size_t node = 0; node < nodes_.size(); ++node) {
        speaker(node).ExpectOpened(round);
        Submit(round, node);
      }
      disk_->full = true;
      EXPECT_TRUE(absl::IsResourceExhausted(host()->CommitOne()));
      (void)host()->FinishSnapshot();
      RestartAndWatch(threads);
    }
    if (kind == 3) {  // stored, and nobody has received it
      for (size_t node = 0; node < nodes_.size(); ++node) {
        speaker(node).ExpectOpened(round);
        Submit(round, node);
      }
      ASSERT_TRUE(host()->CommitOne().ok());
      RestartAndWatch(threads);
      for (size_t node = 0; node < nodes_.size(); ++node) Receive(round, node);
      return;
    }
    Round(round);
    if (kind == 4) {  // in the middle of a snapshot, if one is due
      disk_->pieces_left = 1;
      (void)host()->FinishSnapshot();
      RestartAndWatch(threads);
    }
    if (kind == 5) {  // the disk has no room for it for a while
      disk_->pieces_left = 0;
      (void)host()->FinishSnapshot();
      disk_->pieces_left = std::numeric_limits<uint64_t>::max();
    }
  }

  CrashStore* disk_ = nullptr;
};

TEST_F(HostedResumeTest, EndsInTheStateOfARunWithoutCrashes) {
  const uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (const std::string& text :
       {std::string("preset: 'diloco' codec { reply { format: NUMBER_FORMAT_INT8 } } "),
        std::string("preset: 'dist_sign_momentum_short' outer { bound: 0 } "),
        std::string("preset: 'diloco' outer { kind: OUTER_KIND_ADAMW } ")}) {
    const std::string run = text + "steps: 60 snapshot { every_rounds: 7 }";
    SCOPED_TRACE(run);
    BeginCrashing(run);
    Start();
    RunRounds(1, 30);
    Finish();
    std::vector<std::string> records;
    for (const auto& record : nodes_[0].records) records.push_back(record.SerializeAsString());
    const std::vector<float> x = nodes_[0].x;

    BeginCrashing(run);
    Start();
    for (uint64_t round = 1; round <= 30 && !HasFatalFailure(); ++round) {
      SCOPED_TRACE(round);
      DisturbedRound(round, random() % 6, 1 + static_cast<int>(random() % 3));
    }
    Finish();
    ASSERT_EQ(nodes_[0].records.size(), records.size());
    for (size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(nodes_[0].records[i].SerializeAsString(), records[i]) << i;
    }
    EXPECT_TRUE(SameBits(nodes_[0].x, x));
    ExpectSnapshot(30, x);
  }
}

TEST_F(HostedResumeTest, WhatIsDamagedIsNamed) {
  BeginCrashing("preset: 'diloco' snapshot { every_rounds: 3 }");
  Start();
  RunRounds(1, 6);
  Finish();
  RunRounds(7, 8);
  const auto damage = [&] {
    const absl::Status refused = TryRestart(1);
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    return std::string(refused.message());
  };
  disk_->damaged_round = 8;
  EXPECT_THAT(damage(), AllOf(HasSubstr("the update of round 8, made again from its aggregate"),
                              HasSubstr("its record says")));
  disk_->damaged_round = 0;
  disk_->lost_round = 7;
  EXPECT_THAT(damage(), HasSubstr("the aggregate of round 7 is not kept here (any more), and"));
  disk_->lost_round = 0;
  disk_->damaged_section = 0;
  EXPECT_THAT(damage(), HasSubstr("the snapshot of round 6 hashes to"));
  disk_->damaged_section = 1;
  EXPECT_THAT(damage(), HasSubstr("the outer state of the snapshot of round 6 hashes to"));
  disk_->damaged_section = 99;
  Restart(3);
  for (Node& node : nodes_) node.speaker->Watch();
  Round(9);
}

TEST_F(HostedResumeTest, AStartStateThatIsHereIsTakenUp) {
  BeginCrashing("preset: 'diloco'");
  Start();
  RestartAndWatch(2);
  Round(1);
  Finish();
  EXPECT_THAT(Kept(), ElementsAre(0));
}

// On a disk: what is there after the process, and which file is damaged.
TEST_F(HostedResumeTest, GoesOnFromAFolder) {
  std::string dir = ::testing::TempDir() + "/hosted_XXXXXX";
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  const auto open = [&] {
    auto store = OpenRocksStore({dir, StoreLimits()});
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  };
  Begin("preset: 'diloco' snapshot { every_rounds: 4 }", open());
  Start();
  RunRounds(1, 4);
  Finish();
  RunRounds(5, 6);
  for (uint64_t round = 7; round <= 9; ++round) {
    coordinator_ = nullptr;
    store_ = nullptr;
    const auto report = CheckRocksStore({dir, StoreLimits()});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->status.ok()) << report->status;
    store_ = open();
    Restart(2);
    for (Node& node : nodes_) node.speaker->Watch();
    Round(round);
  }
  Finish();
  EXPECT_THAT(Kept(), ElementsAre(4, 8));
}

}  // namespace
}  // namespace isthmus
