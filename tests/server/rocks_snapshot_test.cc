// Snapshots in the store on disk: what a crash, a full disk and a bad one leave of them, and that
// those that were dropped give their room back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <functional>
#include <map>
#include <set>

#include "tests/server/rocks_case.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Ranges = std::vector<SectionRange>;
using Step = std::function<absl::Status(Store*)>;

class RocksSnapshotTest : public RocksStoreTest {
 protected:
  // Snapshots of rounds 2, 4 … among commits: every second one is planned with its round's commit,
  // and its pieces come between those of the rounds after it.
  static std::vector<Step> Script(uint64_t rounds, uint64_t commit_bytes, const Ranges& ranges) {
    std::vector<Step> steps;
    for (uint64_t round = 1; round <= rounds; ++round) {
      steps.push_back([=](Store* store) {
        StoreBatch batch = TestCommit(round, commit_bytes);
        if (round % 2 == 0) batch.plan = TestPlan(round).plan;
        batch.aggregate = TestAggregate(round, kAggregateElements);
        return store->Write(batch);
      });
      const uint64_t planned = round - round % 2;
      if (planned == 0) continue;
      const size_t half = ranges.size() / 2, from = round % 2 == 0 ? 0 : half;
      for (size_t i = from; i < (from == 0 ? half : ranges.size()); ++i) {
        steps.push_back([=](Store* store) {
          return store->WritePiece(planned, ranges[i], TestPiece(planned, ranges[i]));
        });
      }
      if (round % 2 == 0) continue;
      steps.push_back([=](Store* store) { return store->Write(TestSnapshot(planned, 1)); });
    }
    return steps;
  }

  static std::unique_ptr<Store> After(const std::vector<Step>& steps, size_t count) {
    std::unique_ptr<Store> store = MakeMemoryStore(StoreLimits());
    for (size_t i = 0; i < count; ++i) EXPECT_TRUE(steps[i](store.get()).ok());
    return store;
  }

  static std::string Text(const StoredState& state) {
    std::string text = absl::StrCat("last round ", state.last_round);
    if (state.open.has_value()) absl::StrAppend(&text, " open ", state.open->ShortDebugString());
    if (state.plan.has_value()) absl::StrAppend(&text, " plan ", state.plan->ShortDebugString());
    for (const auto& snapshot : state.snapshots) {
      absl::StrAppend(&text, " snapshot ", snapshot.ShortDebugString());
    }
    return text;
  }

  // It has what `wrote` has, but for pieces of a snapshot that does not count, which may be lost.
  static void ExpectPiecesOf(const Store& store, const Store& wrote) {
    const std::vector<uint64_t> counting = SnapshotsOf(store);
    for (uint64_t round : RoundsToKeep(StoreBatch(), store.State())) {
      const Ranges all = wrote.Pieces(round);
      const Ranges there = store.Pieces(round);
      ExpectPieces(store, round, there);
      EXPECT_TRUE(std::includes(all.begin(), all.end(), there.begin(), there.end()));
      const bool counts = std::count(counting.begin(), counting.end(), round) != 0;
      EXPECT_TRUE(!counts || there == all) << "pieces of round " << round << " are lost";
    }
  }

  // After `answered` steps, and perhaps the one that was not answered.
  static void ExpectAsAfter(const Store& store, const std::vector<Step>& steps, size_t answered) {
    const auto least = After(steps, answered);
    const auto most = After(steps, std::min(answered + 1, steps.size()));
    const std::string text = Text(store.State());
    EXPECT_TRUE(text == Text(least->State()) || text == Text(most->State()))
        << text << "\nnot after " << answered << " steps:\n"
        << Text(least->State());
    const Store& wrote = text == Text(most->State()) ? *most : *least;
    ExpectPiecesOf(store, wrote);
    ExpectAggregatesOf(store, wrote);
  }

  // Of committed rounds it has what `wrote` has.
  static void ExpectAggregatesOf(const Store& store, const Store& wrote) {
    for (uint64_t round = 1; round <= store.last_round(); ++round) {
      const auto there = store.ReadAggregate(round, kAggregateElements);
      const auto expected = wrote.ReadAggregate(round, kAggregateElements);
      EXPECT_EQ(there.status().code(), expected.status().code()) << there.status();
      EXPECT_TRUE(!there.ok() || *there == *expected) << round;
    }
  }

  static constexpr size_t kAggregateElements = 5000;
};

