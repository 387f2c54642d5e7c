// The canonical grid against a brute-force walk over every element.
#include "spec/grid.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <random>

#include "base/limits.h"
#include "spec/run_spec.h"

namespace isthmus {
namespace {

using Shape = std::vector<uint64_t>;

v1::CodecSpec Codec(v1::ChunkRule rule, uint32_t side) {
  v1::CodecSpec codec;
  codec.set_chunk_rule(rule);
  codec.set_chunk_side(side);
  EXPECT_TRUE(CompleteCodecSpec(&codec).ok());
  return codec;
}

v1::Manifest ManifestOf(const std::vector<Shape>& shapes) {
  v1::Manifest manifest;
  for (size_t i = 0; i < shapes.size(); ++i) {
    v1::TensorSpec* tensor = manifest.add_tensors();
    tensor->set_name("t" + std::to_string(i));
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    for (uint64_t size : shapes[i]) tensor->add_shape(size);
  }
  return manifest;
}

uint64_t Elements(const Shape& shape) {
  uint64_t product = 1;
  for (uint64_t size : shape) product *= size;
  return product;
}

// Side of a chunk from the rule's words, by trial.
uint64_t SideOf(uint64_t n, v1::ChunkRule rule, uint64_t target) {
  if (rule == v1::CHUNK_RULE_TILES) return std::min(n, target);
  uint64_t best = 1;
  for (uint64_t d = 1; d <= target && d <= n; ++d) best = n % d == 0 ? d : best;
  return best;
}

// Every element of the model lies in exactly one chunk, chunks have the sides of the rule, and the
// blocks follow each other without gaps in elements and in chunks.
void ExpectCovers(const Grid& grid, const std::vector<Shape>& shapes, v1::ChunkRule rule,
                  uint64_t target) {
  std::vector<std::vector<int>> seen;
  for (const Shape& shape : shapes) seen.emplace_back(Elements(shape), 0);
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    const ChunkPlace place = grid.Place(chunk);
    const Block& block = grid.blocks()[place.block];
    ASSERT_EQ(place.block, grid.BlockOfChunk(chunk));
    ASSERT_EQ(place.tensor, block.tensor);
    ASSERT_GE(place.k, 1u);
    ASSERT_LE(place.k, place.shape.elements());
    const Shape& shape = shapes[place.tensor];
    const uint64_t rows = shape.size() <= 1 ? 1 : shape[0];
    const uint64_t cols = Elements(shape) / rows;
    const uint64_t side_rows = SideOf(rows, rule, target), side_cols = SideOf(cols, rule, target);
    const uint64_t row = place.first_element / cols, col = place.first_element % cols;
    ASSERT_EQ(row % side_rows, 0u);
    ASSERT_EQ(col % side_cols, 0u);
    ASSERT_EQ(place.shape.rows, std::min(side_rows, rows - row));
    ASSERT_EQ(place.shape.cols, std::min(side_cols, cols - col));
    for (uint32_t j = 0; j < place.shape.rows; ++j) {
      for (uint32_t l = 0; l < place.shape.cols; ++l) {
        const uint64_t element = place.first_element + j * place.stride + l;
        ASSERT_GE(element, block.first_element);
        ASSERT_LT(element, block.first_element + block.elements);
        ++seen[place.tensor][element];
      }
    }
  }
  for (const auto& tensor : seen) {
    for (int count : tensor) ASSERT_EQ(count, 1);
  }
  uint64_t chunk = 0, model_elements = 0;
  for (uint32_t tensor = 0; tensor < grid.tensors(); ++tensor) {
    uint64_t element = 0;
    for (uint32_t b = grid.tensor_first_block(tensor); b < grid.tensor_end_block(tensor); ++b) {
      const Block& block = grid.blocks()[b];
      ASSERT_EQ(block.tensor, tensor);
      ASSERT_EQ(block.first_element, element);
      ASSERT_EQ(block.first_chunk, chunk);
      ASSERT_GE(block.chunks, 1u);
      element += block.elements;
      chunk += block.chunks;
    }
    ASSERT_EQ(element, Elements(shapes[tensor]));
    ASSERT_EQ(element, grid.tensor_elements(tensor));
    model_elements += element;
  }
  EXPECT_EQ(chunk, grid.chunks());
  EXPECT_EQ(model_elements, grid.elements());
}

void ExpectGrid(const std::vector<Shape>& shapes, v1::ChunkRule rule, uint32_t side) {
  const absl::StatusOr<Grid> grid = Grid::Make(ManifestOf(shapes), Codec(rule, side));
  ASSERT_TRUE(grid.ok()) << grid.status();
  ExpectCovers(*grid, shapes, rule, side);
}

TEST(GridTest, CoversChosenShapes) {
  const std::vector<Shape> shapes = {{},       {1},      {7},          {64},       {4096},
                                     {4097},   {10007},  {1, 1},       {1, 200},   {200, 1},
                                     {64, 64}, {65, 63}, {1009, 100},  {3, 5, 7},  {2, 3, 4, 5},
                                     {154},    {96, 50}, {2, 1, 1, 1}, {128, 129}, {18, 40}};
  for (uint32_t side : {1u, 5u, 64u, 128u}) {
    ExpectGrid(shapes, v1::CHUNK_RULE_TILES, side);
    ExpectGrid(shapes, v1::CHUNK_RULE_DIVISOR, side);
  }
}

TEST(GridTest, CoversRandomShapes) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<Shape> shapes(1 + random() % 4);
    for (Shape& shape : shapes) {
      shape.resize(random() % 4);
      const uint64_t most = shape.size() == 1 ? 9000 : shape.size() == 2 ? 180 : 30;
      for (uint64_t& size : shape) size = 1 + random() % most;
    }
    ExpectGrid(shapes, random() % 2 ? v1::CHUNK_RULE_TILES : v1::CHUNK_RULE_DIVISOR,
               1 + random() % kChunkSideMax);
  }
}

