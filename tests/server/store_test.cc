// What every store must do, on each of them.
#include "server/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "server/rocks_store.h"
#include "tests/server/store_updates.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  ~StoreTest() override {
    for (const std::string& dir : dirs_) std::filesystem::remove_all(dir);
  }

  std::unique_ptr<Store> Make(const StoreLimits& limits = StoreLimits()) {
    if (GetParam() == "memory") return MakeMemoryStore(limits);
    std::string dir = ::testing::TempDir() + "/store_XXXXXX";
    dirs_.push_back(mkdtemp(dir.data()));
    auto store = OpenRocksStore({dirs_.back(), limits});
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

 private:
  std::vector<std::string> dirs_;
};

TEST_P(StoreTest, IsEmptyAtFirst) {
  const auto store = Make();
  EXPECT_EQ(store->last_round(), 0u);
  EXPECT_EQ(store->first_round(), 1u);
  EXPECT_TRUE(store->ReadAfter(0, 1)->empty());
  EXPECT_TRUE(absl::IsOutOfRange(store->ReadAfter(1, 1).status()));
  EXPECT_EQ(*store->RecordSha256(0), "");
  EXPECT_TRUE(absl::IsOutOfRange(store->RecordSha256(1).status()));
  const StoredState state = store->State();
  EXPECT_FALSE(state.run.has_value());
  EXPECT_FALSE(state.open.has_value());
  EXPECT_TRUE(state.nodes.empty());
  EXPECT_EQ(state.last_round, 0u);
}

TEST_P(StoreTest, GivesWhatCameAfterARound) {
  const auto store = Make();
  CommitTestRounds(store.get(), 4, 100);
  EXPECT_EQ(store->last_round(), 4u);
  EXPECT_THAT(RoundsAfter(*store, 2), ElementsAre(3, 4));
  EXPECT_THAT(RoundsAfter(*store, 4), ElementsAre());
  EXPECT_TRUE(absl::IsOutOfRange(store->ReadAfter(5, 1).status()));
  for (uint64_t round = 1; round <= 4; ++round) {
    const StoredUpdatePtr read = (*store->ReadAfter(round - 1, 1))[0];
    const StoredUpdatePtr wrote = TestUpdate(round, 100);
    EXPECT_EQ(*store->RecordSha256(round), wrote->record.sha256());
    ExpectSameUpdate(*read, *wrote);
  }
  EXPECT_TRUE(absl::IsOutOfRange(store->RecordSha256(5).status()));
}

TEST_P(StoreTest, GivesNoMoreBytesThanAskedForButOneUpdate) {
  const auto store = Make();
  CommitTestRounds(store.get(), 6, 1000);
  EXPECT_THAT(RoundsAfter(*store, 0, 0), ElementsAre(1));
  EXPECT_THAT(RoundsAfter(*store, 0, 1000), ElementsAre(1));
  EXPECT_THAT(RoundsAfter(*store, 1, 1001), ElementsAre(2, 3));
  EXPECT_THAT(RoundsAfter(*store, 5, 100000), ElementsAre(6));
}

TEST_P(StoreTest, KeepsTheNewestUpToItsLimits) {
  const auto store = Make({100, 30000, 100});
  CommitTestRounds(store.get(), 5, 10000);
  // Two updates with what they cost beside their bytes fit.
  const absl::Status status = store->ReadAfter(2, 1).status();
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rounds 4 to 5"));
  EXPECT_EQ(store->first_round(), 4u);
  EXPECT_THAT(RoundsAfter(*store, 3), ElementsAre(4, 5));
  // Which rounds there were is known for longer.
  EXPECT_EQ(*store->RecordSha256(1), TestUpdate(1, 10000)->record.sha256());
  // The last one stays, however large.
  ASSERT_TRUE(store->Write(TestCommit(6, 100000)).ok());
  EXPECT_THAT(RoundsAfter(*store, 5), ElementsAre(6));
}

TEST_P(StoreTest, KeepsSoManyRoundsAndSettlements) {
  const auto store = Make({3, uint64_t{1} << 30, 5});
  CommitTestRounds(store.get(), 10, 40);
  EXPECT_EQ(store->first_round(), 8u);
  EXPECT_THAT(RoundsAfter(*store, 7), ElementsAre(8, 9, 10));
  EXPECT_TRUE(store->RecordSha256(6).ok());
  EXPECT_TRUE(absl::IsOutOfRange(store->RecordSha256(5).status()));
}

