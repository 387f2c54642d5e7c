#include "worker/rank_group.h"

#include "base/limits.h"
#include "base/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spec/manifest.h"
#include "tests/worker/agent_fixture.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class RankGroupTest : public ::testing::Test {
 protected:
  RankGroupTest() : spec_(SmallSpec({"a", "b"}, 4)), grid_(SmallGrid(spec_)), group_(Options(2)) {}

  RankGroupOptions Options(uint32_t ranks) {
    RankGroupOptions options;
    options.node = "a";
    options.ranks = ranks;
    options.spec = spec_;
    return options;
  }
  v1::JoinRunRequest Request(uint32_t rank, char group = 'g') {
    return RankJoin(grid_, rank, 2, GroupId(group));
  }
  absl::Status Admit(const v1::JoinRunRequest& request, int64_t now_ms = 0) {
    return group_.Admit(request, now_ms, &superseded_);
  }
  void ExpectRefused(const v1::JoinRunRequest& request, absl::StatusCode code,
                     const std::string& text, int64_t now_ms = 0) {
    const absl::Status status = Admit(request, now_ms);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }

  v1::RunSpec spec_;
  Grid grid_;
  RankGroup group_;
  bool superseded_ = false;
};

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

TEST_F(RankGroupTest, IsCompleteWhenAllRanksAreThereInAnyOrder) {
  ASSERT_TRUE(Admit(Request(1)).ok());
  EXPECT_FALSE(group_.complete());
  EXPECT_EQ(group_.Missing(), "rank 0 of 2");
  ASSERT_TRUE(Admit(Request(1)).ok()) << "the same request again";
  ASSERT_TRUE(Admit(Request(0)).ok());
  ASSERT_TRUE(group_.complete());
  EXPECT_EQ(group_.Missing(), "");
  const v1::JoinRunRequest join = group_.NodeJoin();
  EXPECT_EQ(join.node(), "a");
  EXPECT_EQ(join.role(), v1::ROLE_NODE);
  EXPECT_EQ(join.manifest().tensors_size(), 2);
  EXPECT_EQ(join.fingerprint(), Request(0).fingerprint());
  EXPECT_EQ(join.attempt(), 0U);
  EXPECT_FALSE(join.has_rank());
}

TEST_F(RankGroupTest, RanksHoldOutTheSameTokensAndTheNodeSaysWhich) {
  v1::JoinRunRequest request = Request(0);
  request.set_heldout_sha256("short");
  ExpectRefused(request, kInvalid, "heldout_sha256");
  request.set_heldout_sha256(std::string(32, 'h'));
  ASSERT_TRUE(Admit(request).ok());
  request = Request(1);
  request.set_heldout_sha256(std::string(32, 'i'));
  ExpectRefused(request, kPrecondition,
                "rank 1 holds out tokens 696969696969, rank 0 of node a holds out 686868686868");
  ExpectRefused(Request(1), kPrecondition, "rank 1 holds out tokens , ");
  request.set_heldout_sha256(std::string(32, 'h'));
  ASSERT_TRUE(Admit(request).ok());
  EXPECT_EQ(group_.NodeJoin().heldout_sha256(), std::string(32, 'h'));
}

TEST_F(RankGroupTest, RefusesAMalformedRequest) {
  v1::JoinRunRequest request = Request(0);
  request.set_run("other");
  ExpectRefused(request, absl::StatusCode::kNotFound, "run 'other' is not known");
  request = Request(0);
  request.set_node("b");
  ExpectRefused(request, absl::StatusCode::kNotFound, "this is the agent of node a");
  request = Request(0);
  request.mutable_rank()->set_ranks(4);
  ExpectRefused(request, kPrecondition, "one of 4 ranks, the agent of node a with --ranks 2");
  request = Request(0);
  request.mutable_rank()->set_rank(2);
  ExpectRefused(request, kInvalid, "rank 2 is not below the number of ranks, 2");
  request = Request(0);
  request.mutable_rank()->set_group_id("short");
  ExpectRefused(request, kInvalid, "group_id has 5 bytes; it has 16");
  request = Request(0);
  request.set_state_sha256("x");
  ExpectRefused(request, kInvalid, "state_sha256 has 1 bytes");
  request = Request(0);
  request.set_last_round(3);
  ExpectRefused(request, kInvalid, "last_update_sha256 has 0 bytes");
  request = Request(0);
  request.mutable_manifest()->mutable_tensors(1)->set_dtype(v1::DTYPE_BFLOAT16);
  ExpectRefused(request, kInvalid, "bfloat16");
  request = Request(0);
  request.set_fingerprint(Sha256Of("another model"));
  ExpectRefused(request, kInvalid, "is not that of the manifest");
  EXPECT_FALSE(group_.present(0));
}

