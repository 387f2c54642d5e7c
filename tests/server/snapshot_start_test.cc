// Runs that start from the state of the node that their spec names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"
#include "tests/server/snapshot_states.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StartNodeTest : public SnapshotFixture {
 protected:
  // Starts from node b.
  void SetUp() override {
    v1::RunSpec spec = TestSpec({"a", "b", "c"}, 2, 9);
    spec.mutable_snapshot()->set_start_node("b");
    Begin(spec, MakeMemoryStore());
  }
  void Hold(size_t number, const TestState& state) {
    node(number).join_request.set_state_sha256(state.facts.state_sha256());
  }
  void Keep(const TestState& state) {
    UploadAll(1, state);
    ASSERT_TRUE(host()->FinishSnapshot().ok());
    ASSERT_THAT(Kept(), ElementsAre(0));
  }

  const TestState first_ = TestState(0, "", 1), second_ = TestState(0, "", 2);
};

TEST_F(StartNodeTest, OthersWaitForItAndThenFetchIt) {
  const auto waits = [&] {
    const absl::Status status = node(0).Join();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(ReasonOf(status), "NO_START_STATE");
    EXPECT_EQ(RetryAfterMsOf(status), kRetryAfterMs);
    EXPECT_THAT(std::string(status.message()), HasSubstr("'a' waits for the state of node 'b'"));
  };
  waits();
  Hold(1, first_);
  node(1).JoinAndWatch();
  EXPECT_EQ(node(1).joined.snapshot(), v1::SNAPSHOT_DUTY_UPLOAD);
  waits();
  // One that holds that very state needs no snapshot.
  Hold(2, first_);
  ASSERT_TRUE(node(2).Join().ok());
  EXPECT_EQ(node(2).joined.snapshot(), v1::SNAPSHOT_DUTY_UNSPECIFIED);
  EXPECT_THAT(std::string(Fetch(0).status().message()), HasSubstr("comes from node 'b'"));
  Keep(first_);
  const absl::Status fetch = node(0).Join();
  EXPECT_EQ(ReasonOf(fetch), kReasonFetchSnapshot) << fetch;
  EXPECT_TRUE(AsksForSnapshot(fetch));
  EXPECT_EQ(Fetch(absl::nullopt, AllRanges(1, first_.facts.elements()))->values, first_.values);
  Hold(0, first_);
  ASSERT_TRUE(node(0).Join().ok());
  // It is there: nothing is to be uploaded again.
  ASSERT_TRUE(node(1).Join().ok());
  EXPECT_EQ(node(1).joined.snapshot(), v1::SNAPSHOT_DUTY_UNSPECIFIED);
}

TEST_F(StartNodeTest, AnotherModelIsRefusedBeforeAnythingIsFetched) {
  Hold(1, first_);
  node(1).JoinAndWatch();
  Keep(first_);
  node(0).join_request.mutable_manifest()->mutable_tensors(0)->set_shape(0, 131);
  node(0).join_request.set_fingerprint(Fingerprint(node(0).join_request.manifest()));
  EXPECT_EQ(ReasonOf(node(0).Join()), "MANIFEST_DIFFERS");
}

TEST_F(StartNodeTest, StartedAgainWithAnotherStateItUploadsThatOne) {
  Hold(1, first_);
  node(1).JoinAndWatch();
  const std::vector<v1::SnapshotPiece> pieces = first_.Pieces();
  ASSERT_TRUE(Upload(Header(1, first_), {pieces.begin(), pieces.begin() + 5}).ok());
  auto old_call = host()->BeginUpload(Header(1, first_));
  ASSERT_TRUE(old_call.ok()) << old_call.status();

  Hold(1, second_);
  node(1).JoinAndWatch();
  EXPECT_EQ(node(1).joined.snapshot(), v1::SNAPSHOT_DUTY_UPLOAD);
  // What was under way for the former state ends, before and after the new one has begun.
  EXPECT_FALSE((*old_call)->AddPiece(pieces[6]).ok());
  EXPECT_THAT(*Upload(Header(1, second_), {}),
              ElementsAre(SectionRange{0, 0, second_.facts.elements()}));
  EXPECT_FALSE((*old_call)->AddPiece(pieces[6]).ok());
  EXPECT_FALSE((*old_call)->End().ok());
  Keep(second_);
  EXPECT_EQ(Fetch(0, AllRanges(1, second_.facts.elements()))->values, second_.values);

  // Others start from that: from here on it is the run's.
  Hold(1, first_);
  const absl::Status late = node(1).Join();
  EXPECT_EQ(ReasonOf(late), "START_STATE_DIFFERS") << late;
}

