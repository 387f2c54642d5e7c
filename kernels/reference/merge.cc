// Merge of several senders' components of one chunk.
#include <cfloat>
#include <cmath>

#include "base/check.h"
#include "base/limits.h"
#include "kernels/demo.h"

namespace isthmus {
namespace {

constexpr uint32_t kChunkElementsMax = kChunkSideMax * kChunkSideMax;
constexpr uint32_t kBitsPerWord = 64;

}  // namespace

void MergeBySenders(absl::Span<const Components* const> senders, uint32_t elements,
                    Components* merged) {
  ISTHMUS_CHECK(elements <= kChunkElementsMax);
  // Sums and counts are only read where a bit of `sent` is set, so they need no clearing and the
  // cost follows the number of components, not that of elements.
  float sum[kChunkElementsMax];
  uint32_t count[kChunkElementsMax];
  uint64_t sent[kChunkElementsMax / kBitsPerWord] = {};
  size_t positions = 0;
  for (const Components* sender : senders) {
    for (size_t i = 0; i < sender->size(); ++i) {
      const uint32_t at = sender->index[i];
      ISTHMUS_CHECK(at < elements);
      const uint64_t bit = uint64_t{1} << (at % kBitsPerWord);
      if ((sent[at / kBitsPerWord] & bit) == 0) {
        sent[at / kBitsPerWord] |= bit;
        sum[at] = sender->value[i];
        count[at] = 1;
        ++positions;
      } else {
        sum[at] += sender->value[i];
        ++count[at];
      }
    }
  }
  merged->clear();
  merged->index.reserve(positions);
  merged->value.reserve(positions);
  for (uint32_t word = 0; word < kChunkElementsMax / kBitsPerWord; ++word) {
    for (uint64_t left = sent[word]; left != 0; left &= left - 1) {
      const uint32_t at = word * kBitsPerWord + static_cast<uint32_t>(__builtin_ctzll(left));
      float value = sum[at] / static_cast<float>(count[at]);
      // Finite numbers only reach infinity by their sum; it then stays one, never a NaN.
      if (std::isinf(value)) value = std::copysign(FLT_MAX, value);
      merged->index.push_back(at);
      merged->value.push_back(value);
    }
  }
}

}  // namespace isthmus
