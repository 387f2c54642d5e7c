// FetchSnapshot at the coordinator, who is told to fetch, and runs that start from one node's
// state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "tests/server/snapshot_states.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A store that is said to last, whose writes may find a full disk.
class FullStore final : public Store {
 public:
  explicit FullStore(const StoreLimits& limits = StoreLimits()) : store_(MakeMemoryStore(limits)) {}
  absl::Status Write(const StoreBatch& batch) override {
    if (full) return absl::ResourceExhaustedError("no space left");
    StoreBatch written = batch;
    if (forgets) written.needed_after.reset();
    return store_->Write(written);
  }
  absl::Status WritePiece(uint64_t round, const SectionRange& range,
                          absl::string_view data) override {
    return full ? absl::ResourceExhaustedError("no space left")
                : store_->WritePiece(round, range, data);
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
  std::vector<SectionRange> Pieces(uint64_t round) const override {
    return hides_pieces ? std::vector<SectionRange>() : store_->Pieces(round);
  }
  absl::StatusOr<std::string> ReadPiece(uint64_t round, const SectionRange& range) const override {
    return store_->ReadPiece(round, range);
  }
  absl::StatusOr<std::vector<float>> ReadAggregate(uint64_t round,
                                                   uint64_t elements) const override {
    return store_->ReadAggregate(round, elements);
  }

  bool full = false;
  bool hides_pieces = false;
  // As a folder that an earlier version wrote: updates went that are needed since.
  bool forgets = false;

 private:
  const std::unique_ptr<Store> store_;
};

StoreLimits Keep(uint64_t rounds) { return {rounds, uint64_t{1} << 30, kStoredDigestRounds}; }

std::shared_ptr<FullStore> ForgetfulStore(uint64_t rounds) {
  auto store = std::make_shared<FullStore>(Keep(rounds));
  store->forgets = true;
  return store;
}

class SnapshotsTest : public SnapshotFixture {
 protected:
  void BeginRun(const v1::RunSpec& spec, std::shared_ptr<Store> store,
                const std::vector<size_t>& members) {
    Begin(spec, std::move(store));
    for (size_t i : members) node(i).JoinAndWatch();
  }
  // One node's state of the last round becomes the snapshot.
  TestState Snapshot(size_t number, uint32_t seed = 1) {
    TestState state = StateOf(seed);
    UploadAll(number, state);
    EXPECT_TRUE(host()->FinishSnapshot().ok());
    EXPECT_TRUE(!Kept().empty() && Kept().back() == state.facts.round());
    return state;
  }
  // Node `number` as one that holds the state after that round.
  void Holds(size_t number, uint64_t round) {
    node(number).join_request.set_last_round(round);
    node(number).join_request.set_last_update_sha256(*store_->RecordSha256(round));
  }
  v1::RunSpec Spec(const std::vector<std::string>& nodes, uint32_t quorum, uint64_t every,
                   uint64_t steps = 20) {
    v1::RunSpec spec = TestSpec(nodes, quorum, steps);
    spec.mutable_snapshot()->set_every_rounds(every);
    return spec;
  }
};

TEST_F(SnapshotsTest, WhatIsFetchedIsWhatWasAskedFor) {
  BeginRun(Spec({"a"}, 0, 2), MakeMemoryStore(), {0});
  absl::Status none = Fetch(absl::nullopt).status();
  EXPECT_TRUE(absl::IsUnavailable(none)) << none;
  EXPECT_EQ(ReasonOf(none), "NO_SNAPSHOT");
  EXPECT_EQ(RetryAfterMsOf(none), kRetryAfterMs);
  EXPECT_THAT(std::string(none.message()), HasSubstr("one is made every 2 rounds"));
  Round(1, {0});
  none = Fetch(2).status();
  EXPECT_THAT(std::string(none.message()), HasSubstr("that of round 2 comes from node 'a'"));
  Round(2, {0});
  const TestState state = Snapshot(0);
  const uint64_t elements = state.facts.elements();

  EXPECT_EQ(Fetch(absl::nullopt)->facts.SerializeAsString(), state.facts.SerializeAsString());
  EXPECT_EQ(Fetch(2)->values, "");
  EXPECT_EQ(Fetch(2, AllRanges(1, elements))->values, state.values);
  // Pieces are of 1,000 elements: inside of one, over two, over many, at the seams, the last.
  const std::vector<SectionRange> ranges = {
      {0, 10, 20},     {0, 20, 21},     {0, 990, 1010},  {0, 2000, 3000},
      {0, 3999, 4000}, {0, 4000, 4001}, {0, 4500, 9100}, {0, elements - 1, elements}};
  const auto fetched = Fetch(2, ranges);
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  std::string expected;
  for (const SectionRange& range : ranges) expected += state.Values(range);
  EXPECT_EQ(fetched->values, expected);
  EXPECT_THAT(Missing(ranges, fetched->ranges, 9), IsEmpty());
  EXPECT_THAT(Missing(fetched->ranges, ranges, 9), IsEmpty());

  const absl::Status unknown = Fetch(1, ranges).status();
  EXPECT_TRUE(absl::IsNotFound(unknown)) << unknown;
  EXPECT_EQ(ReasonOf(unknown), "NO_SUCH_SNAPSHOT");
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("the newest is of round 2"));
  for (const SectionRange& wrong :
       std::vector<SectionRange>{{0, 0, elements + 1}, {1, 0, 1}, {0, 5, 5}, {0, 7, 6}}) {
    const absl::Status refused = Fetch(2, {wrong}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_EQ(ReasonOf(refused), "SNAPSHOT_RANGES");
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Fetch(2, {{0, 5, 6}, {0, 5, 6}}).status()));
  v1::FetchSnapshotRequest other;
  other.set_run("other");
  EXPECT_EQ(ReasonOf(host()->BeginFetch(other).status()), "UNKNOWN_RUN");
}

