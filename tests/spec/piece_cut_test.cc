#include "spec/piece_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "base/limits.h"
#include "tests/spec/piece_fixture.h"

namespace isthmus {
namespace {

// Whatever ranks made the pieces and whatever ranks take them over: the chunks are the same bytes.
TEST(CutPiecesTest, AnyCutOfAnyCutHasTheSameChunks) {
  const Grid grid = TestGrid();
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto payload = RandomPayload(grid, v1::PAYLOAD_CODEC_TOPK_F32, seed);
  const auto random_cuts = [&](size_t ranks) {
    std::vector<uint64_t> cuts = {0, grid.chunks()};
    while (cuts.size() <= ranks) cuts.push_back(random() % (grid.chunks() + 1));
    std::sort(cuts.begin(), cuts.end());
    return cuts;
  };
  const auto write = [&](uint64_t begin, uint64_t end, size_t piece_bytes) {
    PieceWriter writer(&grid, v1::PAYLOAD_CODEC_TOPK_F32, piece_bytes);
    for (uint64_t chunk = begin; chunk < end; ++chunk) writer.Append(chunk, payload[chunk]);
    return writer.Finish();
  };
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::vector<std::string> pieces;
    const auto from = random_cuts(1 + random() % 5);
    for (size_t rank = 0; rank + 1 < from.size(); ++rank) {
      for (std::string& piece : write(from[rank], from[rank + 1], 400 + random() % 20000)) {
        pieces.push_back(std::move(piece));
      }
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    const auto to = random_cuts(1 + random() % 5);
    std::vector<std::string> all;
    for (size_t rank = 0; rank + 1 < to.size(); ++rank) {
      std::vector<std::pair<uint64_t, uint64_t>> ranges;
      if (to[rank] < to[rank + 1]) ranges.emplace_back(to[rank], to[rank + 1]);
      const auto cut = CutPieces(grid, ranges, pieces);
      ASSERT_TRUE(cut.ok()) << cut.status();
      uint64_t next = to[rank];
      for (const std::string& bytes : *cut) {
        const auto piece = OpenPiece(grid, bytes);
        ASSERT_TRUE(piece.ok()) << piece.status();
        EXPECT_EQ(piece->first_chunk, next);
        next = piece->end_chunk;
        all.push_back(bytes);
      }
      EXPECT_EQ(next, to[rank + 1]);
    }
    std::vector<const std::string*> pointers, original;
    for (const std::string& piece : all) pointers.push_back(&piece);
    for (const std::string& piece : pieces) original.push_back(&piece);
    EXPECT_EQ(*PayloadDigest(grid, pointers), *PayloadDigest(grid, original));
  }
  // What lies inside stays as it is, and damage shows.
  std::vector<std::string> pieces = write(0, grid.chunks(), 1000);
  EXPECT_EQ(*CutPieces(grid, {{0, grid.chunks()}}, pieces), pieces);
  pieces[0].back() ^= 1;
  EXPECT_EQ(CutPieces(grid, {{0, 1}}, pieces).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace isthmus
