#include "worker/shard_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "base/limits.h"
#include "spec/piece.h"
#include "tests/worker/method_fixture.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

// Slices of all ranks are the unit's tensors in order, without gaps; no part is longer than the
// padded length; ranges of all ranks cover the model's chunks once.
void ExpectWholeModel(const Grid& grid, const std::vector<UnitPlan>& plan, uint32_t ranks) {
  for (const UnitPlan& unit : plan) {
    uint64_t flat = 0, longest = 0;
    size_t tensor = 0;
    uint64_t element = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      ASSERT_EQ(unit.rank_first_element[rank], flat);
      uint64_t offset = 0;
      for (const ShardSlice& slice : unit.slices[rank]) {
        if (element == grid.tensor_elements(unit.tensors[tensor])) {
          ++tensor;
          element = 0;
        }
        ASSERT_EQ(slice.tensor, unit.tensors[tensor]);
        ASSERT_EQ(slice.first_element, element);
        ASSERT_EQ(slice.offset, offset);
        ASSERT_EQ(slice.first_element, grid.blocks()[slice.first_block].first_element);
        const Block& last = grid.blocks()[slice.end_block - 1];
        ASSERT_EQ(slice.first_element + slice.elements, last.first_element + last.elements);
        element += slice.elements;
        offset += slice.elements;
      }
      ASSERT_EQ(unit.rank_elements[rank], offset);
      flat += offset;
      longest = std::max(longest, offset);
    }
    EXPECT_EQ(flat, unit.elements);
    EXPECT_EQ(longest, unit.padded_elements);
  }
  ChunkRanges all;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (const auto& [begin, end] : RankChunkRanges(grid, plan, rank)) {
      ASSERT_TRUE(all.Add(begin, end));
    }
  }
  EXPECT_TRUE(all.Contains(0, grid.chunks()));
}

TEST(ShardPlanTest, CoversRandomModels) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<Shape> shapes(1 + random() % 6);
    for (Shape& shape : shapes) {
      shape.resize(random() % 3);
      for (uint64_t& size : shape) size = 1 + random() % (shape.size() == 1 ? 20000 : 500);
    }
    const Grid grid = MakeGrid(shapes, CompleteCodec());
    const uint32_t ranks = 1 + random() % 9;
    ExpectWholeModel(grid, PlanOf(grid, ranks), ranks);
  }
}

TEST(ShardPlanTest, MoreRanksThanBlocks) {
  v1::CodecSpec codec;
  codec.set_chunk_side(1);
  for (const uint64_t rows : {18, 3}) {
    const Grid grid = MakeGrid({{rows, 40}}, CompleteCodec(codec));
    const std::vector<UnitPlan> plan = PlanOf(grid, 8);
    ExpectWholeModel(grid, plan, 8);
    EXPECT_EQ(plan[0].padded_elements, (rows + 7) / 8 * 40);
    if (rows == 3) {
      EXPECT_TRUE(RankChunkRanges(grid, plan, 7).empty());
    }
  }
}

TEST(ShardPlanTest, PartsAreAboutEqual) {
  const Grid grid = MakeGrid({{6400, 8}, {512}}, CompleteCodec());
  for (uint32_t ranks : {2u, 4u, 8u}) {
    const UnitPlan unit = PlanOf(grid, ranks)[0];
    // Never more than one block above the mean.
    EXPECT_LE(unit.padded_elements, unit.elements / ranks + 512);
  }
}

TEST(ShardPlanTest, RefusesWrongUnits) {
  const Grid grid = MakeGrid({{4}, {5}}, CompleteCodec());
  const auto message = [&](const std::vector<UnitTensors>& units, uint32_t ranks) {
    const auto plan = MakeShardPlan(grid, units, ranks);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(plan.status().message());
  };
  EXPECT_THAT(message({{"a", {0}}}, 1), HasSubstr("tensor 't1' is in no unit"));
  EXPECT_THAT(message({{"a", {0, 1}}, {"b", {1}}}, 1), HasSubstr("in unit 'a' and in unit 'b'"));
  EXPECT_THAT(message({{"a", {0, 1, 2}}}, 1), HasSubstr("tensor number 2; the model has 2"));
  EXPECT_THAT(message({{"a", {0, 1}}}, 0), HasSubstr("ranks is 0; give 1 to 1024"));
  EXPECT_THAT(message({{"a", {0, 1}}}, kRanksMax + 1), HasSubstr("ranks is 1025"));
  // A unit whose tensors are all frozen.
  EXPECT_TRUE(MakeShardPlan(grid, {{"a", {1, 0}}, {"b", {}}}, 2).ok());
}

}  // namespace
}  // namespace isthmus
