#include "worker/bundle.h"

#include <algorithm>
#include <random>

#include "base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/agent_fixture.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

class BundleTest : public ::testing::Test {
 protected:
  BundleTest() : spec_(SmallSpec({"a"}, 4)), grid_(SmallGrid(spec_)) { Renew(2); }

  void Renew(uint32_t ranks, size_t bytes_max = kOpenContributionBytesMax) {
    BundleOptions options;
    options.round = 7;
    options.base_round = 6;
    options.attempt = 3;
    options.lr_bits = 0x3a83126f;
    options.bytes_max = bytes_max;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      options.rank_ranges.push_back(PartOf(grid_, rank, ranks));
    }
    ranks_ = ranks;
    bundle_ = std::make_unique<Bundle>(options);
  }
  std::vector<std::string> Pieces(uint32_t rank, uint64_t seed = 1) {
    return PiecesOf(grid_, PartOf(grid_, rank, ranks_), seed);
  }
  absl::Status Add(uint32_t rank, const std::string& piece) {
    const auto view = CheckRankPiece(grid_, piece);
    if (!view.ok()) return view.status();
    return bundle_->Add(rank, *view, piece);
  }
  void Send(uint32_t rank, uint64_t seed = 1) {
    ASSERT_TRUE(bundle_->Begin(rank, {100, 1}).ok());
    for (const std::string& piece : Pieces(rank, seed)) ASSERT_TRUE(Add(rank, piece).ok());
    ASSERT_TRUE(bundle_->End(rank).ok());
  }
  std::string Digest(const Submission& submission) {
    std::vector<const std::string*> pieces;
    for (const std::string& piece : submission.pieces) pieces.push_back(&piece);
    const auto digest = PayloadDigest(grid_, pieces);
    EXPECT_TRUE(digest.ok()) << digest.status();
    return digest.value_or("");
  }

  v1::RunSpec spec_;
  Grid grid_;
  uint32_t ranks_ = 0;
  std::unique_ptr<Bundle> bundle_;
};

constexpr auto kExists = absl::StatusCode::kAlreadyExists;

TEST_F(BundleTest, MakesTheSameContributionForEveryCutAndOrder) {
  std::string expected;
  for (const uint32_t ranks : {1U, 2U, 3U}) {
    for (const bool backwards : {false, true}) {
      Renew(ranks);
      for (uint32_t i = 0; i < ranks; ++i) {
        EXPECT_EQ(bundle_->Take(), nullptr);
        Send(backwards ? ranks - 1 - i : i);
      }
      const auto submission = bundle_->Take();
      ASSERT_NE(submission, nullptr);
      EXPECT_EQ(bundle_->Take(), nullptr) << "once";
      EXPECT_EQ(submission->round, 7U);
      EXPECT_EQ(submission->base_round, 6U);
      EXPECT_EQ(submission->attempt, 3U);
      EXPECT_EQ(submission->work.tokens, 100U * ranks);
      EXPECT_EQ(submission->work.steps, 1U);
      ASSERT_EQ(submission->ranges.size(), 1U);
      EXPECT_EQ(submission->ranges[0].begin(), 0U);
      EXPECT_EQ(submission->ranges[0].end(), grid_.chunks());
      const std::string digest = Digest(*submission);
      if (expected.empty()) expected = digest;
      EXPECT_EQ(digest, expected);
    }
  }
}

TEST_F(BundleTest, RanksTakeTheSameStepsAndTheirTokensAdd) {
  ASSERT_TRUE(bundle_->Begin(0, {100, 12}).ok());
  const absl::Status other = bundle_->Begin(1, {100, 11});
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.message()),
              HasSubstr("rank 1 says 11 steps for round 7, rank 0 12; all ranks"));
  ASSERT_TRUE(bundle_->Begin(1, {50, 12}).ok());
  ASSERT_TRUE(bundle_->Begin(0, {100, 12}).ok()) << "again";
  for (const uint32_t rank : {0U, 1U}) {
    for (const std::string& piece : Pieces(rank)) ASSERT_TRUE(Add(rank, piece).ok());
    ASSERT_TRUE(bundle_->End(rank).ok());
  }
  const auto submission = bundle_->Take();
  ASSERT_NE(submission, nullptr);
  EXPECT_EQ(submission->work.tokens, 150U);
  EXPECT_EQ(submission->work.steps, 12U);
  EXPECT_EQ(submission->lr_bits, 0x3a83126fU);
}