TEST_F(RankGroupTest, RefusesMalformedSettings) {
  v1::JoinRunRequest request = Request(0);
  *request.mutable_rank()->add_settings() = request.rank().settings(0);
  ExpectRefused(request, kInvalid, "names setting 'data_bytes' twice");
  request.mutable_rank()->mutable_settings(1)->set_name("");
  ExpectRefused(request, kInvalid, "has 0 bytes of name");
  for (size_t i = 0; i <= kSettingsMax; ++i) request.mutable_rank()->add_settings();
  ExpectRefused(request, absl::StatusCode::kResourceExhausted, "the limit is 64");
}

TEST_F(RankGroupTest, RefusesRangesThatDoNotFit) {
  v1::JoinRunRequest request = Request(0);
  request.mutable_rank()->mutable_ranges(0)->set_end(grid_.chunks() + 1);
  ExpectRefused(request, kInvalid, "ranges ascend");
  request = Request(0);
  *request.mutable_rank()->add_ranges() = request.rank().ranges(0);
  ExpectRefused(request, kInvalid, "ranges ascend");
  ASSERT_TRUE(Admit(Request(0)).ok());
  request = Request(1);
  request.mutable_rank()->mutable_ranges(0)->set_begin(request.rank().ranges(0).begin() - 1);
  ExpectRefused(request, kPrecondition, "ranks 1 and 0 of node a both name some of chunks");
  request = Request(1);
  request.mutable_rank()->mutable_ranges(0)->set_begin(request.rank().ranges(0).begin() + 1);
  ExpectRefused(request, kPrecondition, "nobody holds h.0.");
  request = Request(0);
  request.mutable_rank()->mutable_ranges(0)->set_begin(1);
  ExpectRefused(request, kPrecondition, "has joined with other ranges");
}

TEST_F(RankGroupTest, AdmitsARankWithoutChunks) {
  v1::JoinRunRequest all = Request(0), nothing = Request(1);
  all.mutable_rank()->mutable_ranges(0)->set_end(grid_.chunks());
  nothing.mutable_rank()->clear_ranges();
  ASSERT_TRUE(Admit(nothing).ok());
  ASSERT_TRUE(Admit(all).ok());
  EXPECT_TRUE(group_.complete());
}

TEST_F(RankGroupTest, RefusesARankThatDiffersFromTheOthers) {
  ASSERT_TRUE(Admit(Request(0)).ok());
  v1::JoinRunRequest request = Request(1);
  request.mutable_rank()->mutable_settings(0)->set_value("1001");
  ExpectRefused(request, kPrecondition,
                "rank 1 and rank 0 of node a differ in data_bytes (1001 and 1000)");
  request.mutable_rank()->clear_settings();
  ExpectRefused(request, kPrecondition, "data_bytes (not set and 1000)");
  request = Request(1);
  request.set_state_sha256(Sha256Of("other"));
  ExpectRefused(request, kPrecondition, "rank 1 starts from state");
  request = Request(1);
  request.set_last_round(3);
  request.set_last_update_sha256(Sha256Of("3"));
  ExpectRefused(request, kPrecondition, "rank 1 holds round 3, rank 0 of node a holds round 0");
  request = Request(1);
  request.mutable_manifest()->mutable_tensors(0)->set_shape(0, 41);
  request.set_fingerprint(Fingerprint(request.manifest()));
  ExpectRefused(request, kPrecondition, "rank 1 trains another model");
  EXPECT_EQ(group_.Missing(), "rank 1 of 2");
}

