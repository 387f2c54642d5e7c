// Updates of runs with an outer step as pieces: the values of every chunk in the spec's reply
// format (layout REPLY of spec/piece.h).
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kernels/number_format.h"
#include "spec/grid.h"

namespace isthmus {

// A block's chunks, coded one after the other.
struct CodedBlock {
  std::vector<char> bytes;
  std::vector<size_t> chunk_ends;  // in `bytes`
};

// The values of a block in the order of its tensor, appended to an empty *coded, and back (not of
// TERNARY).
void CodeReplyBlock(const Grid& grid, const Block& block, const NumberSettings& reply,
                    absl::Span<const float> values, CodedBlock* coded);
void DecodeReplyBlock(const Grid& grid, const Block& block, const NumberSettings& reply,
                      const CodedBlock& coded, absl::Span<float> values);

struct CodedUpdate {
  std::vector<std::string> pieces;  // ascending, at most kPieceBytesMax each
  std::string sha256;               // PayloadDigest of them
};

// `code` gets an empty block to fill; it is called once for each block, on several threads.
CodedUpdate WriteReply(const Grid& grid, int threads,
                       const std::function<void(size_t block, CodedBlock* coded)>& code);

}  // namespace isthmus
