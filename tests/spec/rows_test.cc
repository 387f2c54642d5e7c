// Rows that travel: every one is visited, sizes do not depend on the round, and the published
// choice is the recorded one.
#include "spec/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <set>
#include <string>

#include "spec/piece.h"
#include "spec/run_spec.h"

namespace isthmus {
namespace {

Grid GridOf(const std::vector<std::vector<uint64_t>>& shapes, v1::CodecSpec codec) {
  EXPECT_TRUE(CompleteCodecSpec(&codec).ok());
  v1::Manifest manifest;
  for (size_t i = 0; i < shapes.size(); ++i) {
    v1::TensorSpec* tensor = manifest.add_tensors();
    tensor->set_name("t" + std::to_string(i));
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    for (const uint64_t size : shapes[i]) tensor->add_shape(size);
  }
  absl::StatusOr<Grid> grid = Grid::Make(manifest, codec);
  EXPECT_TRUE(grid.ok()) << grid.status();
  return *std::move(grid);
}

v1::CodecSpec CodecOf(v1::CodecKind kind, double rate, uint32_t side) {
  v1::CodecSpec codec;
  codec.set_kind(kind);
  codec.set_rate(rate);
  codec.set_chunk_side(side);
  return codec;
}

// Rounds after which all of r rows have been visited, q a round: for sure, or for drawn rows with a
// probability of less than 1e-9 that one of `rows` has not.
uint64_t RoundsToVisit(v1::CodecKind kind, uint64_t r, uint64_t q, uint64_t rows) {
  if (kind != v1::CODEC_KIND_RANDOM || q == r) return (r + q - 1) / q;
  const double left = 1.0 - static_cast<double>(q) / static_cast<double>(r);
  return static_cast<uint64_t>(
      std::ceil((std::log(1e-9) - std::log(static_cast<double>(rows))) / std::log(left)));
}

// One chunk from `first_round` on, as long as it may take.
void ExpectVisited(const Grid& grid, uint64_t chunk, uint64_t seed, uint64_t first_round) {
  const ChunkPlace place = grid.Place(chunk);
  const v1::CodecSpec& codec = grid.codec();
  const bool is_vector = grid.tensor_row_elements(place.tensor) == 1;
  const uint32_t r = is_vector ? place.shape.elements() : place.shape.rows;
  const uint32_t q = RowsSent(codec, r);
  const uint64_t rounds = RoundsToVisit(codec.kind(), r, q, grid.elements());
  std::set<uint32_t> visited;
  for (uint64_t round = first_round; round < first_round + rounds; ++round) {
    const std::vector<uint32_t> rows = RowChoice(&grid, seed, round).Rows(place);
    ASSERT_EQ(rows.size(), q);
    ASSERT_TRUE(std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) == rows.end());
    ASSERT_LT(rows.back(), r);
    ASSERT_EQ(RowChoice(&grid, seed, round).Elements(place).size(), place.k);
    visited.insert(rows.begin(), rows.end());
  }
  EXPECT_EQ(visited.size(), r) << v1::CodecKind_Name(codec.kind()) << " rate " << codec.rate()
                               << " of " << grid.Describe(chunk) << " from round " << first_round;
}

TEST(Rows, EveryRowIsVisitedForRandomSizesAndRates) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 200; ++i) {
    const uint64_t rows = 1 + random() % 300, cols = 1 + random() % 40;
    const uint64_t length = 1 + random() % 600;
    const double rate = std::pow(10.0, -3.0 * (random() % 1000) / 1000.0);
    const auto side = static_cast<uint32_t>(1 + random() % kRowChunkSideMax);
    for (const v1::CodecKind kind :
         {v1::CODEC_KIND_RANDOM, v1::CODEC_KIND_STRIDING, v1::CODEC_KIND_SLICING}) {
      const Grid grid = GridOf({{rows, cols}, {length}}, CodecOf(kind, rate, side));
      const uint64_t first_round = 1 + random() % 1000;
      // The last chunk of the matrix and of the vector have what is left; all others are alike.
      const uint32_t vector_block = grid.tensor_first_block(1);
      for (const uint64_t chunk : {uint64_t{0}, grid.blocks()[vector_block].first_chunk - 1,
                                   grid.blocks()[vector_block].first_chunk, grid.chunks() - 1}) {
        ExpectVisited(grid, chunk, seed + static_cast<uint64_t>(i), first_round);
      }
    }
  }
}

TEST(Rows, ChunksOfABlockShareRowsAndBlocksDrawTheirOwn) {
  const Grid grid = GridOf({{256, 200}, {256}}, CodecOf(v1::CODEC_KIND_RANDOM, 0.25, 64));
  const RowChoice choice(&grid, 7, 3);
  const std::vector<uint32_t> rows = choice.Rows(grid.Place(0));
  EXPECT_EQ(rows.size(), 16u);
  EXPECT_EQ(choice.Rows(grid.Place(1)), rows);
  EXPECT_NE(choice.Rows(grid.Place(grid.blocks()[1].first_chunk)), rows);
  EXPECT_NE(RowChoice(&grid, 8, 3).Rows(grid.Place(0)), rows);
  EXPECT_NE(RowChoice(&grid, 7, 4).Rows(grid.Place(0)), rows);
  EXPECT_EQ(RowChoice(&grid, 7, 3).Rows(grid.Place(0)), rows);
}

