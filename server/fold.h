// Merges the contributions to a round into its update: per chunk and position the mean over those
// nodes that sent it, in the order given (ascending node name), in float32. Where rows travel
// (spec/rows.h) all nodes send all positions.
#pragma once

#include <string>
#include <vector>

#include "server/contribution.h"
#include "spec/grid.h"

namespace isthmus {

struct FoldedUpdate {
  std::vector<std::string> pieces;
  v1::PayloadCodec layout = v1::PAYLOAD_CODEC_UNSPECIFIED;  // of them
  // 2-norm of the merged values: the blocks' sums of squares, in double, added in block order; the
  // root rounded once to float32.
  float norm = 0;
};

// `contributions`: one for each included node in ascending name, at least one; each covers the
// model with checked pieces, ascending. Returns the update's pieces (UpdateLayout, at most
// kPieceBytesMax), ascending. The bytes depend on nothing but the contributions' chunks: not on how
// those were cut into pieces, not on who came first, not on `threads`.
FoldedUpdate FoldContributions(const Grid& grid,
                               const std::vector<std::vector<HeldPiece>>& contributions,
                               int threads);

}  // namespace isthmus
