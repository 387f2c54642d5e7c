// Selection `chunk_topk`: of each `chunk` consecutive values of a block the k of largest magnitude
// (of equal ones the lower index), coded as a contribution's chunk (kernels/chunk.h): indices of
// ceil(log2(chunk)) bits, then float32 values. A short last chunk keeps min(k, its length). What is
// not sent is 0. A call is for one block of the canonical grid, or for whole chunks of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/chunk.h"

namespace isthmus {

struct ChunkTopK {
  uint32_t chunk = 4096;
  uint32_t k = 64;
};

// A block of a vector has that many values.
inline constexpr uint32_t kTopKChunkMax = 4096;

// INVALID_ARGUMENT naming field and value: a chunk of 0 or above its limit, a k of 0 or above the
// chunk.
absl::Status CheckChunkTopK(const ChunkTopK& settings);

// Bytes of `count` values.
size_t ChunkTopKBytes(const ChunkTopK& settings, size_t count);

// Appends ChunkTopKBytes. All values are finite.
void AppendChunkTopK(const ChunkTopK& settings, absl::Span<const float> values,
                     std::vector<char>* out);

// Reads values.size() values from the front of *bytes, zeros where nothing was sent, and advances
// it. INVALID_ARGUMENT as ReadContributionChunk, naming the chunk; *bytes is then as before.
absl::Status ReadChunkTopK(const ChunkTopK& settings, absl::string_view* bytes,
                           absl::Span<float> values);

// The same, but what was sent is added: sum[i] <- sum[i] + factor * value, with the bits of reading
// and folding (FoldComponents). After an error, which is found chunk by chunk, `sum` holds nothing
// of use: callers check what comes from others before they fold it.
absl::Status FoldChunkTopK(const ChunkTopK& settings, float factor, absl::string_view* bytes,
                           absl::Span<float> sum);

}  // namespace isthmus