TEST_F(RocksSnapshotTest, AnUnfinishedOneGoesOnAfterAStart) {
  const Ranges ranges = TestRanges(6, 20000);  // 480 kB
  {
    const auto store = Open();
    WriteTestSnapshot(store.get(), 1, ranges);
    ASSERT_TRUE(store->Write(TestPlan(2)).ok());
    WriteTestPieces(store.get(), 2, {ranges[4], ranges[0]});
  }
  {
    const auto store = Open();
    EXPECT_EQ(store->State().plan->round(), 2u);
    EXPECT_THAT(SnapshotsOf(*store), ElementsAre(1));
    ExpectPieces(*store, 1, ranges);
    ExpectPieces(*store, 2, {ranges[0], ranges[4]});
    WriteTestPieces(store.get(), 2, {ranges[1], ranges[2], ranges[3], ranges[5]});
    ASSERT_TRUE(store->Write(TestSnapshot(2, 480000)).ok());
  }
  for (int again = 0; again < 2; ++again) {
    const auto store = Open();
    EXPECT_THAT(SnapshotsOf(*store), ElementsAre(1, 2));
    ExpectPieces(*store, 1, ranges);
    ExpectPieces(*store, 2, ranges);
  }
}

// The store in memory is the plain model of what the one on disk must do, however often it starts.
TEST_F(RocksSnapshotTest, DoesWhatTheStoreInMemoryDoes) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  Use(std::make_shared<FaultFileSystem>());  // which syncs nothing
  options_.write_buffer_bytes = 64 << 10;
  const auto model = MakeMemoryStore(StoreLimits());
  auto store = Open();
  uint64_t round = 0, planned = 0;
  for (int step = 0; step < 400; ++step) {
    SCOPED_TRACE(absl::StrCat("step ", step));
    StoreBatch batch;
    switch (random() % 20) {
      case 0:
        store = nullptr;
        store = Open();
        ASSERT_NE(store, nullptr);
        break;
      case 1:
        planned += random() % 3;
        batch = TestPlan(planned);
        break;
      case 2:
        batch = TestSnapshot(random() % 4 == 0 ? random() % (planned + 1) : planned, random() % 99);
        break;
      case 3:
        batch = TestCommit(++round, random() % 9000);
        break;
      default: {
        const uint64_t begin = random() % 4 * 3000;
        const SectionRange range = {static_cast<uint32_t>(random() % 2), begin,
                                    begin + 1 + random() % 3000};
        const std::string data = TestPiece(planned, range);
        ASSERT_TRUE(store->WritePiece(planned, range, data).ok());
        ASSERT_TRUE(model->WritePiece(planned, range, data).ok());
      }
    }
    ASSERT_TRUE(store->Write(batch).ok());
    ASSERT_TRUE(model->Write(batch).ok());
    ASSERT_EQ(Text(store->State()), Text(model->State()));
    for (uint64_t held = planned < 8 ? 0 : planned - 8; held <= planned; ++held) {
      ASSERT_EQ(store->Pieces(held), model->Pieces(held));
    }
  }
  for (uint64_t held = 0; held <= planned; ++held) ExpectPieces(*store, held, model->Pieces(held));
}

