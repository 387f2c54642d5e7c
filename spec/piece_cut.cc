#include "spec/piece_cut.h"

#include <algorithm>
#include <map>

#include "absl/strings/string_view.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "spec/piece.h"

namespace isthmus {

absl::StatusOr<std::vector<std::string>> CutPieces(
    const Grid& grid, const std::vector<std::pair<uint64_t, uint64_t>>& ranges,
    std::vector<std::string> pieces) {
  ChunkRanges wanted;
  for (const auto& [begin, end] : ranges) wanted.Add(begin, end);
  std::map<uint64_t, std::string> kept;  // by first chunk
  for (std::string& bytes : pieces) {
    ISTHMUS_ASSIGN_OR_RETURN(const PieceView piece, OpenPiece(grid, bytes));
    if (!wanted.Overlaps(piece.first_chunk, piece.end_chunk)) continue;
    if (wanted.Contains(piece.first_chunk, piece.end_chunk)) {
      kept[piece.first_chunk] = std::move(bytes);
      continue;
    }
    PieceWriter writer(&grid, piece.codec, kPieceBytesMax);
    Components ignored;
    for (ChunkReader reader(&grid, piece); !reader.done();) {
      const uint64_t chunk = reader.next_chunk();
      ISTHMUS_ASSIGN_OR_RETURN(const absl::string_view coded, reader.Next(&ignored));
      if (wanted.Contains(chunk, chunk + 1)) writer.AppendCoded(chunk, coded);
    }
    for (std::string& cut : writer.Finish()) {
      ISTHMUS_ASSIGN_OR_RETURN(const PieceView view, OpenPiece(grid, cut));
      kept[view.first_chunk] = std::move(cut);
    }
  }
  std::vector<std::string> result;
  for (auto& [first, bytes] : kept) result.push_back(std::move(bytes));
  return result;
}

}  // namespace isthmus
