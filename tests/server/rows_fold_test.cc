// Contributions of rows (spec/rows.h): merged to their mean, whatever the cut; damaged ones
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <limits>
#include <random>

#include "server/fold.h"
#include "spec/rows.h"
#include "tests/server/payloads.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const Grid> RowsGrid(v1::NumberFormat format, v1::MethodRules rules) {
  v1::CodecSpec codec;
  codec.set_kind(v1::CODEC_KIND_RANDOM);
  codec.set_rate(0.2);
  codec.set_rules(rules);
  codec.mutable_numbers()->set_format(format);
  EXPECT_TRUE(CompleteCodecSpec(&codec).ok());
  auto grid = Grid::Make(TestManifest(), codec);
  EXPECT_TRUE(grid.ok()) << grid.status();
  return std::make_shared<const Grid>(*std::move(grid));
}

// Values that every format of the test holds exactly.
std::vector<std::vector<float>> RandomValues(const Grid& grid, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<float>> chunks;
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    chunks.emplace_back(grid.Place(chunk).k);
    for (float& value : chunks.back()) value = static_cast<float>(random() % 256) / 8.0f - 16.0f;
  }
  return chunks;
}

std::vector<HeldPiece> PiecesOf(const Grid& grid, const std::vector<std::vector<float>>& chunks,
                                size_t piece_bytes) {
  PieceWriter writer(&grid, v1::PAYLOAD_CODEC_ROWS, piece_bytes);
  for (uint64_t chunk = 0; chunk < chunks.size(); ++chunk)
    writer.AppendValues(chunk, chunks[chunk]);
  std::vector<HeldPiece> held;
  for (std::string& bytes : writer.Finish()) {
    auto piece = CheckContributionPiece(grid, std::move(bytes));
    EXPECT_TRUE(piece.ok()) << piece.status();
    held.push_back(*piece);
  }
  return held;
}

TEST(RowsFold, IsTheMeanInNodeOrderWhateverTheCut) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  for (const auto format : {v1::NUMBER_FORMAT_F32, v1::NUMBER_FORMAT_BF16}) {
    for (const auto rules : {v1::METHOD_RULES_ISTHMUS, v1::METHOD_RULES_PUBLISHED}) {
      const auto grid = RowsGrid(format, rules);
      for (uint32_t count = 1; count <= 4; ++count) {
        std::vector<std::vector<std::vector<float>>> nodes;
        for (uint32_t node = 0; node < count; ++node) {
          nodes.push_back(RandomValues(*grid, seed + node));
        }
        std::vector<std::string> first;
        for (const int threads : {1, 3}) {
          std::vector<std::vector<HeldPiece>> held;
          for (const auto& values : nodes) {
            held.push_back(PiecesOf(*grid, values, 400 + 1000 * static_cast<size_t>(threads)));
          }
          const FoldedUpdate folded = FoldContributions(*grid, held, threads);
          if (first.empty()) first = folded.pieces;
          EXPECT_EQ(folded.pieces, first);
        }
        for (const std::string& bytes : first) {
          const auto piece = OpenPiece(*grid, bytes);
          ASSERT_TRUE(piece.ok()) << piece.status();
          EXPECT_EQ(piece->codec, UpdateLayout(grid->codec()));
          ASSERT_TRUE(ForEachChunk(*grid, *piece, [&](uint64_t chunk, const Components& merged) {
                        for (size_t i = 0; i < merged.value.size(); ++i) {
                          float sum = nodes[0][chunk][i];
                          for (uint32_t n = 1; n < count; ++n) sum += nodes[n][chunk][i];
                          EXPECT_EQ(merged.value[i], sum / static_cast<float>(count));
                        }
                        return absl::OkStatus();
                      }).ok());
        }
      }
    }
  }
}

TEST(RowsFold, SizesAreSumsOverChunks) {
  for (const auto rules : {v1::METHOD_RULES_ISTHMUS, v1::METHOD_RULES_PUBLISHED}) {
    const auto grid = RowsGrid(v1::NUMBER_FORMAT_INT8, rules);
    const ContributionSizes sizes(grid);
    uint64_t before = 0;
    for (uint64_t chunk = 0; chunk < grid->chunks(); ++chunk) {
      EXPECT_TRUE(sizes.Bytes(0, chunk) == (ByteRange{before, before}));
      before += grid->ContributionBytes(chunk).most;
    }
    EXPECT_EQ(sizes.total(), before);
  }
}

TEST(RowsFold, RefusesWhatIsNotSound) {
  const auto grid = RowsGrid(v1::NUMBER_FORMAT_F32, v1::METHOD_RULES_ISTHMUS);
  const std::string good(*PiecesOf(*grid, RandomValues(*grid, 1), 500).front().bytes);
  const auto check = [&](std::string bytes) {
    return CheckContributionPiece(*grid, Resealed(std::move(bytes))).status();
  };
  ASSERT_TRUE(check(good).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(check(good.substr(0, good.size() - 1))));
  EXPECT_TRUE(absl::IsInvalidArgument(check(good + "x")));
  std::string nan = good;
  const float value = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(&nan[kPieceHeaderBytes], &value, sizeof(value));
  const absl::Status status = check(nan);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("wte, chunk 0"));
  PieceWriter merged(grid.get(), v1::PAYLOAD_CODEC_MERGED_DENSE, 5000);
  merged.AppendValues(0, std::vector<float>(grid->Place(0).k));
  EXPECT_EQ(ReasonOf(CheckContributionPiece(*grid, merged.Finish().front()).status()),
            "WRONG_CODEC");
}

}  // namespace
}  // namespace isthmus
