// A coordinator that ends at any moment, and another one that goes on with its store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "absl/strings/str_cat.h"
#include "server/rocks_store.h"
#include "tests/server/fakes.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A store that is said to last, with writes that can fail.
class LastingStore final : public Store {
 public:
  explicit LastingStore(std::unique_ptr<Store> store = MakeMemoryStore())
      : store_(std::move(store)) {}
  absl::Status Write(const StoreBatch& batch) override {
    std::unique_lock<std::mutex> lock(mutex_);
    ++writes_;
    written_.notify_all();
    if (!fails_with_.ok()) return fails_with_;
    StoreBatch written = batch;
    if (has_snapshots_) written.needed_after.reset();
    lock.unlock();
    return store_->Write(written);
  }
  StoredState State() const override { return store_->State(); }
  bool durable() const override { return !has_snapshots_; }
  absl::StatusOr<std::vector<StoredUpdatePtr>> ReadAfter(uint64_t last_round,
                                                         uint64_t bytes_max) const override {
    return store_->ReadAfter(last_round, bytes_max);
  }
  uint64_t last_round() const override { return store_->last_round(); }
  uint64_t first_round() const override { return store_->first_round(); }
  absl::StatusOr<std::string> RecordSha256(uint64_t round) const override {
    return store_->RecordSha256(round);
  }
  uint64_t BytesAfter(uint64_t last_round) const override { return store_->BytesAfter(last_round); }
  const StoreLimits& limits() const override { return store_->limits(); }
  absl::Status WritePiece(uint64_t round, const SectionRange& range,
                          absl::string_view data) override {
    return store_->WritePiece(round, range, data);
  }
  std::vector<SectionRange> Pieces(uint64_t round) const override { return store_->Pieces(round); }
  absl::StatusOr<std::string> ReadPiece(uint64_t round, const SectionRange& range) const override {
    return store_->ReadPiece(round, range);
  }
  absl::StatusOr<std::vector<float>> ReadAggregate(uint64_t round,
                                                   uint64_t elements) const override {
    return store_->ReadAggregate(round, elements);
  }

  // As one in memory, and as if every round had its snapshot, so that updates may go.
  void HaveSnapshots() { has_snapshots_ = true; }
  void FailWith(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    fails_with_ = status;
    writes_ = 0;
  }
  // Until so many writes were tried since.
  bool WaitForWrites(int writes) {
    std::unique_lock<std::mutex> lock(mutex_);
    return written_.wait_for(lock, std::chrono::seconds(10), [&] { return writes_ >= writes; });
  }
  int writes() {
    std::lock_guard<std::mutex> lock(mutex_);
    return writes_;
  }

 private:
  const std::unique_ptr<Store> store_;
  std::atomic<bool> has_snapshots_{false};
  std::mutex mutex_;
  std::condition_variable written_;
  absl::Status fails_with_;
  int writes_ = 0;
};

uint32_t SeedOf(uint64_t round, int node) { return static_cast<uint32_t>(10 * round) + node; }

// Two nodes and a coordinator that can be started again.
class ResumeTest : public ::testing::Test {
 protected:
  void Begin(const v1::RunSpec& spec, std::shared_ptr<Store> store) {
    spec_ = spec;
    store_ = std::move(store);
    coordinator_ = std::make_unique<TestCoordinator>(spec_, store_);
    a_ = std::make_unique<FakeNode>(coordinator_->host.get(), "a");
    b_ = std::make_unique<FakeNode>(coordinator_->host.get(), "b");
  }

  // What agents see of it: their watches end, and they connect again with what they have.
  void Restart() {
    coordinator_ = nullptr;
    coordinator_ = std::make_unique<TestCoordinator>(spec_, store_);
    a_->Reconnect(coordinator_->host.get());
    b_->Reconnect(coordinator_->host.get());
  }

