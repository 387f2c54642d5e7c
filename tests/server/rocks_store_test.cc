// The store on disk: what a crash, a full disk and a bad one leave of it.
#include "server/rocks_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/server/rocks_case.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(RocksStoreTest, HoldsEverythingWhenItIsOpenedAgain) {
  StoreBatch batch;
  batch.run.emplace();
  batch.run->mutable_spec()->set_run("test");
  batch.node.emplace();
  batch.node->set_node("a");
  batch.node->set_incarnation(7);
  {
    const auto store = Open();
    ASSERT_TRUE(store->Write(batch).ok());
    CommitTestRounds(store.get(), 5, 9000);
  }
  for (int again = 0; again < 2; ++again) {
    const auto store = Open();
    ExpectRounds(*store, 5, 9000);
    const StoredState state = store->State();
    EXPECT_EQ(state.run->spec().run(), "test");
    ASSERT_EQ(state.nodes.size(), 1u);
    EXPECT_EQ(state.nodes[0].incarnation(), 7u);
    EXPECT_THAT(state.open->members(), ElementsAre("a", "b"));
  }
  const auto store = Open();
  CommitTestRounds(store.get(), 2, 9000);
  ExpectRounds(*store, 7, 9000);
}

TEST_F(RocksStoreTest, OneProcessAtATime) {
  const auto store = Open();
  const absl::Status second = OpenRocksStore(options_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr("Another coordinator"));
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckRocksStore(options_).status()));
}

TEST_F(RocksStoreTest, RefusesWhatIsNoFolderOfItsOwn) {
  std::ofstream(options_.dir) << "a file";
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenRocksStore(options_).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckRocksStore(options_).status()));
  fs::remove(options_.dir);
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckRocksStore(options_).status()));
  {
    const auto store = Open();
    CommitTestRounds(store.get(), 1, 100);
  }
  fs::remove(fs::path(options_.dir) / "CURRENT");
  const absl::Status lost = OpenRocksStore(options_).status();
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("CURRENT"));
}

// R2: whatever part of the last write a crash leaves, the rounds before it are there.
TEST_F(RocksStoreTest, ATornLastWriteIsCutOffAtEveryByte) {
  Use(std::make_shared<FaultFileSystem>());  // which syncs nothing
  const auto store = Open();
  CommitTestRounds(store.get(), 3, 500);
  const uint64_t before = LogBytes();
  CommitTestRounds(store.get(), 1, 40);
  const uint64_t after = LogBytes();
  ASSERT_GT(after, before);
  const uint64_t tried = TearLog(before, after, [&](Store* torn, uint64_t size) {
    ASSERT_EQ(torn->last_round(), size == after ? 4u : 3u);
    // It goes on from there.
    CommitTestRounds(torn, 2, 40);
    EXPECT_EQ(*torn->RecordSha256(3), TestSha256(3));
  });
  std::printf("torn at %llu points\n", static_cast<unsigned long long>(tried));
}

TEST_F(RocksStoreTest, DamageBeforeTheEndIsRefusedAndNamed) {
  std::string log;
  {
    const auto store = Open();
    CommitTestRounds(store.get(), 6, 500);
    log = FilesWith(options_.dir, ".log")[0].filename();
    options_ = Copy();  // with the log as it is while the process runs
  }
  const fs::path path = fs::path(options_.dir) / log;
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(fs::file_size(path) / 2));
    file.write("damage", 6);
  }
  const absl::Status refused = OpenRocksStore(options_).status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(options_.dir), HasSubstr(log), HasSubstr("--check_store")));
  const auto report = CheckRocksStore(options_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(absl::IsDataLoss(report->status)) << report->status;
}

// Power goes at every operation of a run of commits: what was answered is there, and at most the
// one that was not answered beside it.
TEST_F(RocksStoreTest, PowerLostAtEveryOperation) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  constexpr uint64_t kRounds = 10, kBytes = 30000;
  options_.write_buffer_bytes = 64 << 10;  // so that tables are written and merged on the way
  options_.limits.rounds_max = 4;
  bool went_through = false;
  int cuts = 0;
  for (int operation = 1; !went_through; operation += NextFault(&random, 50), ++cuts) {
    SCOPED_TRACE(absl::StrCat("operation ", operation));
    fs::remove_all(options_.dir);
    const auto system = std::make_shared<FaultFileSystem>();
    Use(system);
    uint64_t answered = 0;
    system->FailAfter(operation, FaultFileSystem::Fault::kIo, random() % 64);
    {
      const auto store = OpenRocksStore(options_);
      while (store.ok() && answered < kRounds) {
        if (!(*store)->Write(TestCommit(answered + 1, kBytes)).ok()) break;
        ++answered;
      }
      went_through = answered == kRounds;
    }
    system->Mend();
    system->LosePower(random() % 4 * 100);
    const auto store = Open();
    ASSERT_NE(store, nullptr);
    ASSERT_GE(store->last_round(), answered);
    ASSERT_LE(store->last_round(), answered + 1);
    ExpectRounds(*store, store->last_round(), kBytes);
    CommitTestRounds(store.get(), 1, kBytes);
  }
  std::printf("power lost at %d operations\n", cuts);
}

