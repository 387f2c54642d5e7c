#include "worker/contribution_digest.h"

#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "spec/piece.h"

namespace isthmus {

absl::StatusOr<std::string> BlockHashes(const Grid& grid, const std::vector<std::string>& pieces) {
  std::string hashes(grid.blocks().size() * kSha256Bytes, '\0');
  // Pieces may cut blocks, so they are read in the order of their chunks.
  std::map<uint64_t, PieceView> views;
  for (const std::string& piece : pieces) {
    ISTHMUS_ASSIGN_OR_RETURN(const PieceView view, OpenPiece(grid, piece));
    views.emplace(view.first_chunk, view);
  }
  Components components;
  uint64_t next = 0;  // the chunk that continues a block
  bool inside = false;
  std::unique_ptr<Sha256> hash;
  for (const auto& [first_chunk, view] : views) {
    uint64_t chunk = first_chunk;
    for (ChunkReader reader(&grid, view); !reader.done(); chunk = reader.next_chunk()) {
      const uint32_t number = grid.Place(chunk).block;
      const Block& block = grid.blocks()[number];
      if (inside ? chunk != next : chunk != block.first_chunk) {
        return absl::InvalidArgumentError(
            absl::StrCat("the pieces hold only a part of the block of ", grid.Describe(chunk)));
      }
      if (!inside) hash = std::make_unique<Sha256>();
      ISTHMUS_ASSIGN_OR_RETURN(const absl::string_view coded, reader.Next(&components));
      hash->Update(coded);
      next = chunk + 1;
      inside = next != block.first_chunk + block.chunks;
      if (!inside) hashes.replace(number * kSha256Bytes, kSha256Bytes, hash->Finish());
    }
  }
  if (!inside) return hashes;
  return absl::InvalidArgumentError(
      absl::StrCat("the pieces end before ", grid.Describe(next), " of a block"));
}

std::string DigestOfBlocks(const std::string& block_hashes) { return Sha256Of(block_hashes); }

}  // namespace isthmus
