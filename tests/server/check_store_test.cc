// What checking a state folder says of its snapshots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "spec/manifest.h"
#include "spec/state_hash.h"
#include "spec/update_record.h"
#include "tests/server/rocks_case.h"

namespace isthmus {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr uint64_t kRounds = 3;
constexpr uint64_t kSettled = 2;  // of them the newest are known

class CheckStoreTest : public RocksStoreTest {
 protected:
  CheckStoreTest() : grid_(TestGrid()) {
    Use(std::make_shared<FaultFileSystem>());  // which syncs nothing
    options_.limits = {1, uint64_t{1} << 30, kSettled};
    const auto store = Open();
    StoreBatch batch;
    batch.run.emplace();
    v1::RunSpec spec = TestSpec({"a", "b"}, 0, kRounds + 1);
    spec.mutable_optimizer()->set_base(v1::BASE_OPTIMIZER_ADAMW);
    *batch.run->mutable_spec() = spec;
    *batch.run->mutable_manifest() = TestManifest();
    batch.run->set_fingerprint(Fingerprint(TestManifest()));
    batch.run->set_start_state_sha256(Facts(0).state_sha256());
    EXPECT_TRUE(store->Write(batch).ok());
    for (uint64_t round = 1; round <= kRounds; ++round) {
      StoreBatch commit = TestCommit(round, 0);
      auto update = std::make_shared<StoredUpdate>();
      update->record.set_run("test");
      update->record.set_round(round);
      update->record.set_is_void(true);
      update->record.set_previous_sha256(*store->RecordSha256(round - 1));
      update->record.set_sha256(UpdateRecordSha256(update->record));
      commit.update = std::move(update);
      EXPECT_TRUE(store->Write(commit).ok());
      sha256_.push_back(*store->RecordSha256(round));
    }
  }

  // Of a state with three sections.
  v1::SnapshotFacts Facts(uint64_t round) const {
    v1::SnapshotFacts facts;
    facts.set_run("test");
    facts.set_round(round);
    facts.set_step(round);
    facts.set_sections(3);
    facts.set_elements(grid_->elements());
    facts.set_beta1_power_bits(17);
    facts.set_fingerprint(Fingerprint(TestManifest()));
    if (round > 0) facts.set_update_sha256(sha256_.at(round - 1));
    StateHasher hasher(*grid_, facts);
    for (uint32_t section = 0; section < 3; ++section) {
      EXPECT_TRUE(hasher.Add(TestPiece(round, {section, 0, facts.elements()})).ok());
    }
    facts.set_state_sha256(*hasher.Finish());
    return facts;
  }

  // The whole state in uneven pieces.
  std::vector<SectionRange> Cut() const {
    std::vector<SectionRange> ranges;
    for (uint32_t section = 0; section < 3; ++section) {
      for (uint64_t begin = 0; begin < grid_->elements();) {
        const uint64_t end = std::min(grid_->elements(), begin + 1 + (begin * 7 + 1999) % 5000);
        ranges.push_back({section, begin, end});
        begin = end;
      }
    }
    return ranges;
  }

  StoreBatch Record(const v1::SnapshotFacts& facts) const {
    StoreBatch batch = TestSnapshot(facts.round(), 3 * grid_->elements() * sizeof(float));
    *batch.snapshot->mutable_facts() = facts;
    return batch;
  }

  void Write(const StoreBatch& batch) { ASSERT_TRUE(Open()->Write(batch).ok()); }

  StoreReport Check() {
    const auto report = CheckRocksStore(options_);
    EXPECT_TRUE(report.ok()) << report.status();
    return *report;
  }

  void ExpectBroken(const StoreBatch& batch, const std::string& what) {
    Write(batch);
    const StoreReport report = Check();
    EXPECT_TRUE(absl::IsDataLoss(report.status)) << report.status;
    EXPECT_THAT(std::string(report.status.message()), HasSubstr(what));
  }