TEST_F(BundleTest, ShowsWhatLacks) {
  EXPECT_TRUE(bundle_->NoneSent());
  EXPECT_EQ(bundle_->Lacking(), "no rank of 2 has sent its part");
  Send(0);
  EXPECT_FALSE(bundle_->NoneSent());
  EXPECT_TRUE(bundle_->Settled(0));
  EXPECT_FALSE(bundle_->Settled(1));
  EXPECT_EQ(bundle_->Lacking(), "rank 1 of 2 has not sent its part");
  Renew(1);
  ASSERT_TRUE(bundle_->Begin(0, {100, 1}).ok());
  const std::vector<std::string> pieces = Pieces(0);
  ASSERT_GT(pieces.size(), 1U);
  ASSERT_TRUE(Add(0, pieces[1]).ok());
  const absl::Status early = bundle_->End(0);
  EXPECT_EQ(early.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(early.message()), HasSubstr("ended its part of round 7 without chunk"));
}

TEST_F(BundleTest, TheSameAgainIsTheSameOtherBytesAreRefused) {
  Send(0);
  Send(0);
  const std::vector<std::string> others = Pieces(0, 2);
  EXPECT_EQ(Add(0, others[0]).code(), kExists);
  EXPECT_EQ(bundle_->Begin(0, {101, 1}).code(), kExists);
  // Cut elsewhere: the same chunks in another piece.
  PieceWriter writer(&grid_, v1::PAYLOAD_CODEC_COMPONENTS, 64);
  Components components;
  for (uint32_t i = 0; i < grid_.Place(1).k; ++i) {
    components.index.push_back(i);
    components.value.push_back(1.0F);
  }
  writer.Append(1, components);
  EXPECT_EQ(Add(0, writer.Finish()[0]).code(), kExists);
  Send(1);
  ASSERT_NE(bundle_->Take(), nullptr);
  Send(0);  // its bytes have gone; their hashes are enough
  EXPECT_EQ(Add(0, others[0]).code(), kExists);
}

TEST_F(BundleTest, RefusesPiecesThatDoNotBelongHere) {
  ASSERT_TRUE(bundle_->Begin(0, {1, 1}).ok());
  EXPECT_EQ(Add(0, Pieces(1)[0]).code(), absl::StatusCode::kFailedPrecondition);
  std::string damaged = Pieces(0)[0];
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  EXPECT_EQ(Add(0, damaged).code(), absl::StatusCode::kInvalidArgument);
  const absl::Status nan = Add(0, WithNan(Pieces(0)[0]));
  EXPECT_EQ(nan.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(nan.message()), HasSubstr("h.0.weight"));
  PieceWriter merged(&grid_, v1::PAYLOAD_CODEC_MERGED, kPieceBytesMax);
  merged.Append(0, Components());
  EXPECT_EQ(Add(0, merged.Finish()[0]).code(), absl::StatusCode::kInvalidArgument);
  Renew(2, 10);
  EXPECT_EQ(Add(0, Pieces(0)[0]).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(BundleTest, OneAbstentionIsTheNodes) {
  Send(0);
  EXPECT_EQ(bundle_->Abstain(0, "too late").code(), kExists);
  ASSERT_TRUE(bundle_->Abstain(1, "non-finite gradient in 'h.0.weight'").ok());
  ASSERT_TRUE(bundle_->Abstain(1, "non-finite gradient in 'h.0.weight'").ok()) << "again";
  EXPECT_EQ(bundle_->Begin(1, {1, 1}).code(), kExists);
  EXPECT_EQ(Add(1, Pieces(1)[0]).code(), kExists);
  EXPECT_TRUE(bundle_->Settled(0));
  const auto submission = bundle_->Take();
  ASSERT_NE(submission, nullptr);
  EXPECT_EQ(submission->abstain_reason, "rank 1: non-finite gradient in 'h.0.weight'");
  EXPECT_TRUE(submission->pieces.empty());
  EXPECT_TRUE(submission->ranges.empty());
  // What the others send now is taken and dropped.
  Renew(2);
  ASSERT_TRUE(bundle_->Abstain(1, std::string(1000, 'x')).ok());
  Send(0);
  EXPECT_EQ(bundle_->held(0).chunks(), 0U);
  EXPECT_EQ(bundle_->Take()->abstain_reason.size(), kReasonBytesMax);
}

TEST_F(BundleTest, ARefusedPartMakesTheNodeAbstainUnlessItIsComplete) {
  Send(0);
  bundle_->Refuse(0, "other bytes");
  EXPECT_FALSE(bundle_->abstains());
  bundle_->Refuse(1, "not finite");
  ASSERT_TRUE(bundle_->abstains());
  EXPECT_EQ(bundle_->Take()->abstain_reason, "rank 1: not finite");
}

}  // namespace
}  // namespace isthmus