  void WatchBoth(uint64_t committed) {
    for (FakeNode* node : {a_.get(), b_.get()}) {
      const v1::WatchStart start = node->Watch();
      EXPECT_EQ(start.committed_round(), committed);
      EXPECT_EQ(start.held_size(), 0);  // a receipt ends with the process
    }
  }

  void SubmitBoth(uint64_t round) {
    for (int i = 0; i < 2; ++i) {
      const auto receipt = (i == 0 ? a_ : b_)->SubmitRandom(round, SeedOf(round, i));
      ASSERT_TRUE(receipt.ok()) << receipt.status();
      EXPECT_TRUE(receipt->complete());
    }
  }

  void Round(uint64_t round) {
    a_->ExpectOpened(round);
    b_->ExpectOpened(round);
    SubmitBoth(round);
    a_->ExpectUpdate(round);
    b_->ExpectUpdate(round);
  }

  v1::RunSpec spec_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<TestCoordinator> coordinator_;
  std::unique_ptr<FakeNode> a_, b_;
};

// R1, C9: where a coordinator ended makes no difference to what the run comes to.
TEST_F(ResumeTest, ARunThatIsInterruptedEverywhereEndsBitEqual) {
  const v1::RunSpec spec = TestSpec({"a", "b"}, 0, 6);
  Begin(spec, MakeMemoryStore());
  a_->JoinAndWatch();
  b_->JoinAndWatch();
  for (uint64_t round = 1; round <= 6; ++round) Round(round);
  const std::string undisturbed = a_->join_request.last_update_sha256();

  std::string dir = ::testing::TempDir() + "/resume_XXXXXX";
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  const auto reopen = [&] {
    coordinator_ = nullptr;
    store_ = nullptr;
    auto store = OpenRocksStore({dir, StoreLimits()});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    Restart();
  };
  {
    auto store = OpenRocksStore({dir, StoreLimits()});
    ASSERT_TRUE(store.ok()) << store.status();
    Begin(spec, *std::move(store));
  }
  reopen();  // before anything
  ASSERT_TRUE(a_->Join().ok());
  reopen();  // between two joins
  ASSERT_TRUE(b_->Join().ok());
  for (uint64_t round = 1; round <= 6; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    reopen();  // in an open round without contributions
    WatchBoth(round - 1);
    a_->ExpectOpened(round);
    const auto receipt = a_->SubmitRandom(round, SeedOf(round, 0));
    ASSERT_TRUE(receipt.ok() && receipt->complete()) << receipt.status();
    reopen();  // with one, whose receipt is worth nothing now
    WatchBoth(round - 1);
    Round(round);  // ends with the commit
  }
  EXPECT_EQ(a_->join_request.last_update_sha256(), undisturbed);
  EXPECT_EQ(b_->join_request.last_update_sha256(), undisturbed);
  reopen();  // finished
  EXPECT_TRUE(coordinator_->host->finished());
  a_->join_request.set_last_round(4);
  a_->join_request.set_last_update_sha256(*store_->RecordSha256(4));
  a_->Watch();
  a_->ExpectUpdate(5);
  a_->ExpectUpdate(6);
  EXPECT_TRUE(a_->reader->NextEvent().has_finished());
  EXPECT_EQ(a_->join_request.last_update_sha256(), undisturbed);

  coordinator_ = nullptr;
  store_ = nullptr;
  const auto report = CheckRocksStore({dir, StoreLimits()});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->status.ok()) << report->status;
  EXPECT_THAT(report->lines, ::testing::Contains(HasSubstr("rounds 1 to 6")));
  std::filesystem::remove_all(dir);
}

