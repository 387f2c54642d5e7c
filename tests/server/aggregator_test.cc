// Contributions as bytes: checked, held, merged.
#include "server/aggregator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>

#include "base/limits.h"
#include "server/fold.h"
#include "tests/server/payloads.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

std::vector<HeldPiece> Checked(const Grid& grid, const std::vector<std::string>& pieces) {
  std::vector<HeldPiece> checked;
  for (const std::string& piece : pieces) {
    auto held = CheckContributionPiece(grid, piece);
    EXPECT_TRUE(held.ok()) << held.status();
    checked.push_back(*std::move(held));
  }
  return checked;
}

TEST(Fold, SameBytesForEveryArrivalOrderCutAndThreadCount) {
  const uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto grid = TestGrid();
  for (size_t count = 1; count <= 5; ++count) {
    std::vector<uint32_t> seeds(count);
    for (uint32_t& s : seeds) s = static_cast<uint32_t>(random());
    std::vector<std::vector<std::string>> nodes;
    for (uint32_t s : seeds) nodes.push_back(RandomContribution(*grid, s));
    const std::vector<std::vector<float>> expected = NaiveMerge(*grid, nodes);
    std::vector<std::string> first;
    for (int threads : {1, 2, 7}) {
      // Nodes arrive in any order, pieces in any order and cut in another way each time.
      Aggregator aggregator(grid);
      std::vector<size_t> order(count);
      std::iota(order.begin(), order.end(), size_t{0});
      std::shuffle(order.begin(), order.end(), random);
      for (size_t node : order) {
        auto pieces = RandomContribution(*grid, seeds[node], 300 + random() % 3000);
        std::shuffle(pieces.begin(), pieces.end(), random);
        const std::string name(1, static_cast<char>('a' + node));
        ASSERT_TRUE(aggregator.Begin(name, 1).ok());
        for (HeldPiece& piece : Checked(*grid, pieces)) {
          ASSERT_TRUE(aggregator.Add(name, 1, std::move(piece)).ok());
        }
        ASSERT_TRUE(aggregator.Covers(name));
      }
      std::vector<std::vector<HeldPiece>> held;
      for (size_t node = 0; node < count; ++node) {
        held.push_back(aggregator.Pieces(std::string(1, static_cast<char>('a' + node))));
      }
      const auto merged = FoldContributions(*grid, held, threads).pieces;
      if (first.empty()) first = merged;
      EXPECT_TRUE(merged == first) << count << " nodes, " << threads << " threads";
    }
    const auto dense = Dense(*grid, first);
    for (uint64_t chunk = 0; chunk < grid->chunks(); ++chunk) {
      EXPECT_TRUE(SameBits(dense[chunk], expected[chunk])) << grid->Describe(chunk);
    }
  }
}

TEST(ContributionSizes, AreSumsOverChunks) {
  const auto grid = TestGrid();
  const ContributionSizes sizes(grid);
  std::vector<ByteRange> before = {{}};
  for (uint64_t chunk = 0; chunk < grid->chunks(); ++chunk) {
    const ByteRange bytes = grid->ContributionBytes(chunk);
    before.push_back({before.back().least + bytes.least, before.back().most + bytes.most});
  }
  EXPECT_EQ(sizes.total(), before.back().most);
  for (uint64_t begin = 0; begin <= grid->chunks(); ++begin) {
    for (uint64_t end = begin; end <= grid->chunks(); ++end) {
      const ByteRange expected = {before[end].least - before[begin].least,
                                  before[end].most - before[begin].most};
      ASSERT_TRUE(sizes.Bytes(begin, end) == expected) << begin << " " << end;
    }
  }
}

TEST(ContributionDigest, DoesNotDependOnThePieces) {
  const auto grid = TestGrid();
  const auto digest = [&](uint32_t seed, size_t piece_bytes) {
    const auto pieces = RandomContribution(*grid, seed, piece_bytes);
    const std::string own = ContributionDigest(*grid, Checked(*grid, pieces));
    EXPECT_EQ(own, DigestOf(*grid, pieces));
    return own;
  };
  EXPECT_EQ(digest(7, 900), digest(7, 5000));
  EXPECT_NE(digest(7, 900), digest(8, 900));
}

