// Entropy-coded signs: values -1, 0 and +1 in about as many bits as they are worth. For updates,
// whose chunks may differ in length; contributions in NumberFormat::kTernary have two bits a value.
//
// Coded form of a chunk: a 16-bit word, little endian, then a body.
//   word 0       the body is NumberFormat::kTernary of the values: nothing shorter was found
//   word n > 0   the body is n bytes of an adaptive binary range coder. Decisions in the order of
//                the values: whether it is not 0, in the context of how many of the two before it
//                were not; then, if so, whether it is -1.
// The coder is the carry-propagating one of G. N. N. Martin (1979, "Range encoding") for binary
// decisions: 32 bits of range, probabilities of 12 bits that begin at one half and move by a 32nd
// of the distance. All of it is integer arithmetic, bit-equal everywhere.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace isthmus {

// Most values of a chunk: the body's length has 16 bits.
inline constexpr size_t kTritsMax = 65536;

// Appends a chunk of at most kTritsMax values, of which only the sign counts: 0 of +-0, NaN is not
// allowed.
void AppendTrits(absl::Span<const float> values, std::vector<char>* out);

// Reads values.size() values, -1, 0 or +1, from the front of *bytes and advances it.
// INVALID_ARGUMENT: truncated, or a body that does not end with the last value. *bytes is then as
// before, and `values` holds nothing of use.
absl::Status ReadTrits(absl::string_view* bytes, absl::Span<float> values);

}  // namespace isthmus