TEST_P(StoreTest, KeepAfterGoesBeforeTheLimits) {
  const auto store = Make({2, 1, 2});
  for (uint64_t round = 1; round <= 9; ++round) {
    StoreBatch batch = TestCommit(round, 40);
    batch.keep_after = 4;
    ASSERT_TRUE(store->Write(batch).ok());
  }
  EXPECT_THAT(RoundsAfter(*store, 4), ElementsAre(5, 6, 7, 8, 9));
  EXPECT_EQ(store->first_round(), 5u);
  EXPECT_TRUE(store->RecordSha256(5).ok());
  // One that names all of them still leaves the last.
  StoreBatch batch = TestCommit(10, 40);
  batch.keep_after = 10;
  ASSERT_TRUE(store->Write(batch).ok());
  EXPECT_EQ(store->first_round(), 10u);
}

TEST_P(StoreTest, HoldsRunNodesAndTheOpenRound) {
  const auto store = Make();
  StoreBatch batch;
  batch.run.emplace();
  batch.run->set_fingerprint("fingerprint");
  ASSERT_TRUE(store->Write(batch).ok());
  batch.run->mutable_spec()->set_run("test");
  batch.node.emplace();
  batch.node->set_node("b");
  batch.node->set_incarnation(1);
  ASSERT_TRUE(store->Write(batch).ok());
  batch.run.reset();
  batch.node->set_node("a");
  batch.node->set_incarnation(2);
  ASSERT_TRUE(store->Write(batch).ok());
  batch.node->set_node("b");
  batch.node->set_incarnation(3);
  ASSERT_TRUE(store->Write(batch).ok());
  ASSERT_TRUE(store->Write(TestCommit(1, 40)).ok());

  StoredState state = store->State();
  EXPECT_EQ(state.run->spec().run(), "test");
  EXPECT_EQ(state.run->fingerprint(), "fingerprint");
  ASSERT_EQ(state.nodes.size(), 2u);
  EXPECT_EQ(state.nodes[0].node(), "a");
  EXPECT_EQ(state.nodes[0].incarnation(), 2u);
  EXPECT_EQ(state.nodes[1].incarnation(), 3u);
  EXPECT_EQ(state.last_round, 1u);
  EXPECT_EQ(state.open->round(), 2u);
  EXPECT_THAT(state.open->members(), ElementsAre("a", "b"));

  // The last commit opens nothing.
  batch = TestCommit(2, 40);
  batch.open.reset();
  ASSERT_TRUE(store->Write(batch).ok());
  state = store->State();
  EXPECT_FALSE(state.open.has_value());
  EXPECT_EQ(state.nodes.size(), 2u);
}

TEST_P(StoreTest, KeepsPiecesAsTheyWereCut) {
  const auto store = Make();
  ASSERT_TRUE(store->Write(TestPlan(7)).ok());
  EXPECT_EQ(store->State().plan->round(), 7u);
  EXPECT_EQ(store->State().plan->node(), "a");
  EXPECT_THAT(store->State().plan->members(), ElementsAre("a", "b"));
  EXPECT_TRUE(store->Pieces(7).empty());
  constexpr uint64_t kFar = uint64_t{1} << 40;  // a section may have more than 2^32 elements
  const std::vector<SectionRange> ranges = {{0, 0, 1}, {0, 1, 5000},  {0, kFar, kFar + 3},
                                            {1, 0, 2}, {2, 255, 256}, {2, 256, 300}};
  std::vector<SectionRange> shuffled = {ranges[4], ranges[2], ranges[0],
                                        ranges[5], ranges[3], ranges[1]};
  WriteTestPieces(store.get(), 7, shuffled);
  ExpectPieces(*store, 7, ranges);
  // The same again is well.
  WriteTestPieces(store.get(), 7, {ranges[1], ranges[0]});
  ExpectPieces(*store, 7, ranges);

  const absl::Status other_cut = store->ReadPiece(7, {0, 1, 4999}).status();
  EXPECT_TRUE(absl::IsNotFound(other_cut)) << other_cut;
  EXPECT_THAT(std::string(other_cut.message()),
              HasSubstr("the state after round 7 has no piece [1, 4999) of section 0"));
  EXPECT_TRUE(absl::IsNotFound(store->ReadPiece(8, ranges[0]).status()));
  EXPECT_TRUE(store->Pieces(6).empty());
  EXPECT_TRUE(store->Pieces(8).empty());

  // What overlaps is the caller's to refuse: here it is one more piece.
  WriteTestPieces(store.get(), 7, {{1, 1, 3}});
  ExpectPieces(*store, 7,
               {ranges[0], ranges[1], ranges[2], ranges[3], {1, 1, 3}, ranges[4], ranges[5]});
}