TEST(GridTest, LargestDivisorMatchesThePublishedRule) {
  EXPECT_EQ(LargestDivisor(1000, 64), 50u);
  EXPECT_EQ(LargestDivisor(96, 64), 48u);
  EXPECT_EQ(LargestDivisor(2 * 10007, 64), 2u);
  EXPECT_EQ(LargestDivisor(10007, 64), 1u);
  EXPECT_EQ(LargestDivisor(61, 64), 61u);
  EXPECT_EQ(LargestDivisor(1, 64), 1u);
}

TEST(GridTest, BlocksAreRowsOfTilesAndRunsOfVectors) {
  const absl::StatusOr<Grid> grid =
      Grid::Make(ManifestOf({{150, 1000}, {10000}, {7, 3, 100}}), Codec(v1::CHUNK_RULE_TILES, 64));
  ASSERT_TRUE(grid.ok());
  EXPECT_EQ(grid->tensor_end_block(0), 3u);
  EXPECT_EQ(grid->blocks()[0].elements, 64u * 1000);
  EXPECT_EQ(grid->blocks()[0].chunks, 16u);
  EXPECT_EQ(grid->blocks()[2].elements, 22u * 1000);
  EXPECT_EQ(grid->blocks()[3].elements, 4096u);
  EXPECT_EQ(grid->blocks()[3].chunks, 64u);
  EXPECT_EQ(grid->blocks()[5].elements, 10000u - 2 * 4096);
  EXPECT_EQ(grid->blocks()[6].elements, 7u * 300);
  EXPECT_EQ(grid->Place(grid->chunks() - 1).shape.cols, 300u % 64);
  EXPECT_EQ(grid->Describe(17), "t0, chunk 17 (of its 48)");
  EXPECT_EQ(grid->Describe(48), "t1, chunk 0 (of its 157)");
}

TEST(GridTest, ComponentCountsFollowDensityOrTopK) {
  absl::StatusOr<Grid> grid =
      Grid::Make(ManifestOf({{64, 65}, {70}}), Codec(v1::CHUNK_RULE_TILES, 64));
  ASSERT_TRUE(grid.ok());
  EXPECT_EQ(grid->Place(0).k, 32u);  // 64 x 64
  EXPECT_EQ(grid->Place(1).k, 1u);   // 64 x 1: round(0.5)
  EXPECT_EQ(grid->Place(2).k, 8u);   // run of 64
  EXPECT_EQ(grid->Place(3).k, 1u);   // run of 6: round(0.75)
  EXPECT_EQ(grid->ContributionBytes(0).least, 32 * 7 / 8 + 32 * 4u);
  EXPECT_EQ(grid->ContributionBytes(0).most, (32 * 7 + 4064 / 64 + 7) / 8 + 32 * 4u);

  v1::CodecSpec codec = Codec(v1::CHUNK_RULE_DIVISOR, 64);
  codec.set_top_k(32);
  grid = Grid::Make(ManifestOf({{128, 96}, {10007}, {3}}), codec);
  ASSERT_TRUE(grid.ok());
  EXPECT_EQ(grid->Place(0).shape, (ChunkShape{64, 48}));
  EXPECT_EQ(grid->Place(0).k, 32u);
  EXPECT_EQ(grid->Place(4).shape, (ChunkShape{1, 1}));  // a prime above T
  EXPECT_EQ(grid->Place(4).k, 1u);
  EXPECT_EQ(grid->Place(grid->chunks() - 1).k, 3u);  // k > n

  codec.set_top_k(60);
  codec.clear_numbers();  // as in runs that are older than codec.numbers
  grid = Grid::Make(ManifestOf({{64}}), codec);
  ASSERT_TRUE(grid.ok());
  EXPECT_EQ(grid->Place(0).k, 60u);  // the published count, although all 64 take no more bytes
  EXPECT_TRUE(grid->ContributionBytes(0) == (ByteRange{64 * 4, 64 * 4}));

  codec = Codec(v1::CHUNK_RULE_TILES, 64);
  codec.set_vector_density(60.0 / 64);
  grid = Grid::Make(ManifestOf({{64}}), codec);
  ASSERT_TRUE(grid.ok());
  EXPECT_EQ(grid->Place(0).k, 60u);
  codec.clear_numbers();
  grid = Grid::Make(ManifestOf({{64}}), codec);
  ASSERT_TRUE(grid.ok());
  EXPECT_EQ(grid->Place(0).k, 64u);  // by density, what costs nothing is sent too
}