TEST_F(SnapshotsTest, TwoAreKeptAndAFetchOfOneThatGoesSaysSo) {
  BeginRun(Spec({"a"}, 0, 1), MakeMemoryStore(), {0});
  Round(1, {0});
  v1::FetchSnapshotRequest request;
  std::unique_ptr<SnapshotSource> slow;
  for (uint64_t round = 2; round <= 6; round += 2) {
    Round(round, {0});
    const TestState state = Snapshot(0, static_cast<uint32_t>(round));
    if (round == 2) {
      WriteRanges(AllRanges(1, state.facts.elements()), request.mutable_ranges());
      slow = *host()->BeginFetch(request);
      ASSERT_TRUE(slow->Next().ok());  // the facts
      ASSERT_TRUE((*slow->Next())->has_piece());
    }
    Round(round + 1, {0});  // the commit that plans the next
  }
  EXPECT_THAT(Kept(), ElementsAre(4, 6));
  EXPECT_TRUE(Fetch(4).ok());
  EXPECT_EQ(ReasonOf(Fetch(2).status()), "NO_SUCH_SNAPSHOT");
  EXPECT_TRUE(absl::IsNotFound(slow->Next().status()));
}

// A stream that ends early would look like a snapshot with holes.
TEST_F(SnapshotsTest, PiecesThatCannotBeListedAreAnError) {
  const auto store = std::make_shared<FullStore>();
  BeginRun(Spec({"a"}, 0, 1), store, {0});
  Round(1, {0});
  Round(2, {0});
  const TestState state = Snapshot(0);
  store->hides_pieces = true;
  const absl::Status status = Fetch(2, AllRanges(1, state.facts.elements())).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_GE(RetryAfterMsOf(status), 0);
  EXPECT_TRUE(Fetch(2).ok());  // only the facts
}

TEST_F(SnapshotsTest, WhoIsTooFarBehindIsToldToFetch) {
  BeginRun(Spec({"a", "b"}, 1, 5), ForgetfulStore(4), {0});
  for (uint64_t round = 1; round <= 3; ++round) Round(round, {0});
  // keep_rounds is 4, so a state is wanted every 2 rounds, whatever the spec says.
  ASSERT_TRUE(node(1).Join().ok());  // rounds 1 to 3 are kept
  ASSERT_TRUE(node(1).Leave().ok());
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  for (uint64_t round = 4; round <= 6; ++round) Round(round, {0});
  const absl::Status wait = node(1).Join();
  EXPECT_TRUE(absl::IsUnavailable(wait)) << wait;
  EXPECT_EQ(ReasonOf(wait), "NO_SNAPSHOT");
  EXPECT_EQ(RetryAfterMsOf(wait), kRetryAfterMs);
  EXPECT_THAT(std::string(wait.message()),
              AllOf(HasSubstr("node 'b' holds round 0, the run is at round 6"),
                    HasSubstr("no longer kept")));
  EXPECT_TRUE(IsRetryable(wait));
}