TEST_F(ResumeTest, MembersAreThoseOfTheOpenRoundWithFreshLeases) {
  Begin(TestSpec({"a", "b"}, 1, 6), MakeMemoryStore());
  a_->JoinAndWatch();
  a_->ExpectOpened(1);
  ASSERT_TRUE(a_->SubmitRandom(1, 1).ok());
  a_->ExpectUpdate(1);
  ASSERT_TRUE(b_->Join().ok());
  coordinator_->Pass(14000, {a_.get()});
  Restart();
  EXPECT_EQ(coordinator_->host->live_nodes(), 2u);
  EXPECT_THAT(coordinator_->host->WaitingFor(), HasSubstr("round 2: waiting for a, "));
  // A lease is a whole one again.
  coordinator_->Pass(14900);
  EXPECT_EQ(coordinator_->host->live_nodes(), 2u);
  coordinator_->Pass(200);
  EXPECT_EQ(coordinator_->host->live_nodes(), 0u);
}

// C10 across a restart: the secret decides.
TEST_F(ResumeTest, TheSecretTakesOverAndFencesAfterARestart) {
  Begin(TestSpec({"a", "b"}, 0, 6), MakeMemoryStore());
  a_->JoinAndWatch();
  b_->JoinAndWatch();
  Round(1);
  const uint64_t given_out = b_->joined.incarnation();
  Restart();
  FakeNode stranger(coordinator_->host.get(), "b");
  stranger.join_request.set_secret("a secret of somebody else");
  const absl::Status alive = stranger.Join();
  EXPECT_TRUE(absl::IsAlreadyExists(alive)) << alive;
  EXPECT_EQ(ReasonOf(alive), kReasonNodeAlive);
  // The one who knows the secret takes over, under a number that was never given out.
  FakeNode again(coordinator_->host.get(), "b");
  again.join_request = b_->join_request;
  ASSERT_TRUE(again.Join().ok());
  EXPECT_GT(again.joined.incarnation(), given_out);
  const auto late = b_->SubmitRandom(2, 1);
  EXPECT_EQ(ReasonOf(late.status()), kReasonIncarnationFenced) << late.status();
  // When its lease has ended another one may have the name; its late data is refused.
  coordinator_->Pass(15200, {a_.get()});
  stranger.join_request.set_last_round(1);
  stranger.join_request.set_last_update_sha256(b_->join_request.last_update_sha256());
  ASSERT_TRUE(stranger.Join().ok());
  EXPECT_EQ(ReasonOf(again.Beat(1).status()), kReasonIncarnationFenced);
  EXPECT_GT(stranger.joined.incarnation(), again.joined.incarnation());
}

TEST_F(ResumeTest, ANodeThatLeftIsNotTakenForLive) {
  Begin(TestSpec({"a", "b"}, 1, 6), MakeMemoryStore());
  a_->JoinAndWatch();
  ASSERT_TRUE(b_->Join().ok());
  ASSERT_TRUE(b_->Leave().ok());
  Restart();
  EXPECT_EQ(coordinator_->host->live_nodes(), 1u);
  // Another process may take the name at once.
  FakeNode other(coordinator_->host.get(), "b");
  other.join_request.set_secret("another secret of b");
  EXPECT_TRUE(other.Join().ok());
}

TEST_F(ResumeTest, AnotherSpecIsRefusedNamingTheFirstField) {
  Begin(TestSpec({"a", "b"}, 0, 6), MakeMemoryStore());
  ASSERT_TRUE(a_->Join().ok());
  coordinator_ = nullptr;
  v1::RunSpec other = spec_;
  other.set_steps(7);
  other.mutable_timing()->set_lease_ms(20000);
  CoordinatorOptions options;
  options.spec = other;
  options.store = store_;
  const absl::Status refused = Coordinator::Start(std::move(options)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("steps is 6 there and 7 here"));
}

TEST_F(ResumeTest, ASpecMayBeCorrectedBeforeAnyNodeHasJoined) {
  Begin(TestSpec({"a", "b"}, 0, 6), MakeMemoryStore());
  spec_.set_steps(7);
  Restart();
  ASSERT_TRUE(a_->Join().ok());
  EXPECT_EQ(a_->joined.spec().steps(), 7u);
  Restart();
}