TEST_F(RankGroupTest, TakesTheLeastRoundWhenAnAgentComesBack) {
  RankGroupOptions options = Options(2);
  options.knows_earlier_attempts = true;
  group_ = RankGroup(options);
  v1::JoinRunRequest ahead = Request(0), behind = Request(1);
  ahead.set_attempt(5);
  ahead.set_last_round(7);
  ahead.set_last_update_sha256(Sha256Of("7"));
  behind.set_attempt(5);
  behind.set_last_round(6);
  behind.set_last_update_sha256(Sha256Of("6"));
  ASSERT_TRUE(Admit(ahead).ok());
  ASSERT_TRUE(Admit(behind).ok());
  EXPECT_EQ(group_.NodeJoin().attempt(), 5U);
  EXPECT_EQ(group_.NodeJoin().last_round(), 6U);
  EXPECT_EQ(group_.NodeJoin().last_update_sha256(), Sha256Of("6"));
  EXPECT_EQ(group_.AcknowledgedByAll(), 6U);
  group_.Acknowledge(1, 8);
  EXPECT_EQ(group_.AcknowledgedByAll(), 7U);
  group_.Left(0);
  EXPECT_EQ(group_.AcknowledgedByAll(), 8U);
}

TEST_F(RankGroupTest, RefusesAnAttemptItKnowsNothingOf) {
  v1::JoinRunRequest request = Request(0);
  request.set_attempt(5);
  ExpectRefused(request, kPrecondition, "started again without its --state_dir");
}

TEST_F(RankGroupTest, KeepsAnotherGroupOutWhileARankLives) {
  ASSERT_TRUE(Admit(Request(0), 1000).ok());
  ASSERT_TRUE(Admit(Request(1), 1000).ok());
  ExpectRefused(Request(0, 'h'), absl::StatusCode::kUnavailable,
                "is being joined by ranks 0, 1 of another trainer group", 1001);
  group_.WatchOpened(0);
  group_.WatchOpened(1);
  ExpectRefused(Request(0, 'h'), absl::StatusCode::kAlreadyExists,
                "node a already has a live trainer group (ranks 0, 1 connected)", 100000);
  group_.WatchEnded(0);
  EXPECT_EQ(group_.Disconnected(), "rank 0 of 2 disconnected");
  ExpectRefused(Request(0, 'h'), absl::StatusCode::kAlreadyExists, "(rank 1 connected)", 100000);
  group_.WatchEnded(1);
  EXPECT_EQ(group_.Disconnected(), "ranks 0, 1 of 2 disconnected");
  // The old group stays when the new rank is refused.
  v1::JoinRunRequest bad = Request(0, 'h');
  bad.mutable_rank()->mutable_ranges(0)->set_end(grid_.chunks() + 1);
  ExpectRefused(bad, kInvalid, "ranges ascend");
  EXPECT_TRUE(group_.complete());
  ASSERT_TRUE(Admit(Request(0, 'h')).ok());
  EXPECT_TRUE(superseded_);
  EXPECT_EQ(group_.Missing(), "rank 1 of 2");
  ASSERT_TRUE(Admit(Request(1, 'h')).ok());
  EXPECT_FALSE(superseded_);
}

TEST_F(RankGroupTest, ASilentHalfGroupMakesRoom) {
  ASSERT_TRUE(Admit(Request(0), 1000).ok());
  ExpectRefused(Request(0, 'h'), absl::StatusCode::kUnavailable, "rank 0 of another",
                1000 + kRankJoinHoldMs - 1);
  EXPECT_GT(RetryAfterMsOf(Admit(Request(0, 'h'), 1001)), 0);
  EXPECT_TRUE(Admit(Request(0, 'h'), 1000 + kRankJoinHoldMs).ok());
}

TEST_F(RankGroupTest, IsOverWhenSomeHaveLeftAndNoneLives) {
  ASSERT_TRUE(Admit(Request(0), 0).ok());
  ASSERT_TRUE(Admit(Request(1), 0).ok());
  group_.WatchOpened(0);
  EXPECT_FALSE(group_.Over(false, 0));
  group_.Left(0);
  EXPECT_FALSE(group_.Over(false, 0)) << "rank 1 is about to watch";
  group_.WatchOpened(1);
  group_.WatchEnded(1);
  EXPECT_TRUE(group_.Over(false, 0));
  group_.Reset();
  EXPECT_FALSE(group_.Over(true, 0)) << "nobody was there";
  ASSERT_TRUE(Admit(Request(0), 0).ok());
  EXPECT_FALSE(group_.Over(false, kRankJoinHoldMs)) << "it may come back";
  EXPECT_TRUE(group_.Over(true, kRankJoinHoldMs));
}

}  // namespace
}  // namespace isthmus