// A folder that was made before there were snapshots has three families.
TEST_F(RocksSnapshotTest, AFolderFromBeforeSnapshotsIsCheckedAndOpened) {
  const std::vector<std::string> old_names = {"default", "rounds", "settled"};
  const auto families = [&](const std::vector<std::string>& names) {
    std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
    for (const std::string& name : names)
      descriptors.emplace_back(name, rocksdb::ColumnFamilyOptions());
    return descriptors;
  };
  {
    const auto store = Open();
    CommitTestRounds(store.get(), 3, 9000);
  }
  const std::string today = options_.dir;
  options_.dir = root_ / "old";
  {
    rocksdb::DBOptions make;
    make.create_if_missing = true;
    make.create_missing_column_families = true;
    std::vector<rocksdb::ColumnFamilyHandle*> to, from;
    rocksdb::DB *old = nullptr, *now = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(make, options_.dir, families(old_names), &to, &old).ok());
    std::vector<std::string> all = old_names;
    all.push_back("snapshots");
    ASSERT_TRUE(rocksdb::DB::OpenForReadOnly({}, today, families(all), &from, &now).ok());
    for (size_t i = 0; i < to.size(); ++i) {
      const std::unique_ptr<rocksdb::Iterator> each(now->NewIterator({}, from[i]));
      for (each->SeekToFirst(); each->Valid(); each->Next()) {
        ASSERT_TRUE(old->Put({}, to[i], each->key(), each->value()).ok());
      }
    }
    for (auto* family : to) ASSERT_TRUE(old->DestroyColumnFamilyHandle(family).ok());
    for (auto* family : from) ASSERT_TRUE(now->DestroyColumnFamilyHandle(family).ok());
    delete old;
    delete now;
  }
  // Checking changes nothing. These rounds' records have no true hashes: it comes as far as those.
  const auto report = CheckRocksStore(options_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(std::string(report->status.message()), HasSubstr("it has rounds or nodes"));
  std::vector<std::string> names;
  ASSERT_TRUE(rocksdb::DB::ListColumnFamilies({}, options_.dir, &names).ok());
  EXPECT_EQ(names, old_names);

  for (int again = 0; again < 2; ++again) {
    const auto store = Open();
    ASSERT_NE(store, nullptr);
    ExpectRounds(*store, 3 + again, 9000);
    CommitTestRounds(store.get(), 1, 9000);
    if (again == 0) WriteTestSnapshot(store.get(), 4, TestRanges(2, 3000));
    ExpectPieces(*store, 4, TestRanges(2, 3000));
  }
}

// What a snapshot has only in its log is lost with the power, as far as it was not synced, and only
// until its record is.
TEST_F(RocksSnapshotTest, PiecesAreSafeWithTheRecordAndNotBefore) {
  const Ranges ranges = TestRanges(4, 500);
  const auto system = std::make_shared<FaultFileSystem>();
  Use(system);
  {
    const auto store = Open();
    ASSERT_TRUE(store->Write(TestPlan(1)).ok());
    WriteTestPieces(store.get(), 1, ranges);
    ExpectPieces(*store, 1, ranges);
  }
  system->LosePower();
  {
    const auto store = Open();
    EXPECT_EQ(store->State().plan->round(), 1u);
    ExpectPieces(*store, 1, {});
    WriteTestPieces(store.get(), 1, {ranges[0]});
    CommitTestRounds(store.get(), 1, 40);  // a sync of what came before it
    WriteTestPieces(store.get(), 1, {ranges[1]});
  }
  system->LosePower();
  {
    const auto store = Open();
    ExpectPieces(*store, 1, {ranges[0]});
    WriteTestPieces(store.get(), 1, {ranges[1], ranges[2], ranges[3]});
    ASSERT_TRUE(store->Write(TestSnapshot(1, 8000)).ok());
  }
  system->LosePower();
  const auto store = Open();
  EXPECT_THAT(SnapshotsOf(*store), ElementsAre(1));
  ExpectPieces(*store, 1, ranges);
}

TEST_F(RocksSnapshotTest, ATornLogNeverLeavesARecordWithoutItsPieces) {
  const Ranges ranges = TestRanges(5, 3);
  Use(std::make_shared<FaultFileSystem>());
  const auto store = Open();
  ASSERT_TRUE(store->Write(TestPlan(1)).ok());
  const uint64_t before = LogBytes();
  WriteTestPieces(store.get(), 1, ranges);
  const uint64_t record = LogBytes();
  ASSERT_TRUE(store->Write(TestSnapshot(1, 60)).ok());
  const uint64_t after = LogBytes();
  ASSERT_GT(after, record);
  TearLog(before, after, [&](Store* torn, uint64_t size) {
    const size_t there = torn->Pieces(1).size();
    ExpectPieces(*torn, 1, {ranges.begin(), ranges.begin() + there});
    EXPECT_EQ(there == ranges.size(), size >= record);
    EXPECT_EQ(SnapshotsOf(*torn).size(), size == after ? 1u : 0u);
    // It goes on with those that are missing.
    WriteTestPieces(torn, 1, {ranges.begin() + there, ranges.end()});
    ASSERT_TRUE(torn->Write(TestSnapshot(1, 60)).ok());
    ExpectPieces(*torn, 1, ranges);
  });
}

