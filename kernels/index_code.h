// Which k of m positions: close to the fewest bits there can be, log2 C(m, k), of which packing
// numbers of equal width is a third away. Both sides know m and k.
//
// What is coded are the j = min(k, m - k) positions that are the fewer: those chosen, or where
// k > m - k those that are not.
//   j = 0   nothing
//   j = 1   the position in truncated binary: with B = IndexBits(m) and u = 2^B - m, positions
//           below u have B - 1 bits; of the others position + u, its upper B - 1 bits first, then
//           its last one
//   else    Rice codes (R. F. Rice, 1979) of the gaps: with g = position - (the one before + 1),
//           g >> b zeros, a one, then the b low bits of g. b is the least with
//           2^b * 20,000 * (j + 1) >= 4,812 * (2 m - j + 1): the power of two at or above
//           0.4812 times (the mean gap + 1/2), which is best for gaps that fall geometrically
//           (Gallager and Van Voorhis, 1975). With b = 0 these are the bits of a bitmap, up to the
//           last one that is set.
// No choice depends on the positions. Sets that are the worst for it take IndexCodeBitsMax, which
// is at most 1.1 m bits and at most 32 j, so that components with float32 values never take more
// than all m values would.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/bit_stream.h"

namespace isthmus {

// What follows from (m, k).
struct IndexCode {
  IndexCode(uint32_t m, uint32_t k);

  uint32_t elements = 0;  // m
  uint32_t count = 0;     // k
  uint32_t coded = 0;     // j
  bool is_complement = false;
  uint32_t low_bits = 0;  // b
};

// Bits of the best and of the worst set.
size_t IndexCodeBitsMin(const IndexCode& code);
size_t IndexCodeBitsMax(const IndexCode& code);

// Puts `index`: code.count positions, strictly ascending, below code.elements.
void PutIndices(const IndexCode& code, absl::Span<const uint32_t> index, BitWriter64* writer);

// Gets them. False, and `index` (code.count of them) holds nothing of use: a position that is not
// below code.elements, or data that ends before. Order and difference need no check: no bits say
// otherwise.
bool GetIndices(const IndexCode& code, BitReader64* reader, absl::Span<uint32_t> index);

}  // namespace isthmus
