// The codec's unit: a chunk of a tensor, its components and their coded bytes.
//
// A chunk is `rows` x `cols` elements of a matrix (a DCT tile), or 1 x `cols` of a vector (a run);
// sides 1 to 128. Its coefficients are numbered row frequency times cols plus column frequency.
//
// Coded form of one chunk. Both start on a byte boundary; bits fill bytes from the least
// significant one up; unused bits are 0; floats are IEEE-754 little endian.
//   contribution (fixed count k, the same for every sender):
//       k indices of IndexBits(m) bits, ascending | pad to a byte | k float32 values
//   merged (count c differs from chunk to chunk):
//       c of IndexBits(m + 1) bits | c indices | pad to a byte | c float32 values
//   In both, where that (count included) is not smaller than m float32 values, all m values in
//   order stand instead and no index (the merged form then says count m and pads it to a byte). No
//   chunk is ever larger than dense plus its count. There is one coding of given components: a
//   reader refuses a chunk coded the other way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace isthmus {

struct ChunkShape {
  uint32_t rows = 1;
  uint32_t cols = 1;

  uint32_t elements() const { return rows * cols; }
  bool operator==(const ChunkShape& other) const {
    return rows == other.rows && cols == other.cols;
  }
};

// Some coefficients of a chunk: `index` strictly ascending, one value each, all finite.
struct Components {
  std::vector<uint32_t> index;
  std::vector<float> value;

  size_t size() const { return index.size(); }
  void clear() {
    index.clear();
    value.clear();
  }
};

// Bits that tell `count` things apart: ceil(log2(count)), 0 for count <= 1.
uint32_t IndexBits(uint32_t count);

// Whether a contribution of k of m components is sent as m values without indices.
bool ContributionIsDense(uint32_t elements, uint32_t k);

// Coded bytes of a contribution's chunk: a function of shape and k alone. k <= elements; a chunk of
// which nothing is sent (k = 0) takes no byte.
size_t ContributionChunkBytes(ChunkShape shape, uint32_t k);

// Appends the chunk; `components` holds exactly k. Where the form is dense although k < m,
// positions that were not sent are written as +0 and components that are zero as -0: a position
// must not count as sent in a merge with a value that was not. Rule `tiles` raises k to m there,
// for the same bytes; rule `divisor` keeps the published k.
void AppendContributionChunk(ChunkShape shape, uint32_t k, const Components& components,
                             std::vector<char>* out);

// Reads one chunk from the front of *bytes and advances it. Every bound is checked before use. The
// same k components come back in either form (a zero perhaps with its sign changed).
// INVALID_ARGUMENT: truncated, indices not ascending or out of range, padding not zero, value not
// finite, other than k components in the dense form. *bytes is then as before, and *components
// holds nothing of use.
absl::Status ReadContributionChunk(ChunkShape shape, uint32_t k, absl::string_view* bytes,
                                   Components* components);

// The same for the merged form; 0 <= components->size() <= elements. In its dense form positions
// that nobody sent are written, and come back, as +0: decoding gives the same bits with or without
// them.
size_t MergedChunkBytes(ChunkShape shape, uint32_t count);
void AppendMergedChunk(ChunkShape shape, const Components& components, std::vector<char>* out);
absl::Status ReadMergedChunk(ChunkShape shape, absl::string_view* bytes, Components* components);

}  // namespace isthmus