// Power goes at every operation of snapshots among commits.
TEST_F(RocksSnapshotTest, PowerLostAtEveryOperation) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  options_.write_buffer_bytes = 64 << 10;  // so that tables are written and merged on the way
  const Ranges ranges = TestRanges(6, 4000);
  const std::vector<Step> steps = Script(9, 5000, ranges);
  size_t answered = 0;
  int lost_pieces = 0;
  for (int operation = 1; answered < steps.size(); operation += NextFault(&random, 50)) {
    SCOPED_TRACE(absl::StrCat("operation ", operation));
    fs::remove_all(options_.dir);
    const auto system = std::make_shared<FaultFileSystem>();
    Use(system);
    system->FailAfter(operation, FaultFileSystem::Fault::kIo, random() % 64);
    answered = 0;
    {
      const auto store = OpenRocksStore(options_);
      while (store.ok() && answered < steps.size() && steps[answered](store->get()).ok()) {
        ++answered;
      }
    }
    system->Mend();
    system->LosePower(random() % 4 * 100);
    const auto store = Open();
    ASSERT_NE(store, nullptr);
    ExpectAsAfter(*store, steps, answered);
    // What is missing of the one under way is sent again.
    const StoredState state = store->State();
    if (!state.plan.has_value()) continue;
    const uint64_t round = state.plan->round();
    const Ranges there = store->Pieces(round);
    lost_pieces += After(steps, answered)->Pieces(round).size() > there.size();
    for (const SectionRange& range : Missing(ranges, there, 1000)) {
      for (uint64_t begin = range.begin; begin < range.end; begin += 4000) {
        WriteTestPieces(store.get(), round, {{0, begin, begin + 4000}});
      }
    }
    ASSERT_TRUE(store->Write(TestSnapshot(round, 1)).ok());
    ExpectPieces(*store, round, ranges);
    CommitTestRounds(store.get(), 1, 5000);
  }
  std::printf("power was lost with pieces %d times\n", lost_pieces);
}

TEST_F(RocksSnapshotTest, AFullDiskAtEveryOperationIsWaitedFor) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  options_.write_buffer_bytes = 64 << 10;
  const Ranges ranges = TestRanges(6, 4000);
  const std::vector<Step> steps = Script(9, 5000, ranges);
  const auto all = After(steps, steps.size());
  bool was_full = true;
  for (int operation = 1; was_full; operation += NextFault(&random, 50)) {
    SCOPED_TRACE(absl::StrCat("operation ", operation));
    fs::remove_all(options_.dir);
    const auto system = std::make_shared<FaultFileSystem>();
    Use(system);
    {
      const auto store = Open();
      was_full = false;
      system->FailAfter(operation, FaultFileSystem::Fault::kNoSpace, random() % 64);
      for (const Step& step : steps) {
        absl::Status status = step(store.get());
        if (absl::IsResourceExhausted(status)) {
          was_full = true;
          status = step(store.get());
          EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
          EXPECT_THAT(std::string(status.message()), HasSubstr("make room"));
          system->Mend();
          status = step(store.get());
        }
        ASSERT_TRUE(status.ok()) << status;
      }
      was_full = was_full || system->failed();
      system->Mend();
      EXPECT_EQ(Text(store->State()), Text(all->State()));
    }
    const auto store = Open();
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(Text(store->State()), Text(all->State()));
    for (uint64_t round : RoundsToKeep(StoreBatch(), all->State()))
      ExpectPieces(*store, round, ranges);
    ExpectAggregatesOf(*store, *all);
  }
}

TEST_F(RocksSnapshotTest, NothingIsWrittenAfterTheDiskFailedAtAPiece) {
  const auto system = std::make_shared<FaultFileSystem>();
  Use(system);
  const Ranges ranges = TestRanges(2, 300);
  const auto store = Open();
  ASSERT_TRUE(store->Write(TestPlan(1)).ok());
  WriteTestPieces(store.get(), 1, {ranges[0]});
  system->FailAfter(1, FaultFileSystem::Fault::kIo, 100);
  const absl::Status failed = store->WritePiece(1, ranges[1], TestPiece(1, ranges[1]));
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal) << failed;
  system->Mend();
  const int operations = system->operations();
  EXPECT_EQ(store->WritePiece(1, ranges[1], TestPiece(1, ranges[1])), failed);
  EXPECT_EQ(store->Write(TestCommit(1, 40)), failed);
  EXPECT_EQ(system->operations(), operations);
}