TEST(CheckContributionPiece, RefusesWhatIsNotSound) {
  const auto grid = TestGrid();
  const std::string good = RandomContribution(*grid, 1).front();
  ASSERT_TRUE(CheckContributionPiece(*grid, good).ok());

  std::string nan = good;
  const float value = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(&nan[nan.size() - sizeof(value)], &value, sizeof(value));
  absl::Status status = CheckContributionPiece(*grid, Resealed(nan)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("bias, chunk"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("finite"));

  EXPECT_TRUE(absl::IsInvalidArgument(CheckContributionPiece(*grid, nan).status()));  // checksum
  EXPECT_TRUE(absl::IsInvalidArgument(
      CheckContributionPiece(*grid, Resealed(good.substr(0, good.size() - 3))).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(CheckContributionPiece(*grid, Resealed(good + "x")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckContributionPiece(*grid, "").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      CheckContributionPiece(*grid, std::string(kPieceBytesMax + 1, 'x')).status()));

  PieceWriter merged(grid.get(), v1::PAYLOAD_CODEC_MERGED, 1000);
  merged.Append(0, Components{{1}, {2.0f}});
  status = CheckContributionPiece(*grid, merged.Finish().front()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(ReasonOf(status), "WRONG_CODEC");
}

class AggregatorTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Grid> grid_ = TestGrid();
  Aggregator aggregator_{grid_};
};

TEST_F(AggregatorTest, TheSamePieceAgainIsFineOtherBytesAreNot) {
  const auto pieces = Checked(*grid_, RandomContribution(*grid_, 1));
  const auto others = Checked(*grid_, RandomContribution(*grid_, 2));
  ASSERT_TRUE(aggregator_.Begin("a", 1).ok());
  ASSERT_TRUE(aggregator_.Add("a", 1, pieces[0]).ok());
  const size_t bytes = aggregator_.bytes();
  EXPECT_TRUE(aggregator_.Add("a", 1, pieces[0]).ok());
  EXPECT_EQ(aggregator_.bytes(), bytes);
  const absl::Status status = aggregator_.Add("a", 1, others[0]);
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_EQ(ReasonOf(status), "OTHER_BYTES");
}

TEST_F(AggregatorTest, APieceThatIsCutInAnotherWayIsRefused) {
  ASSERT_TRUE(aggregator_.Begin("a", 1).ok());
  ASSERT_TRUE(aggregator_.Add("a", 1, Checked(*grid_, RandomContribution(*grid_, 1, 900))[0]).ok());
  const absl::Status status =
      aggregator_.Add("a", 1, Checked(*grid_, RandomContribution(*grid_, 1, 600))[0]);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(ReasonOf(status), "PIECES_OVERLAP");
}

TEST_F(AggregatorTest, ANewerAttemptDiscardsAnIncompleteOne) {
  const auto pieces = Checked(*grid_, RandomContribution(*grid_, 1));
  ASSERT_TRUE(aggregator_.Begin("a", 1).ok());
  ASSERT_TRUE(aggregator_.Add("a", 1, pieces[0]).ok());
  ASSERT_TRUE(aggregator_.Begin("a", 2).ok());
  EXPECT_EQ(aggregator_.bytes(), 0u);
  EXPECT_TRUE(aggregator_.Find("a")->ranges.list().empty());
  const absl::Status late = aggregator_.Add("a", 1, pieces[1]);
  EXPECT_TRUE(absl::IsAborted(late)) << late;
  const absl::Status older = aggregator_.Begin("a", 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(older)) << older;
  EXPECT_EQ(ReasonOf(older), "STALE_ATTEMPT");
}

TEST_F(AggregatorTest, ACompleteContributionStands) {
  const auto pieces = Checked(*grid_, RandomContribution(*grid_, 1));
  ASSERT_TRUE(aggregator_.Begin("a", 1).ok());
  for (const HeldPiece& piece : pieces) ASSERT_TRUE(aggregator_.Add("a", 1, piece).ok());
  aggregator_.MarkComplete("a", "digest");
  const size_t bytes = aggregator_.bytes();
  ASSERT_TRUE(aggregator_.Begin("a", 2).ok());
  EXPECT_TRUE(aggregator_.Add("a", 2, Checked(*grid_, RandomContribution(*grid_, 2))[0]).ok());
  aggregator_.Discard("a");
  EXPECT_EQ(aggregator_.Find("a")->attempt, 1u);
  EXPECT_EQ(aggregator_.Find("a")->digest, "digest");
  EXPECT_EQ(aggregator_.bytes(), bytes);
}

}  // namespace
}  // namespace isthmus