TEST_F(SnapshotsTest, AJoinerThatNeedsOneMakesTheNextRoundsStateWanted) {
  v1::RunSpec spec = Spec({"a", "b"}, 1, 1000);
  BeginRun(spec, MakeMemoryStore(Keep(100)), {0});
  // The limits were lowered while it was away.
  for (uint64_t round = 1; round <= 5; ++round) Round(round, {0});
  const auto small = ForgetfulStore(2);
  BeginRun(spec, small, {0});
  std::vector<v1::SnapshotDuty> duties;
  duties = Round(1, {0});
  // With 2 kept rounds each state is wanted; none comes.
  EXPECT_THAT(Round(2, {0}), ElementsAre(v1::SNAPSHOT_DUTY_UPLOAD));
  for (uint64_t round = 3; round <= 5; ++round) {
    EXPECT_THAT(Round(round, {0}), ElementsAre(v1::SNAPSHOT_DUTY_UNSPECIFIED));
  }
  EXPECT_EQ(ReasonOf(node(1).Join()), "NO_SNAPSHOT");
  // The one under way would be of no use, and is given up when it does not come.
  coordinator_->clock.Advance(kSnapshotStallMs);
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  ASSERT_TRUE(node(0).Join().ok());  // its lease has ended meanwhile, perhaps
  node(0).Watch();
  Round(6, {0});
  EXPECT_THAT(Round(7, {0}), ElementsAre(v1::SNAPSHOT_DUTY_UPLOAD));
  const TestState state = Snapshot(0);
  const absl::Status fetch = node(1).Join();
  EXPECT_TRUE(AsksForSnapshot(fetch)) << fetch;
  EXPECT_EQ(ReasonOf(fetch), kReasonFetchSnapshot);
  EXPECT_THAT(std::string(fetch.message()),
              AllOf(HasSubstr("node 'b' holds round 0, the run is at round 7"),
                    HasSubstr("fetch the snapshot of round 7"),
                    HasSubstr(absl::StrCat(state.values.size(), " bytes"))));
  Holds(1, 7);
  node(1).join_request.set_state_sha256(state.facts.state_sha256());
  ASSERT_TRUE(node(1).Join().ok());
}

TEST_F(SnapshotsTest, UpdatesThatAreMoreThanASnapshotAreNotCaughtUpBy) {
  BeginRun(Spec({"a", "b"}, 1, 9, 30), MakeMemoryStore(), {0});
  for (uint64_t round = 1; round <= 9; ++round) Round(round, {0});
  const TestState state = Snapshot(0);
  // A round costs 4 KiB and its update; the state has 56 KB.
  for (uint64_t round = 10; round <= 14; ++round) Round(round, {0});
  ASSERT_GT(store_->BytesAfter(0), state.values.size() + store_->BytesAfter(9));
  const absl::Status fetch = node(1).Join();
  EXPECT_EQ(ReasonOf(fetch), kReasonFetchSnapshot) << fetch;
  EXPECT_THAT(std::string(fetch.message()),
              HasSubstr("the updates since are more than a snapshot"));
  Holds(1, 8);
  EXPECT_TRUE(node(1).Join().ok());
}

TEST_F(SnapshotsTest, InDeterministicModeUpdatesAreCaughtUpByWhileTheyAreKept) {
  v1::RunSpec spec = Spec({"a", "b"}, 0, 3);
  spec.set_deterministic(true);
  BeginRun(spec, MakeMemoryStore(), {0, 1});
  for (uint64_t round = 1; round <= 3; ++round) Round(round, {0, 1});
  const TestState state = StateOf(1);
  UploadAll(0, state);
  ASSERT_TRUE(Report(1, state).ok());
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  ASSERT_THAT(Kept(), ElementsAre(3));
  for (uint64_t round = 4; round <= 9; ++round) Round(round, {0, 1});
  Holds(1, 1);
  EXPECT_TRUE(node(1).Join().ok());
}

