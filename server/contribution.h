// What the server knows about a contribution's bytes before and after it has them: how large they
// must be, whether a piece is sound, and what a complete one digests to. Pure functions over bytes
// that need no lock: the expensive half of taking a submission in.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "spec/grid.h"
#include "spec/piece.h"

namespace isthmus {

// Sizes of contributions over one grid, which with gap-coded indices have limits only. O(blocks) to
// make, O(log blocks) to ask.
class ContributionSizes {
 public:
  explicit ContributionSizes(std::shared_ptr<const Grid> grid);

  // Coded bytes of chunks [begin, end), without the headers of pieces.
  ByteRange Bytes(uint64_t begin, uint64_t end) const;
  // At most, of the whole model.
  uint64_t total() const { return before_block_.back().most; }

 private:
  ByteRange Before(uint64_t chunk) const;

  std::shared_ptr<const Grid> grid_;
  std::vector<ByteRange> before_block_;  // one more than blocks
};

// A piece that was checked. The bytes never change, so they are shared without a lock.
struct HeldPiece {
  std::shared_ptr<const absl::string_view> bytes;  // in memory, or in a file (piece_keeper.h)
  uint64_t first_chunk = 0;
  uint64_t end_chunk = 0;
  uint32_t first_block = 0;
  // Where in `bytes` its part of each block begins, from that of first_block on; at last its size.
  std::vector<uint32_t> block_at;
};

// The bytes as a piece holds them, in memory.
std::shared_ptr<const absl::string_view> InMemory(std::string bytes);

// Calls visit(first chunk, end chunk, their coded bytes) for what the chunks of a block of `grid`
// are in of `pieces`, which were checked, ascend and cover them.
template <typename Visit>
void ForEachPart(const Grid& grid, const std::vector<HeldPiece>& pieces, const Block& block,
                 const Visit& visit) {
  const uint32_t number = grid.BlockOfChunk(block.first_chunk);
  uint64_t begin = block.first_chunk;
  const uint64_t end = begin + block.chunks;
  auto piece = std::upper_bound(pieces.begin(), pieces.end(), begin,
                                [](uint64_t b, const HeldPiece& p) { return b < p.end_chunk; });
  for (; begin < end; ++piece) {
    ISTHMUS_CHECK(piece != pieces.end() && piece->first_chunk <= begin);
    const uint64_t part_end = std::min(end, piece->end_chunk);
    const uint32_t* at = piece->block_at.data() + (number - piece->first_block);
    visit(begin, part_end, piece->bytes->substr(at[0], at[1] - at[0]));
    begin = part_end;
  }
}

// Checks everything about a piece of a contribution that can be checked on its own: header, range,
// checksum, layout, and in every chunk the indices, padding and that all values are finite.
// INVALID_ARGUMENT naming tensor and chunk otherwise.
absl::StatusOr<HeldPiece> CheckContributionPiece(const Grid& grid, std::string bytes);

// PayloadDigest (spec/piece.h) of pieces that were checked, ascend and cover the model once: what
// was checked when it came is not read again.
std::string ContributionDigest(const Grid& grid, const std::vector<HeldPiece>& pieces);

}  // namespace isthmus