// R3: a bit that changed on the disk is never read as if it had not.
TEST_F(RocksSnapshotTest, AFlippedBitOfAPieceIsFoundAndNamed) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  const Ranges ranges = TestRanges(3, 4000);
  WriteTestSnapshot(Open().get(), 1, ranges);
  Open();  // puts what the log had into files
  const std::vector<fs::path> blobs = FilesWith(options_.dir, ".blob");
  ASSERT_EQ(blobs.size(), 1u);
  ASSERT_GT(fs::file_size(blobs[0]), 48000u);
  int found = 0;
  for (int flip = 0; flip < (TriesAllFaults() ? 200 : 8); ++flip) {
    const RocksStoreOptions copy = Copy();
    std::fstream file(fs::path(copy.dir) / blobs[0].filename(),
                      std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(random() % fs::file_size(blobs[0]));
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ (1 << random() % 8));
    file.seekp(at);
    file.put(byte);
    file.close();
    SCOPED_TRACE(absl::StrCat("byte ", at));
    const auto store = OpenRocksStore(copy);
    if (!store.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(store.status())) << store.status();
      continue;
    }
    EXPECT_EQ((*store)->Pieces(1), ranges);  // which are known without being read
    for (const SectionRange& range : ranges) {
      const auto read = (*store)->ReadPiece(1, range);
      if (read.ok()) {
        EXPECT_EQ(*read, TestPiece(1, range));
        continue;
      }
      ++found;
      EXPECT_TRUE(absl::IsDataLoss(read.status())) << read.status();
      EXPECT_THAT(std::string(read.status().message()),
                  AllOf(HasSubstr(copy.dir), HasSubstr("--check_store"),
                        HasSubstr(absl::StrCat("piece [", range.begin, ", "))));
    }
  }
  EXPECT_GT(found, 0);
}

TEST_F(RocksSnapshotTest, AFlippedBitOfAnAggregateIsFoundAndNamed) {
  std::mt19937_64 random(1);
  const std::vector<float> values(20000, 1.5f);
  StoreBatch batch = TestCommit(1, 40);
  batch.aggregate = std::make_shared<const std::vector<float>>(values);
  ASSERT_TRUE(Open()->Write(batch).ok());
  Open();  // puts what the log had into files
  const std::vector<fs::path> blobs = FilesWith(options_.dir, ".blob");
  ASSERT_EQ(blobs.size(), 1u);
  EXPECT_EQ(*Open()->ReadAggregate(1, values.size()), values);
  for (int flip = 0; flip < 4; ++flip) {
    const RocksStoreOptions copy = Copy();
    std::fstream file(fs::path(copy.dir) / blobs[0].filename(),
                      std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(1000 + random() % 70000);  // inside of the values
    file.seekp(at);
    file.put('?');
    file.close();
    const absl::Status damaged = Open(copy)->ReadAggregate(1, values.size()).status();
    EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
    EXPECT_THAT(std::string(damaged.message()),
                AllOf(HasSubstr(copy.dir), HasSubstr("the aggregate of round 1")));
  }
}

// The blob files of those that were dropped go, soon.
TEST_F(RocksSnapshotTest, TenInARowLeaveABoundedFolder) {
  Use(std::make_shared<FaultFileSystem>());  // which syncs nothing
  const Ranges ranges = TestRanges(16, 64 << 10);
  constexpr uint64_t kBytes = 4 << 20;  // of a snapshot: four write buffers
  options_.limits = {100, uint64_t{1} << 30, 100};
  uint64_t most_bytes = 0;
  const auto store = Open();
  for (uint64_t round = 1; round <= 10; ++round) {
    CommitTestRounds(store.get(), 1, 6000);
    ASSERT_TRUE(store->Write(TestPlan(round)).ok());
    for (const SectionRange& range : ranges) {
      WriteTestPieces(store.get(), round, {range});
      most_bytes = std::max(most_bytes, FolderBytes());
    }
    ASSERT_TRUE(store->Write(TestSnapshot(round, kBytes)).ok());
    most_bytes = std::max(most_bytes, FolderBytes());
  }
  EXPECT_THAT(SnapshotsOf(*store), ElementsAre(9, 10));
  // Those that are kept, the one under way, the last one that was dropped, whose files go with the
  // next tables, and what is on its way from the log to the files.
  const uint64_t bound = (kSnapshotsKept + 2) * kBytes + 6 * options_.write_buffer_bytes;
  EXPECT_LT(most_bytes, bound);
  std::printf("most bytes %llu, bound %llu, at the end %llu\n",
              static_cast<unsigned long long>(most_bytes), static_cast<unsigned long long>(bound),
              static_cast<unsigned long long>(FolderBytes()));
}

}  // namespace
}  // namespace isthmus