TEST_P(StoreTest, ASnapshotCountsWhenItsRecordIsThere) {
  const auto store = Make();
  const std::vector<SectionRange> ranges = TestRanges(3, 2000);
  StoreBatch batch = TestCommit(1, 40);
  batch.plan = TestPlan(1).plan;  // with the commit that opens its round
  ASSERT_TRUE(store->Write(batch).ok());
  WriteTestPieces(store.get(), 1, ranges);
  EXPECT_THAT(SnapshotsOf(*store), ElementsAre());
  ASSERT_TRUE(store->Write(TestSnapshot(1, 24000)).ok());
  EXPECT_THAT(SnapshotsOf(*store), ElementsAre(1));
  EXPECT_EQ(store->State().snapshots[0].payload_bytes(), 24000u);
  EXPECT_EQ(store->State().last_round, 1u);
  // Written again it is one.
  ASSERT_TRUE(store->Write(TestSnapshot(1, 24000)).ok());
  EXPECT_THAT(SnapshotsOf(*store), ElementsAre(1));
  ExpectPieces(*store, 1, ranges);
}

TEST_P(StoreTest, KeepsTheNewestSnapshotsAndWhatIsPlanned) {
  const auto store = Make();
  const std::vector<SectionRange> ranges = TestRanges(4, 1500);
  static_assert(kSnapshotsKept == 2, "this test counts");
  WriteTestSnapshot(store.get(), 0, ranges);  // the start state
  WriteTestSnapshot(store.get(), 10, ranges);
  ASSERT_TRUE(store->Write(TestPlan(20)).ok());
  WriteTestPieces(store.get(), 20, ranges);
  ExpectPieces(*store, 0, ranges);
  ExpectPieces(*store, 10, ranges);
  ExpectPieces(*store, 20, ranges);
  ASSERT_TRUE(store->Write(TestSnapshot(20, 24000)).ok());
  EXPECT_THAT(SnapshotsOf(*store), ElementsAre(10, 20));
  ExpectPieces(*store, 0, {});
  EXPECT_TRUE(absl::IsNotFound(store->ReadPiece(0, ranges[0]).status()));

  // A commit keeps what is under way; another plan, of the same round too, gives up all pieces that
  // do not count.
  ASSERT_TRUE(store->Write(TestPlan(30)).ok());
  WriteTestPieces(store.get(), 30, {ranges[0]});
  CommitTestRounds(store.get(), 1, 40);
  ExpectPieces(*store, 30, {ranges[0]});
  ASSERT_TRUE(store->Write(TestPlan(30)).ok());
  ExpectPieces(*store, 30, {});
  WriteTestPieces(store.get(), 30, {ranges[1]});
  ASSERT_TRUE(store->Write(TestPlan(40)).ok());
  ExpectPieces(*store, 30, {});
  EXPECT_EQ(store->State().plan->round(), 40u);
  EXPECT_THAT(SnapshotsOf(*store), ElementsAre(10, 20));
  ExpectPieces(*store, 10, ranges);
  ExpectPieces(*store, 20, ranges);

  // One that is older than those that are kept does not stay.
  WriteTestPieces(store.get(), 5, ranges);
  ASSERT_TRUE(store->Write(TestSnapshot(5, 24000)).ok());
  EXPECT_THAT(SnapshotsOf(*store), ElementsAre(10, 20));
  ExpectPieces(*store, 5, {});
}

TEST_P(StoreTest, KeepsAggregatesUntilASnapshotMakesThemNeedless) {
  constexpr size_t kElements = kPieceBytesMax / sizeof(float) + 1;  // in more than one part
  const auto store = Make();
  for (uint64_t round = 1; round <= 5; ++round) {
    StoreBatch batch = TestCommit(round, 40);
    if (round != 4) batch.aggregate = TestAggregate(round, kElements);  // 4: a void round
    ASSERT_TRUE(store->Write(batch).ok());
  }
  const auto expect_kept = [&](uint64_t first) {
    for (uint64_t round = 1; round <= 5; ++round) {
      const auto read = store->ReadAggregate(round, kElements);
      if (round < first || round == 4) {
        EXPECT_TRUE(absl::IsNotFound(read.status())) << round << ": " << read.status();
      } else {
        ASSERT_TRUE(read.ok()) << read.status();
        EXPECT_EQ(*read, *TestAggregate(round, kElements));
      }
    }
  };
  expect_kept(1);
  for (size_t elements : {kElements - 1, kElements + 1}) {
    const absl::Status other = store->ReadAggregate(3, elements).status();
    EXPECT_TRUE(absl::IsDataLoss(other)) << other;
    EXPECT_THAT(std::string(other.message()), HasSubstr("the aggregate of round 3 has 1048580"));
  }
  WriteTestSnapshot(store.get(), 0, TestRanges(1, 10));
  expect_kept(1);
  WriteTestSnapshot(store.get(), 2, TestRanges(1, 10));
  expect_kept(3);
  // One that is not the newest makes nothing needless that was needed.
  WriteTestSnapshot(store.get(), 1, TestRanges(1, 10));
  expect_kept(3);
  WriteTestSnapshot(store.get(), 5, TestRanges(1, 10));
  expect_kept(6);
}

INSTANTIATE_TEST_SUITE_P(All, StoreTest, ::testing::Values("memory", "rocks"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace isthmus
