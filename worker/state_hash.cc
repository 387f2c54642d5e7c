#include "worker/state_hash.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/parallel.h"
#include "base/sha256.h"
#include "base/status_macros.h"

namespace isthmus {

absl::StatusOr<std::string> HashBlocks(const Grid& grid, const TensorPart<const float>& part,
                                       int threads) {
  ISTHMUS_ASSIGN_OR_RETURN(const BlockSpan blocks,
                           BlocksOfPart(grid, {part.tensor, part.first_element, part.data.size()}));
  std::string hashes((blocks.end - blocks.first) * kSha256Bytes, '\0');
  ParallelFor(blocks.end - blocks.first, threads, [&](size_t i) {
    const Block& block = grid.blocks()[blocks.first + i];
    Sha256 hash;
    hash.Update(part.data.data() + (block.first_element - part.first_element),
                block.elements * sizeof(float));
    hashes.replace(i * kSha256Bytes, kSha256Bytes, hash.Finish());
  });
  return hashes;
}

absl::StatusOr<std::string> SectionSha256(const Grid& grid,
                                          const std::vector<TensorPart<const float>>& parts,
                                          uint64_t step, int threads) {
  std::string all(grid.blocks().size() * kSha256Bytes, '\0');
  std::vector<bool> covered(grid.blocks().size(), false);
  for (const TensorPart<const float>& part : parts) {
    ISTHMUS_ASSIGN_OR_RETURN(
        const BlockSpan blocks,
        BlocksOfPart(grid, {part.tensor, part.first_element, part.data.size()}));
    ISTHMUS_ASSIGN_OR_RETURN(const std::string hashes, HashBlocks(grid, part, threads));
    all.replace(blocks.first * kSha256Bytes, hashes.size(), hashes);
    for (uint32_t b = blocks.first; b < blocks.end; ++b) {
      if (covered[b]) {
        return absl::InvalidArgumentError(
            absl::StrCat("parts overlap in ", grid.Describe(grid.blocks()[b].first_chunk)));
      }
      covered[b] = true;
    }
  }
  for (size_t b = 0; b < covered.size(); ++b) {
    if (covered[b]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("no part holds ", grid.Describe(grid.blocks()[b].first_chunk)));
  }
  return SectionSha256(grid, all, step);
}

}  // namespace isthmus