// Trainers that are more or fewer than before cut their state in another way.
TEST_F(StartNodeTest, StartedAgainItMayCutItsStateInAnotherWay) {
  Hold(1, first_);
  node(1).JoinAndWatch();
  ASSERT_TRUE(Upload(Header(1, first_), {first_.Piece({0, 0, 1500})}).ok());
  node(1).join_request.set_attempt(node(1).joined.attempt());
  ASSERT_TRUE(node(1).Join().ok());  // the same trainers, behind another agent: it goes on
  EXPECT_EQ(node(1).joined.snapshot(), v1::SNAPSHOT_DUTY_UPLOAD);
  EXPECT_THAT(*Upload(Header(1, first_), {}),
              ElementsAre(SectionRange{0, 1500, first_.facts.elements()}));
  node(1).join_request.clear_attempt();
  node(1).JoinAndWatch();
  Keep(first_);
  EXPECT_EQ(Fetch(0, AllRanges(1, first_.facts.elements()))->values, first_.values);
}

// The run cannot open a round without it, so it does not wait for one.
TEST_F(StartNodeTest, AnUploadThatIsGivenUpIsAskedForAgainAtOnce) {
  Hold(1, first_);
  node(1).JoinAndWatch();
  std::vector<v1::SnapshotPiece> damaged = first_.Pieces();
  (*damaged[2].mutable_data())[5] ^= 4;
  EXPECT_THAT(*Upload(Header(1, first_), damaged), IsEmpty());
  auto old_call = host()->BeginUpload(Header(1, first_));
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  EXPECT_THAT(Kept(), IsEmpty());
  const absl::Status over = (*old_call)->AddPiece(damaged[3]);
  EXPECT_TRUE(IsRetryable(over)) << over;
  EXPECT_EQ(ReasonOf(over), "SNAPSHOT_BEGUN_ANEW");
  // All of it is missing, and nothing of the damaged one is left.
  EXPECT_THAT(*Upload(Header(1, first_), {}),
              ElementsAre(SectionRange{0, 0, first_.facts.elements()}));
  for (int i = 0; i < 3; ++i) {  // silence
    for (int64_t ms = 0; ms <= kSnapshotStallMs; ms += 1000) {
      coordinator_->clock.Advance(1000);
      host()->Tick();
      ASSERT_TRUE(node(1).Beat().ok());
    }
    ASSERT_TRUE(host()->FinishSnapshot().ok());
  }
  Keep(first_);
}

TEST_F(StartNodeTest, OneThatIsGoneIsAskedWhenItIsBack) {
  Hold(1, first_);
  node(1).JoinAndWatch();
  ASSERT_TRUE(node(1).Leave().ok());
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  EXPECT_EQ(ReasonOf(node(0).Join()), "NO_START_STATE");
  node(1).JoinAndWatch();
  EXPECT_EQ(node(1).joined.snapshot(), v1::SNAPSHOT_DUTY_UPLOAD);
  Keep(first_);
}

TEST_F(StartNodeTest, ARestartOfTheCoordinatorLosesNothing) {
  Hold(1, first_);
  node(1).JoinAndWatch();
  const std::vector<v1::SnapshotPiece> pieces = first_.Pieces();
  ASSERT_TRUE(Upload(Header(1, first_), {pieces.begin(), pieces.begin() + 5}).ok());
  Restart();
  EXPECT_EQ(ReasonOf(node(0).Join()), "NO_START_STATE");
  EXPECT_THAT(*Upload(Header(1, first_), {}),
              ElementsAre(SectionRange{0, 5000, first_.facts.elements()}));
  Keep(first_);
  Restart();
  EXPECT_EQ(ReasonOf(node(0).Join()), kReasonFetchSnapshot);
  Hold(0, first_);
  node(0).JoinAndWatch();
  node(1).Watch();
  EXPECT_THAT(Round(1, {0, 1}),
              ElementsAre(v1::SNAPSHOT_DUTY_UNSPECIFIED, v1::SNAPSHOT_DUTY_UNSPECIFIED));
}

}  // namespace
}  // namespace isthmus
