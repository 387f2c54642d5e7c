#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "spec/piece.h"

namespace isthmus {
namespace {

// Opens the pieces and sorts them; checks that they cover the model once, in one layout.
absl::StatusOr<std::vector<PieceView>> OpenComplete(const Grid& grid,
                                                    absl::Span<const std::string* const> pieces) {
  std::vector<PieceView> views;
  views.reserve(pieces.size());
  for (const std::string* piece : pieces) {
    ISTHMUS_ASSIGN_OR_RETURN(PieceView view, OpenPiece(grid, *piece));
    if (!views.empty() && view.codec != views.front().codec) {
      return absl::InvalidArgumentError(absl::StrCat("a payload has pieces of layouts ",
                                                     views.front().codec, " and ", view.codec,
                                                     "; all of its pieces have one"));
    }
    views.push_back(view);
  }
  std::sort(views.begin(), views.end(),
            [](const PieceView& a, const PieceView& b) { return a.first_chunk < b.first_chunk; });
  uint64_t next = 0;
  for (const PieceView& view : views) {
    if (view.first_chunk != next) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the payload ", view.first_chunk > next ? "lacks " : "has twice ",
          grid.Describe(std::min(next, view.first_chunk)), "; it holds each chunk once"));
    }
    next = view.end_chunk;
  }
  if (next != grid.chunks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the payload lacks ", grid.Describe(next), "; it holds each chunk once"));
  }
  return views;
}

}  // namespace

absl::StatusOr<std::string> PayloadDigest(const Grid& grid,
                                          absl::Span<const std::string* const> pieces) {
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<PieceView> views, OpenComplete(grid, pieces));
  Sha256 root;
  std::optional<Sha256> block_hash;
  size_t block = 0;
  Components components;
  for (const PieceView& view : views) {
    for (ChunkReader reader(&grid, view); !reader.done();) {
      ISTHMUS_ASSIGN_OR_RETURN(const absl::string_view coded, reader.Next(&components));
      if (!block_hash.has_value()) block_hash.emplace();
      block_hash->Update(coded);
      const Block& current = grid.blocks()[block];
      if (reader.next_chunk() == current.first_chunk + current.chunks) {
        root.Update(block_hash->Finish());
        block_hash.reset();
        ++block;
      }
    }
  }
  return root.Finish();
}

}  // namespace isthmus