TEST_F(SnapshotsTest, NoSnapshotComesOfARunThatIsFinished) {
  BeginRun(Spec({"a", "b"}, 1, 1000, 6), ForgetfulStore(2), {0});
  for (uint64_t round = 1; round <= 6; ++round) Round(round, {0});
  ASSERT_TRUE(host()->finished());
  // That of the last round may still come.
  absl::Status late = node(1).Join();
  EXPECT_EQ(ReasonOf(late), "NO_SNAPSHOT") << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("The state after the last round is on its"));
  v1::LeaveRunRequest leave;
  leave.set_node("a");
  leave.set_incarnation(node(0).joined.incarnation());
  ASSERT_TRUE(host()->LeaveRun(leave).ok());
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  late = node(1).Join();
  EXPECT_TRUE(absl::IsFailedPrecondition(late)) << late;
  EXPECT_EQ(ReasonOf(late), "TOO_LATE");
  EXPECT_THAT(std::string(late.message()), HasSubstr("the run is finished"));
  EXPECT_EQ(ReasonOf(host()->RequestSnapshot().status()), "RUN_ENDS");
}

TEST_F(SnapshotsTest, NodesThatDriftHaveNoSnapshots) {
  v1::RunSpec spec = TestSpec({"a", "b"}, 1, 20);
  spec.set_allow_drift(true);
  // Half of the bytes kept: where states are common, one would be wanted.
  BeginRun(spec, MakeMemoryStore({4, 30000, kStoredDigestRounds}), {0});
  for (uint64_t round = 1; round <= 8; ++round) {
    EXPECT_THAT(Round(round, {0}), ElementsAre(v1::SNAPSHOT_DUTY_UNSPECIFIED));
  }
  const absl::Status late = node(1).Join();
  EXPECT_EQ(ReasonOf(late), "TOO_LATE") << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("allow_drift"));
  EXPECT_EQ(ReasonOf(host()->RequestSnapshot().status()), "NO_COMMON_STATE");
}

TEST_F(SnapshotsTest, OneThatIsRequestedIsOfTheRoundThatWasNamed) {
  BeginRun(Spec({"a"}, 0, 1000), MakeMemoryStore(), {0});
  Round(1, {0});
  const auto round = host()->RequestSnapshot();  // round 2 is open already
  ASSERT_TRUE(round.ok()) << round.status();
  EXPECT_EQ(*round, 3u);
  EXPECT_THAT(Round(2, {0}), ElementsAre(v1::SNAPSHOT_DUTY_UNSPECIFIED));
  EXPECT_THAT(Round(3, {0}), ElementsAre(v1::SNAPSHOT_DUTY_UPLOAD));
  Snapshot(0);
  Round(4, {0});
  EXPECT_THAT(Round(5, {0}), ElementsAre(v1::SNAPSHOT_DUTY_UNSPECIFIED));
}

// Updates by bytes outgrow their budget long before the schedule wants a state.
TEST_F(SnapshotsTest, HalfOfTheBytesKeptMakeAStateWanted) {
  BeginRun(Spec({"a"}, 0, 1000), MakeMemoryStore({1000, 60000, kStoredDigestRounds}), {0});
  std::vector<uint64_t> uploads;
  for (uint64_t round = 1; round <= 12; ++round) {
    if (Round(round, {0})[0] != v1::SNAPSHOT_DUTY_UPLOAD) continue;
    uploads.push_back(round);
    Snapshot(0);
    // One is there before its updates go.
    EXPECT_GE(round + 1, store_->first_round());
  }
  EXPECT_GE(uploads.size(), 2u);
}

TEST_F(SnapshotsTest, AFullDiskMakesASnapshotWait) {
  const auto store = std::make_shared<FullStore>();
  BeginRun(Spec({"a"}, 0, 1), store, {0});
  Round(1, {0});
  Round(2, {0});
  const TestState state = StateOf(1);
  const std::vector<v1::SnapshotPiece> pieces = state.Pieces();
  ASSERT_TRUE(Upload(Header(0, state), {pieces.begin(), pieces.begin() + 5}).ok());
  store->full = true;
  const absl::Status full = Upload(Header(0, state), {pieces[5]}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(ReasonOf(full), "STORE_FULL");
  EXPECT_EQ(RetryAfterMsOf(full), kRetryAfterMs);
  store->full = false;
  EXPECT_THAT(*Upload(Header(0, state), {}),
              ElementsAre(SectionRange{0, 5000, state.facts.elements()}));
  UploadAll(0, state);
  store->full = true;
  EXPECT_TRUE(absl::IsResourceExhausted(host()->FinishSnapshot()));
  EXPECT_EQ(ReasonOf(Fetch(2).status()), "NO_SNAPSHOT");
  EXPECT_TRUE(node(0).Beat(2).ok());
  store->full = false;
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  EXPECT_EQ(Fetch(2, AllRanges(1, state.facts.elements()))->values, state.values);
}

}  // namespace
}  // namespace isthmus