// Rule 9: what a node has applied was durable, so a store without it has lost it.
TEST_F(ResumeTest, ANodeAheadStopsTheRun) {
  Begin(TestSpec({"a", "b", "c"}, 2, 6), std::make_shared<LastingStore>());
  a_->JoinAndWatch();
  b_->JoinAndWatch();
  Round(1);
  FakeNode c(coordinator_->host.get(), "c");
  c.join_request.set_last_round(5);
  c.join_request.set_last_update_sha256(Sha256Of("round 5"));
  const absl::Status ahead = c.Join();
  EXPECT_TRUE(absl::IsDataLoss(ahead)) << ahead;
  EXPECT_THAT(std::string(ahead.message()),
              AllOf(HasSubstr("round 5"), HasSubstr("is 1"), HasSubstr("--state_dir")));
  for (const absl::Status& status :
       {a_->Beat(1).status(), b_->Join(), a_->SubmitRandom(2, 1).status(),
        coordinator_->host->Watch(a_->WatchRequest()).status()}) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  }
  EXPECT_THAT(coordinator_->host->WaitingFor(), HasSubstr("stopped"));
}

TEST_F(ResumeTest, OneNodeOfAnotherHistoryIsRefusedAloneAndHalfOfThemStopTheRun) {
  Begin(TestSpec({"a", "b", "c", "d"}, 2, 6), std::make_shared<LastingStore>());
  a_->JoinAndWatch();
  b_->JoinAndWatch();
  Round(1);
  FakeNode c(coordinator_->host.get(), "c"), d(coordinator_->host.get(), "d");
  for (FakeNode* node : {&c, &d}) {
    node->join_request.set_last_round(1);
    node->join_request.set_last_update_sha256(Sha256Of("of another run"));
  }
  const absl::Status alone = c.Join();
  EXPECT_TRUE(absl::IsDataLoss(alone)) << alone;
  EXPECT_EQ(ReasonOf(alone), "HISTORY_DIFFERS");
  EXPECT_TRUE(a_->Beat(1).ok());
  // One that has come back to this history does not count.
  c.join_request = a_->join_request;
  c.join_request.set_node("c");
  ASSERT_TRUE(c.Join().ok());
  EXPECT_EQ(ReasonOf(d.Join()), "HISTORY_DIFFERS");
  c.join_request.set_last_update_sha256(Sha256Of("of another run"));
  const absl::Status half = c.Join();
  EXPECT_EQ(ReasonOf(half), "HISTORY_FORKED") << half;
  EXPECT_THAT(std::string(half.message()), HasSubstr("2 of 4 nodes (c, d)"));
  EXPECT_TRUE(absl::IsDataLoss(a_->Beat(1).status()));
}

TEST_F(ResumeTest, DeterministicModeKeepsBackToTheOldestCheckpoint) {
  v1::RunSpec spec = TestSpec({"a", "b"}, 0, 12);
  spec.set_deterministic(true);
  // Limits that do not count here.
  auto store = std::make_unique<LastingStore>(MakeMemoryStore({2, 1, 2}));
  store->HaveSnapshots();
  Begin(spec, std::move(store));
  a_->JoinAndWatch();
  b_->JoinAndWatch();
  for (uint64_t round = 1; round <= 4; ++round) Round(round);
  EXPECT_EQ(store_->first_round(), 1u);
  ASSERT_TRUE(a_->Beat(4, "", 4).ok());
  ASSERT_TRUE(b_->Beat(4, "", 2).ok());
  EXPECT_TRUE(absl::IsDataLoss(b_->Beat(4, "", 5).status()));  // a checkpoint of what never was
  Round(5);
  EXPECT_EQ(store_->first_round(), 3u);
  // Nothing is known of checkpoints after a restart until all nodes have said.
  Restart();
  WatchBoth(5);
  ASSERT_TRUE(a_->Beat(5, "", 5).ok());
  Round(6);
  EXPECT_EQ(store_->first_round(), 3u);
  ASSERT_TRUE(b_->Beat(6, "", 4).ok());
  Round(7);
  EXPECT_EQ(store_->first_round(), 5u);
}

