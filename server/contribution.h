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
#include "base/check.h"
#include "spec/grid.h"
#include "spec/piece.h"

namespace isthmus {

// Sizes of contributions over one grid. O(blocks) to make, O(log blocks) to ask.
class ContributionSizes {
 public:
  explicit ContributionSizes(std::shared_ptr<const Grid> grid);

  // Coded bytes of chunks [begin, end), without the headers of pieces.
  uint64_t Bytes(uint64_t begin, uint64_t end) const { return Before(end) - Before(begin); }
  uint64_t total() const { return before_block_.back(); }

 private:
  uint64_t Before(uint64_t chunk) const;

  std::shared_ptr<const Grid> grid_;
  std::vector<uint64_t> before_block_;  // one more than blocks
};

// A piece that was checked. The bytes never change, so they are shared without a lock.
struct HeldPiece {
  std::shared_ptr<const std::string> bytes;
  uint64_t first_chunk = 0;
  uint64_t end_chunk = 0;
};

// Calls visit(first chunk, end chunk, their coded bytes) for what chunks [begin, end) are in of
// `pieces`, which were checked, ascend and cover them. Sizes follow from the grid, so a chunk is
// found inside a piece without reading what is before.
template <typename Visit>
void ForEachPart(const ContributionSizes& sizes, const std::vector<HeldPiece>& pieces,
                 uint64_t begin, uint64_t end, const Visit& visit) {
  auto piece = std::upper_bound(pieces.begin(), pieces.end(), begin,
                                [](uint64_t b, const HeldPiece& p) { return b < p.end_chunk; });
  for (; begin < end; ++piece) {
    ISTHMUS_CHECK(piece != pieces.end() && piece->first_chunk <= begin);
    const uint64_t part_end = std::min(end, piece->end_chunk);
    visit(begin, part_end,
          absl::string_view(*piece->bytes)
              .substr(kPieceHeaderBytes + sizes.Bytes(piece->first_chunk, begin),
                      sizes.Bytes(begin, part_end)));
    begin = part_end;
  }
}

// Checks everything about a piece of a contribution that can be checked on its own: header, range,
// checksum, layout, and in every chunk the indices, padding and that all values are finite.
// INVALID_ARGUMENT naming tensor and chunk otherwise.
absl::StatusOr<HeldPiece> CheckContributionPiece(const Grid& grid, std::string bytes);

// PayloadDigest (spec/piece.h) of pieces that were checked, ascend and cover the model once: what
// was checked when it came is not read again.
std::string ContributionDigest(const Grid& grid, const ContributionSizes& sizes,
                               const std::vector<HeldPiece>& pieces);

}  // namespace isthmus