  const std::shared_ptr<const Grid> grid_;
  std::vector<std::string> sha256_;  // of the rounds' records, from round 1 on
};

TEST_F(CheckStoreTest, SaysWhichSnapshotsHold) {
  const uint64_t bytes = 3 * grid_->elements() * sizeof(float);
  for (uint64_t round : {1, 3}) {
    Write(TestPlan(round));
    WriteTestPieces(Open().get(), round, Cut());
    Write(Record(Facts(round)));
  }
  StoreReport report = Check();
  EXPECT_TRUE(report.status.ok()) << report.status;
  for (uint64_t round : {1, 3}) {
    EXPECT_THAT(report.lines,
                Contains(absl::StrCat("snapshot of round ", round, " by node 'a', ", bytes,
                                      " bytes: every piece and the state's hash "
                                      "hold")));
  }
  // One that is under way, one that nobody wants any more, and one that has not begun.
  Write(TestPlan(2));
  WriteTestPieces(Open().get(), 2, TestRanges(2, 100));
  WriteTestPieces(Open().get(), 0, TestRanges(1, 10));
  report = Check();
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_THAT(report.lines,
              Contains("snapshot of round 2 is not finished: 2 pieces, 800 bytes, all of which "
                       "hold; node 'a' is asked for the others"));
  EXPECT_THAT(report.lines,
              Contains("snapshot of round 0 is not finished: 1 pieces, 40 bytes, all of which "
                       "hold; nobody is asked for the others, and these go with the next plan"));
  Write(TestPlan(9));
  report = Check();
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_THAT(report.lines, Contains("snapshot of round 9 is not finished: 0 pieces, 0 bytes, all "
                                     "of which hold; node 'a' is asked for the others"));
}

TEST_F(CheckStoreTest, TheStartStateIsAsTheRunSays) {
  WriteTestPieces(Open().get(), 0, Cut());
  Write(Record(Facts(0)));
  EXPECT_TRUE(Check().status.ok()) << Check().status;
  v1::SnapshotFacts other = Facts(0);
  other.set_step(1);
  other.set_state_sha256(Sha256Of("another"));
  ExpectBroken(Record(other), "which is not the start state");
  other = Facts(0);
  other.set_update_sha256(sha256_[0]);
  ExpectBroken(Record(other), "it is of record ");
}

TEST_F(CheckStoreTest, FindsWhatASnapshotSaysWrongly) {
  WriteTestPieces(Open().get(), 3, Cut());
  const v1::SnapshotFacts right = Facts(3);
  v1::SnapshotFacts facts = right;
  facts.set_state_sha256(Sha256Of("another"));
  ExpectBroken(Record(facts), "snapshot of round 3: its state has SHA-256 ");
  facts = right;
  facts.set_beta1_power_bits(18);
  ExpectBroken(Record(facts), "its state has SHA-256 ");
  facts = right;
  facts.set_update_sha256(sha256_[0]);
  ExpectBroken(Record(facts), "it is of record ");
  facts = right;
  facts.set_fingerprint(Sha256Of("another model"));
  ExpectBroken(Record(facts), "it is of run 'test' and model ");
  facts = right;
  facts.set_elements(facts.elements() - 1);
  ExpectBroken(Record(facts), "the model has ");
  facts = right;
  facts.set_sections(2);
  ExpectBroken(Record(facts), "and its state 3 sections");
  StoreBatch batch = Record(right);
  batch.snapshot->set_payload_bytes(7);
  ExpectBroken(batch, "its record says 7");
  batch = Record(right);
  batch.snapshot->set_node("nobody");
  ExpectBroken(batch, "'nobody' is not one of the spec's nodes");
  batch = TestPlan(3);
  batch.snapshot = Record(right).snapshot;
  batch.plan->set_node("nobody");
  ExpectBroken(batch, "the next snapshot is asked of 'nobody'");
  Write(TestPlan(3));
  EXPECT_TRUE(Check().status.ok()) << Check().status;
  // Of a round whose record nobody knows any more nothing can be said, of one to come it can.
  facts = Facts(1);
  facts.set_update_sha256(sha256_[2]);
  WriteTestPieces(Open().get(), 1, Cut());
  Write(Record(facts));
  EXPECT_TRUE(Check().status.ok()) << Check().status;
  facts.set_round(4);
  ExpectBroken(Record(facts), "snapshot of round 4: its round is not committed");
}

TEST_F(CheckStoreTest, FindsPiecesThatAreMissingOrTooMany) {
  std::vector<SectionRange> cut = Cut();
  const SectionRange last = cut.back();
  cut.pop_back();
  WriteTestPieces(Open().get(), 2, cut);
  ExpectBroken(Record(Facts(2)), absl::StrCat("snapshot of round 2: elements [", last.begin, ", ",
                                              last.end, ") of section 2 are not there"));
  WriteTestPieces(Open().get(), 2, {last});
  EXPECT_TRUE(Check().status.ok()) << Check().status;
  WriteTestPieces(Open().get(), 2, {{1, 10, 20}});
  ExpectBroken(StoreBatch(), "snapshot of round 2: ");
}

}  // namespace
}  // namespace isthmus
