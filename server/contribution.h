// What the server knows about a contribution's bytes before and after it has them: how large they
// must be, whether a piece is sound, and what a complete one digests to. Pure functions over bytes
// that need no lock: the expensive half of taking a submission in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

// Checks everything about a piece of a contribution that can be checked on its own: header, range,
// checksum, layout, and in every chunk the indices, padding and that all values are finite.
// INVALID_ARGUMENT naming tensor and chunk otherwise.
absl::StatusOr<HeldPiece> CheckContributionPiece(const Grid& grid, std::string bytes);

// SHA-256 over the blocks' SHA-256, in block order. The pieces cover the model once.
absl::StatusOr<std::string> ContributionDigest(const Grid& grid,
                                               const std::vector<HeldPiece>& pieces);

}  // namespace isthmus