TEST_F(RocksStoreTest, AFullDiskIsWaitedForAndThenGoneOn) {
  const auto system = std::make_shared<FaultFileSystem>();
  Use(system);
  {
    const auto store = Open();
    CommitTestRounds(store.get(), 2, 5000);
    for (int operation = 1; operation <= 2; ++operation) {  // the write, and the sync
      const uint64_t round = store->last_round() + 1;
      system->FailAfter(operation, FaultFileSystem::Fault::kNoSpace, 20);
      for (int attempt = 0; attempt < 3; ++attempt) {
        const absl::Status full = store->Write(TestCommit(round, 5000));
        EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
        EXPECT_THAT(std::string(full.message()), HasSubstr("make room"));
      }
      EXPECT_TRUE(store->RecordSha256(round - 1).ok());
      system->Mend();
      const absl::Status written = store->Write(TestCommit(round, 5000));
      ASSERT_TRUE(written.ok()) << written;
      CommitTestRounds(store.get(), 1, 5000);
    }
    ExpectRounds(*store, 6, 5000);
  }
  Use(nullptr);
  ExpectRounds(*Open(), 6, 5000);
}

// R5: after a failed sync nobody knows what is on the disk.
TEST_F(RocksStoreTest, NothingIsWrittenAfterTheDiskFailed) {
  const auto system = std::make_shared<FaultFileSystem>();
  Use(system);
  for (int operation = 1; operation <= 2; ++operation) {
    const auto store = Open();
    CommitTestRounds(store.get(), 2, 5000);
    const uint64_t round = store->last_round() + 1;
    system->FailAfter(operation, FaultFileSystem::Fault::kIo);
    const absl::Status failed = store->Write(TestCommit(round, 5000));
    EXPECT_EQ(failed.code(), absl::StatusCode::kInternal) << failed;
    system->Mend();
    const int operations = system->operations();
    EXPECT_EQ(store->Write(TestCommit(round, 5000)), failed);
    EXPECT_EQ(system->operations(), operations);
  }
}

// The hashes of these tests' records are none of theirs, and checking says so.
TEST_F(RocksStoreTest, CheckingFindsARecordThatIsNotTheOneThatWasHashed) {
  StoreBatch batch;
  batch.run.emplace();
  *batch.run->mutable_spec() = TestSpec({"a", "b"});
  {
    const auto store = Open();
    ASSERT_TRUE(store->Write(batch).ok());
  }
  auto report = CheckRocksStore(options_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->status.ok()) << report->status;
  EXPECT_THAT(report->lines, ::testing::Contains("no round is committed"));
  {
    const auto store = Open();
    CommitTestRounds(store.get(), 2, 100);
  }
  report = CheckRocksStore(options_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(absl::IsDataLoss(report->status)) << report->status;
  EXPECT_THAT(std::string(report->status.message()), HasSubstr("round 1: "));
}

// R7: the folder has a bound, and a start takes no longer with a long history.
TEST_F(RocksStoreTest, ALongHistoryLeavesABoundedFolder) {
  options_.limits = {100, uint64_t{1} << 30, 500};
  Use(std::make_shared<FaultFileSystem>());  // which syncs nothing
  constexpr uint64_t kBytes = 6000;
  const uint64_t rounds = TriesAllFaults() ? 10000 : 2500;
  uint64_t most_bytes = 0;
  {
    const auto store = Open();
    for (uint64_t round = 1; round <= rounds; ++round) {
      ASSERT_TRUE(store->Write(TestCommit(round, kBytes)).ok());
      if (round % 100 != 0) continue;
      most_bytes = std::max(most_bytes, FolderBytes());
    }
    EXPECT_EQ(store->first_round(), rounds - 99);
  }
  const uint64_t bound = 100 * kBytes + 16 * options_.write_buffer_bytes;
  EXPECT_LT(most_bytes, bound);
  const auto begin = std::chrono::steady_clock::now();
  const auto store = Open();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 2.0);
  std::printf("most bytes %llu, bound %llu, opened in %.3f s\n",
              static_cast<unsigned long long>(most_bytes), static_cast<unsigned long long>(bound),
              seconds.count());
  ExpectRounds(*store, rounds, kBytes);
  EXPECT_TRUE(store->RecordSha256(rounds - 499).ok());
  EXPECT_TRUE(absl::IsOutOfRange(store->RecordSha256(rounds - 500).status()));
}

TEST_F(RocksStoreTest, LowerLimitsTakeEffectOverTheNextCommits) {
  {
    const auto store = Open();
    CommitTestRounds(store.get(), 200, 100);
    EXPECT_EQ(store->first_round(), 1u);
  }
  options_.limits.rounds_max = 10;
  const auto store = Open();
  EXPECT_EQ(store->first_round(), 1u);
  CommitTestRounds(store.get(), 1, 100);
  EXPECT_EQ(store->first_round(), 1u + kRoundsDroppedAtOnce);
  CommitTestRounds(store.get(), 3, 100);
  EXPECT_EQ(store->first_round(), 195u);
  ExpectRounds(*store, 204, 100);
}

}  // namespace
}  // namespace isthmus
