// Chunks of components on the wire, small: indices as in kernels/index_code.h, values in a number
// format. What of a chunk's m elements is sent is up to k components (kernels/chunk.h is the older
// form, with float32 values and indices of equal width).
//
// All begin on a byte boundary; bits fill bytes from the least significant one up, what is left of
// the last byte is 0; numbers are little endian.
//   contribution, of k components
//       f32, bf16, f16  indices | pad | values, to the nearest (kernels/number_format.h)
//       int8            indices | pad | scale: 8 bits | codes: 8 bits each, two's complement
//       int4            indices | scale: 8 bits | codes: 4 bits each | pad
//       sign1           0: 1 bit | indices | a bit each, set where it is negative | pad
//                       or, where some of the k are 0, which have no sign:
//                       1: 1 bit | how many are not, c < k: IndexBits(k) bits | their c indices,
//                       of (m, c) | a bit each | pad
//   merged, of any count c
//       c: IndexBits(m + 1) bits | indices of (m, c) | pad | c float32 values
//   votes: a merged chunk whose values are s / n, the sum of n signs divided by their number, in
//       lowest terms, n at most kNodesMax
//       c | indices | each n (Elias gamma) and s + n in IndexBits(2 n + 1) bits | pad
//   dense: m float32 values, those that nobody sent +0
//
// A scale q is StepOf(q) = 2^(q / 4 - 48), of which the fraction's power is one of four float32
// constants; q = 0 is that of codes that are all 0. A value is code * StepOf(q), rounded once; the
// scale that is written is the least with qmax * StepOf(q) >= the largest magnitude, where qmax is
// 127 or 7, and at most 255: values beyond are cut off. A code is the integer nearest to value *
// (1 / StepOf(q)) in float32, of two equally near the even one.
//
// Reading is bit-equal everywhere. Reading what was written of values that were read gives them
// again, in every format, so a sender knows what others read by rounding first (RoundValues).
// No chunk with float32 values takes more bytes than m of them (merged: and the count).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/chunk.h"
#include "kernels/number_format.h"

namespace isthmus {

// The step of a scale, 0 <= q <= 255; 0 of q = 0.
float StepOf(uint32_t q);

// INVALID_ARGUMENT: a format that components are not sent in (ternary).
absl::Status CheckComponentFormat(NumberFormat format);

// Fewest and most bytes of a contribution's chunk: 0 where k is.
size_t ComponentChunkBytesMin(uint32_t m, uint32_t k, NumberFormat format);
size_t ComponentChunkBytesMax(uint32_t m, uint32_t k, NumberFormat format);

// What others will read of a chunk's values: each as it is, or the nearest that the format has.
// sign1: no magnitude is sent, and the values stay as they are (docs/method.md).
void RoundValues(NumberFormat format, absl::Span<float> values);
// The same as a function of values alone; null where they stay as they are.
using ValueRounder = void (*)(absl::Span<float> values);
ValueRounder RounderOf(NumberFormat format);

// Appends a contribution's chunk: exactly k components, finite.
void AppendComponentChunk(uint32_t m, uint32_t k, NumberFormat format, const Components& components,
                          std::vector<char>* out);
// Reads one from the front of *bytes and advances it; of sign1 the values are +1 and -1, and those
// that were 0 are missing. INVALID_ARGUMENT: truncated, an index that is not below m, a value that
// is not finite, a code beyond +-qmax or without a scale, padding that is not 0. *bytes is then as
// before, and *components holds nothing of use.
absl::Status ReadComponentChunk(uint32_t m, uint32_t k, NumberFormat format,
                                absl::string_view* bytes, Components* components);

// The same for merged chunks, 0 <= components->size() <= m.
void AppendMergedComponents(uint32_t m, const Components& components, std::vector<char>* out);
absl::Status ReadMergedComponents(uint32_t m, absl::string_view* bytes, Components* components);

// All values are votes, as MergeBySenders makes of up to kNodesMax sign1 contributions.
void AppendMergedVotes(uint32_t m, const Components& components, std::vector<char>* out);
absl::Status ReadMergedVotes(uint32_t m, absl::string_view* bytes, Components* components);

// All values in order. Reading gives m components.
void AppendMergedDense(uint32_t m, const Components& components, std::vector<char>* out);
absl::Status ReadMergedDense(uint32_t m, absl::string_view* bytes, Components* components);

}  // namespace isthmus