// Shapes that 64 does not divide cost at most twice what others do, and never more than dense.
TEST(GridTest, RaggedShapesAreNotDear) {
  const auto bytes_per_element = [](const Shape& shape) {
    const auto grid = Grid::Make(ManifestOf({shape}), Codec(v1::CHUNK_RULE_TILES, 64));
    EXPECT_TRUE(grid.ok());
    uint64_t most = 0;
    for (uint64_t chunk = 0; chunk < grid->chunks(); ++chunk) {
      const uint64_t of_chunk = grid->ContributionBytes(chunk).most;
      EXPECT_LE(of_chunk, grid->Place(chunk).shape.elements() * sizeof(float));
      most += of_chunk;
    }
    return static_cast<double>(most) / static_cast<double>(grid->elements());
  };
  EXPECT_LE(bytes_per_element({10007, 1000}), 2 * bytes_per_element({9984, 960}));
  EXPECT_LE(bytes_per_element({1000003}), 2 * bytes_per_element({1000000}));
  EXPECT_LE(bytes_per_element({}), 4.0);
  EXPECT_LE(bytes_per_element({1, 1}), 4.0);
}

TEST(GridTest, RefusesWhatDoesNotFit) {
  const v1::CodecSpec tiles = Codec(v1::CHUNK_RULE_TILES, 1);
  EXPECT_EQ(Grid::Make(ManifestOf({{1u << 20, 1u << 19}}), tiles).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Grid::Make(ManifestOf({{1u << 23, 1}}), tiles).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Grid::Make(ManifestOf({{4}}), v1::CodecSpec()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Grid::Make(ManifestOf({{4, 0}}), tiles).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Blocks of 64 rows, cut into chunks of consecutive elements, each element in one of them.
TEST(GridTest, FlatChunksFollowEachOther) {
  const std::vector<Shape> shapes = {{130, 97}, {1}, {5000}, {3, 5000}, {}, {64, 64}, {1, 1}};
  for (const uint32_t topk : {0u, 1u, 128u, 4096u}) {
    v1::CodecSpec codec;
    codec.set_kind(topk > 0 ? v1::CODEC_KIND_TOPK : v1::CODEC_KIND_NUMBERS);
    codec.set_topk_chunk(topk);
    ASSERT_TRUE(CompleteCodecSpec(&codec).ok());
    const auto grid = Grid::Make(ManifestOf(shapes), codec);
    ASSERT_TRUE(grid.ok()) << grid.status();
    const uint64_t most = topk > 0 ? topk : 4096;
    uint64_t chunk = 0;
    for (const Block& block : grid->blocks()) {
      const Shape& shape = shapes[block.tensor];
      const uint64_t row = shape.size() < 2 ? 1 : shape[1];
      const uint64_t rows = shape.size() < 2 ? 4096 : 64;
      EXPECT_EQ(block.first_element % (row * rows), 0u);
      EXPECT_EQ(block.first_chunk, chunk);
      uint64_t at = block.first_element;
      for (uint64_t i = 0; i < block.chunks; ++i, ++chunk) {
        const ChunkPlace place = grid->Place(chunk);
        EXPECT_EQ(place.tensor, block.tensor);
        EXPECT_EQ(place.first_element, at);
        EXPECT_EQ(place.shape.rows, 1u);
        EXPECT_LE(place.shape.cols, most);
        EXPECT_TRUE(place.shape.cols == most || i + 1 == block.chunks);
        at += place.shape.cols;
      }
      EXPECT_EQ(at, block.first_element + block.elements);
    }
    EXPECT_EQ(chunk, grid->chunks());
    EXPECT_EQ(grid->tensor_offset(1), uint64_t{130} * 97);
  }
}

}  // namespace
}  // namespace isthmus