// R4: a full disk makes the round wait; nothing is published before it is stored.
TEST_F(ResumeTest, AFullDiskMakesTheRoundWait) {
  const auto store = std::make_shared<LastingStore>();
  Begin(TestSpec({"a", "b"}, 0, 6), store);
  store->FailWith(absl::ResourceExhaustedError("no space left"));
  const absl::Status full = a_->Join();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  store->FailWith(absl::OkStatus());
  a_->JoinAndWatch();
  b_->JoinAndWatch();
  a_->ExpectOpened(1);
  b_->ExpectOpened(1);
  store->FailWith(absl::ResourceExhaustedError("no space left"));
  SubmitBoth(1);
  ASSERT_TRUE(store->WaitForWrites(2));
  EXPECT_TRUE(a_->reader->Empty());
  EXPECT_TRUE(a_->Beat().ok());
  EXPECT_TRUE(coordinator_->host->store_full());
  EXPECT_THAT(coordinator_->host->WaitingFor(), HasSubstr("no room on the coordinator's disk"));
  store->FailWith(absl::OkStatus());
  a_->ExpectUpdate(1);
  b_->ExpectUpdate(1);
  Round(2);
}

// Nor is anything taken for the rounds after it.
TEST_F(ResumeTest, WhileADiskIsFullContributionsArePushedBack) {
  const auto store = std::make_shared<LastingStore>();
  v1::RunSpec spec = TestSpec({"a", "b"}, 0, 6);
  spec.set_overlap(1);
  Begin(spec, store);
  for (FakeNode* node : {a_.get(), b_.get()}) {
    node->JoinAndWatch();
  }
  for (FakeNode* node : {a_.get(), b_.get()}) {
    node->ExpectOpened(1);
    node->ExpectOpened(2);
  }
  store->FailWith(absl::ResourceExhaustedError("no space left"));
  SubmitBoth(1);
  ASSERT_TRUE(store->WaitForWrites(2));  // so the first one has failed
  const absl::Status refused = a_->SubmitRandom(2, SeedOf(2, 0)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(ReasonOf(refused), "STORE_FULL");
  EXPECT_EQ(RetryAfterMsOf(refused), kRetryAfterMs);
  const StoreLook look = coordinator_->host->Look().store;
  EXPECT_TRUE(look.full);
  EXPECT_EQ(look.times_full, 1u);
  store->FailWith(absl::OkStatus());
  for (FakeNode* node : {a_.get(), b_.get()}) {
    node->ExpectUpdate(1);
    node->ExpectOpened(3);
  }
  EXPECT_FALSE(coordinator_->host->store_full());
  SubmitBoth(2);
  a_->ExpectUpdate(2);
  b_->ExpectUpdate(2);
}

// R5: after a failed write nobody is answered and nothing is written.
TEST_F(ResumeTest, AFailedDiskEndsTheProcess) {
  const auto store = std::make_shared<LastingStore>();
  Begin(TestSpec({"a", "b"}, 0, 6), store);
  a_->JoinAndWatch();
  b_->JoinAndWatch();
  a_->ExpectOpened(1);
  b_->ExpectOpened(1);
  store->FailWith(absl::InternalError("input/output error"));
  SubmitBoth(1);
  EXPECT_EQ(coordinator_->DiskFailure().code(), absl::StatusCode::kInternal);
  const WatchQueue::Taken end = a_->reader->Next();
  EXPECT_TRUE(end.closed && end.event == nullptr);
  EXPECT_FALSE(a_->Beat().ok());
  EXPECT_FALSE(a_->Join().ok());
  EXPECT_EQ(store->writes(), 1);
}

}  // namespace
}  // namespace isthmus
