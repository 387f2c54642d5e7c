#include "kernels/chunk_topk.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "hwy/cache_control.h"
#include "kernels/aggregate.h"
#include "kernels/demo.h"

namespace isthmus {
namespace {

// How the codec names `count` values in a row; its sides end at kChunkSideMax, its coding does not.
ChunkShape RunOf(size_t count) { return {1, static_cast<uint32_t>(count)}; }

// Calls body(first, count, k) for each chunk of `size` values, until one is not OK.
template <class Body>
absl::Status ForEachChunk(const ChunkTopK& settings, size_t size, const Body& body) {
  for (size_t first = 0; first < size; first += settings.chunk) {
    const size_t count = std::min<size_t>(settings.chunk, size - first);
    const absl::Status status =
        body(first, count, std::min(settings.k, static_cast<uint32_t>(count)));
    if (status.ok()) continue;
    return absl::Status(status.code(), absl::StrCat("top-k chunk at value ", first, " of ", size,
                                                    ": ", status.message()));
  }
  return absl::OkStatus();
}

// Reads a chunk from the front of *bytes, and asks for the memory of the next one: several
// contributions are folded in turn, more streams than the hardware looks ahead in.
absl::Status ReadChunk(size_t count, uint32_t k, absl::string_view* bytes, Components* sent) {
  constexpr size_t kCacheLine = 64;
  const size_t own = ContributionChunkBytes(RunOf(count), k);
  for (size_t at = own; at < std::min(2 * own, bytes->size()); at += kCacheLine) {
    hwy::Prefetch(bytes->data() + at);
  }
  return ReadContributionChunk(RunOf(count), k, bytes, sent);
}

}  // namespace

absl::Status CheckChunkTopK(const ChunkTopK& settings) {
  if (settings.chunk < 1 || settings.chunk > kTopKChunkMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "codec.chunk is ", settings.chunk, "; it must be at least 1 and at most ", kTopKChunkMax));
  }
  if (settings.k < 1 || settings.k > settings.chunk) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec.k is ", settings.k, "; it must be at least 1 and at most the chunk, ",
                     settings.chunk));
  }
  return absl::OkStatus();
}

size_t ChunkTopKBytes(const ChunkTopK& settings, size_t count) {
  const size_t rest = count % settings.chunk;
  size_t bytes = count / settings.chunk * ContributionChunkBytes(RunOf(settings.chunk), settings.k);
  if (rest != 0) {
    bytes += ContributionChunkBytes(RunOf(rest), std::min<size_t>(settings.k, rest));
  }
  return bytes;
}

void AppendChunkTopK(const ChunkTopK& settings, absl::Span<const float> values,
                     std::vector<char>* out) {
  Components chosen;
  ForEachChunk(settings, values.size(), [&](size_t first, size_t count, uint32_t k) {
    SelectTopK(values.subspan(first, count), k, &chosen);
    AppendContributionChunk(RunOf(count), k, chosen, out);
    return absl::OkStatus();
  }).IgnoreError();
}

absl::Status ReadChunkTopK(const ChunkTopK& settings, absl::string_view* bytes,
                           absl::Span<float> values) {
  std::fill(values.begin(), values.end(), 0.0f);
  absl::string_view rest = *bytes;
  Components sent;
  ISTHMUS_RETURN_IF_ERROR(
      ForEachChunk(settings, values.size(), [&](size_t first, size_t count, uint32_t k) {
        ISTHMUS_RETURN_IF_ERROR(ReadChunk(count, k, &rest, &sent));
        for (size_t i = 0; i < sent.size(); ++i) values[first + sent.index[i]] = sent.value[i];
        return absl::OkStatus();
      }));
  *bytes = rest;
  return absl::OkStatus();
}

absl::Status FoldChunkTopK(const ChunkTopK& settings, float factor, absl::string_view* bytes,
                           absl::Span<float> sum) {
  absl::string_view rest = *bytes;
  Components sent;
  ISTHMUS_RETURN_IF_ERROR(
      ForEachChunk(settings, sum.size(), [&](size_t first, size_t count, uint32_t k) {
        ISTHMUS_RETURN_IF_ERROR(ReadChunk(count, k, &rest, &sent));
        FoldComponents(factor, sent, sum.subspan(first, count));
        return absl::OkStatus();
      }));
  *bytes = rest;
  return absl::OkStatus();
}

}  // namespace isthmus
