// Signs of a chunk's values, -1, 0 or +1, in about a bit each where few are 0: the form of updates
// whose step takes signs alone.
//
// Coded form of a chunk of m values, bits as in kernels/bit_stream.h:
//   0: 1 bit | m bits, set where the value is negative | pad                        none is 0
//   1: 1 bit | z - 1: IndexBits(m) bits | indices of (m, z) (kernels/index_code.h)
//            | m - z bits, of the others in order | pad                             z of them are 0
// An empty chunk is z = m: its head alone.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace isthmus {

// Bytes of a chunk of m values none of which is 0: the usual case.
size_t SignPlaneBytes(size_t m);

// Appends a chunk of 1 to kChunkSideMax^2 values, of which only the sign counts: 0 of +-0. NaN is
// not allowed.
void AppendSignPlane(absl::Span<const float> values, std::vector<char>* out);

// Reads values.size() values, -1, +0 or +1, from the front of *bytes and advances it.
// INVALID_ARGUMENT: truncated, an index beyond the chunk, padding that is not 0. *bytes is then as
// before, and `values` holds nothing of use.
absl::Status ReadSignPlane(absl::string_view* bytes, absl::Span<float> values);

}  // namespace isthmus
