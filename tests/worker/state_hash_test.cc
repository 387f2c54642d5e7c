#include "worker/state_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/sha256.h"
#include "tests/worker/method_fixture.h"

namespace isthmus {
namespace {

TEST(StateHashTest, IsTheStatedForm) {
  const Grid grid = MakeGrid({{70, 3}, {2}}, CompleteCodec());
  const Tensors tensors = RandomTensors(grid, 1);
  Sha256 root;
  const auto block = [&](const float* data, size_t count) {
    root.Update(
        Sha256Of(absl::string_view(reinterpret_cast<const char*>(data), count * sizeof(float))));
  };
  block(tensors[0].data(), 64 * 3);
  block(tensors[0].data() + 64 * 3, 6 * 3);
  block(tensors[1].data(), 2);
  root.UpdateU64(7);
  const absl::StatusOr<std::string> hash = SectionSha256(grid, WholeParts(tensors), 7, 2);
  ASSERT_TRUE(hash.ok()) << hash.status();
  EXPECT_EQ(*hash, root.Finish());
}

TEST(StateHashTest, RanksGatherToTheSameRoot) {
  const Grid grid = MakeGrid({{300, 20}, {9000}, {}, {18, 40}}, CompleteCodec());
  const Tensors tensors = RandomTensors(grid, 2);
  const std::string whole = *SectionSha256(grid, WholeParts(tensors), 3, 1);
  for (uint32_t ranks : {2u, 3u, 8u}) {
    const std::vector<UnitPlan> plan = PlanOf(grid, ranks);
    std::string gathered(grid.blocks().size() * kSha256Bytes, '\0');
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      for (const TensorPart<const float>& part : RankParts(plan, rank, tensors)) {
        const BlockSpan blocks =
            *BlocksOfPart(grid, {part.tensor, part.first_element, part.data.size()});
        const absl::StatusOr<std::string> hashes = HashBlocks(grid, part, 2);
        ASSERT_TRUE(hashes.ok()) << hashes.status();
        gathered.replace(blocks.first * kSha256Bytes, hashes->size(), *hashes);
      }
    }
    EXPECT_EQ(SectionSha256(grid, gathered, 3), whole);
  }
  EXPECT_NE(*SectionSha256(grid, WholeParts(tensors), 4, 1), whole);
  Tensors changed = tensors;
  changed[1][8999] = -0.0f;
  EXPECT_NE(*SectionSha256(grid, WholeParts(changed), 3, 1), whole);
}

TEST(StateHashTest, RefusesPartsThatAreNotTheModel) {
  const Grid grid = MakeGrid({{300, 20}, {5}}, CompleteCodec());
  const Tensors tensors = RandomTensors(grid, 2);
  auto parts = WholeParts(tensors);
  parts.push_back(parts[1]);
  EXPECT_THAT(std::string(SectionSha256(grid, parts, 0, 1).status().message()),
              ::testing::HasSubstr("parts overlap in t1, chunk 0"));
  parts.resize(1);
  EXPECT_THAT(std::string(SectionSha256(grid, parts, 0, 1).status().message()),
              ::testing::HasSubstr("no part holds t1, chunk 0"));
}

TEST(HeldPartTest, TakesWholeBlocksOnly) {
  const Grid grid = MakeGrid({{300, 20}, {5000}}, CompleteCodec());
  const auto message = [&](const ElementRange& part) {
    return std::string(BlocksOfPart(grid, part).status().message());
  };
  EXPECT_EQ(BlocksOfPart(grid, {1, 4096, 904})->first, 6u);
  EXPECT_EQ(BlocksOfPart(grid, {1, 4096, 904})->end, 7u);
  EXPECT_EQ(BlocksOfPart(grid, {0, 64 * 20, 128 * 20})->end, 3u);
  EXPECT_EQ(BlocksOfPart(grid, {0, 300 * 20, 0})->first, 5u);  // C13: no elements at all
  EXPECT_EQ(BlocksOfPart(grid, {0, 300 * 20, 0})->end, 5u);
  EXPECT_THAT(message({0, 20, 64 * 20}),
              ::testing::HasSubstr("at element 20, inside the block that begins at 0"));
  EXPECT_THAT(message({0, 0, 65 * 20}), ::testing::HasSubstr("at element 1300"));
  EXPECT_THAT(message({0, 0, 301 * 20}), ::testing::HasSubstr("the tensor has 6000"));
  EXPECT_THAT(message({0, ~uint64_t{0}, 2}), ::testing::HasSubstr("the tensor has 6000"));
  EXPECT_THAT(message({2, 0, 1}), ::testing::HasSubstr("tensor number 2; the model has 2"));
}

}  // namespace
}  // namespace isthmus