TEST(Rows, DrawnRowsAreUniform) {
  const Grid grid = GridOf({{64, 8}}, CodecOf(v1::CODEC_KIND_RANDOM, 0.125, 64));
  constexpr int kRounds = 8000;
  std::vector<int> count(64);
  for (uint64_t round = 1; round <= kRounds; ++round) {
    for (const uint32_t row : RowChoice(&grid, 5, round).Rows(grid.Place(0))) ++count[row];
  }
  // Six standard deviations of a binomial.
  for (const int n : count) EXPECT_NEAR(n, kRounds / 8, 6 * std::sqrt(kRounds * 0.125 * 0.875));
}

v1::CodecSpec Published(v1::CodecKind kind, double rate, uint32_t side) {
  v1::CodecSpec codec = CodecOf(kind, rate, side);
  codec.set_rules(v1::METHOD_RULES_PUBLISHED);
  return codec;
}

TEST(Rows, PublishedStridingMayStayWhereItIs) {
  // 64 rows at 1/8: 8 rows a message, and always the same.
  const Grid grid = GridOf({{64, 5}}, Published(v1::CODEC_KIND_STRIDING, 0.125, 64));
  for (uint64_t round = 1; round <= 9; ++round) {
    EXPECT_EQ(RowChoice(&grid, 0, round).Rows(grid.Place(0)),
              (std::vector<uint32_t>{0, 8, 16, 24, 32, 40, 48, 56}));
  }
}

TEST(Rows, PublishedSlicingCountsCallsNotRounds) {
  // Two tensors, and r / q = 2: each sees every other call, so half of its rows are never sent.
  const Grid grid = GridOf({{8, 3}, {8, 3}}, Published(v1::CODEC_KIND_SLICING, 0.5, 8));
  std::set<uint32_t> first, second;
  for (uint64_t round = 1; round <= 9; ++round) {
    const RowChoice choice(&grid, 0, round);
    for (const uint32_t row : choice.Rows(grid.Place(0))) first.insert(row);
    for (const uint32_t row : choice.Rows(grid.Place(1))) second.insert(row);
  }
  EXPECT_EQ(first, (std::set<uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(second, (std::set<uint32_t>{4, 5, 6, 7}));
}

TEST(Rows, PublishedCountsDoNotDependOnTheRoundAndMayBeZero) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 60; ++i) {
    const uint64_t rows = 1 + random() % 200, cols = 1 + random() % 5000, length = random() % 400;
    const double rate = static_cast<double>(1 + random() % 1000) / 1000.0;
    for (const v1::CodecKind kind :
         {v1::CODEC_KIND_RANDOM, v1::CODEC_KIND_STRIDING, v1::CODEC_KIND_SLICING}) {
      const Grid grid = GridOf({{rows, cols}, {length + 1}}, Published(kind, rate, 64));
      EXPECT_EQ(grid.blocks().size(), 2u);  // whole tensors
      for (uint64_t round = 1; round <= 6; ++round) {
        const RowChoice choice(&grid, 0, round);
        for (const uint64_t chunk : {uint64_t{0}, grid.chunks() - 1}) {
          ASSERT_EQ(choice.Elements(grid.Place(chunk)).size(), grid.Place(chunk).k);
        }
      }
    }
  }
  const Grid few = GridOf({{3, 4}}, Published(v1::CODEC_KIND_RANDOM, 0.1, 64));
  EXPECT_EQ(few.Place(0).k, 0u);
}

TEST(Rows, ATensorWithTooManyRowsForThePublishedChoiceIsRefused) {
  v1::CodecSpec codec = Published(v1::CODEC_KIND_RANDOM, 0.1, 64);
  ASSERT_TRUE(CompleteCodecSpec(&codec).ok());
  v1::Manifest manifest;
  v1::TensorSpec* tensor = manifest.add_tensors();
  tensor->set_name("wte");
  tensor->set_dtype(v1::DTYPE_FLOAT32);
  tensor->add_shape((uint64_t{1} << 17) + 1);
  tensor->add_shape(2);
  const absl::StatusOr<Grid> grid = Grid::Make(manifest, codec);
  ASSERT_FALSE(grid.ok());
  EXPECT_EQ(grid.status().code(), absl::StatusCode::kResourceExhausted);
}

// Values of a chunk in any order are its rows, in every number format.
TEST(Rows, PiecesOfRowsRoundTrip) {
  for (const v1::NumberFormat format :
       {v1::NUMBER_FORMAT_F32, v1::NUMBER_FORMAT_BF16, v1::NUMBER_FORMAT_INT8}) {
    v1::CodecSpec codec = CodecOf(v1::CODEC_KIND_STRIDING, 0.1, 32);
    codec.mutable_numbers()->set_format(format);
    const Grid grid = GridOf({{100, 70}, {77}}, codec);
    PieceWriter writer(&grid, ContributionLayout(grid.codec()), 400);
    for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
      writer.AppendValues(chunk, std::vector<float>(grid.Place(chunk).k, 0.5f));
    }
    const std::vector<std::string> pieces = writer.Finish();
    ASSERT_GT(pieces.size(), 1u);
    uint64_t next = 0;
    for (const std::string& bytes : pieces) {
      const absl::StatusOr<PieceView> piece = OpenPiece(grid, bytes);
      ASSERT_TRUE(piece.ok()) << piece.status();
      ASSERT_TRUE(ForEachChunk(grid, *piece, [&](uint64_t chunk, const Components& read) {
                    EXPECT_EQ(chunk, next++);
                    EXPECT_EQ(read.value.size(), grid.Place(chunk).k);
                    for (const float value : read.value) EXPECT_NEAR(value, 0.5f, 0.005f);
                    return absl::OkStatus();
                  }).ok());
    }
    EXPECT_EQ(next, grid.chunks());
  }
}

}  // namespace
}  // namespace isthmus
