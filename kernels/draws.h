// Random numbers that are a function of where they are used: one for each element of a fragment in
// a round of a run. Nothing is kept between calls, so neither the cut into spans nor threads,
// placement or a second try change a draw.
//
// The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as
// easy as 1, 2, 3"). The draw of element i takes
//   counter  words {c mod 2^32, c / 2^32, round, fragment}, c = 16 * (i / 64) + i mod 16
//   key      words {seed mod 2^32, seed / 2^32}
//   output   word (i / 16) mod 4, of which the upper 24 bits are a number in [0, 1)
// so that 64 elements share 16 counters and vectors of up to 16 lanes need no shuffle.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace isthmus {

// Two uses with one key would be correlated: another use takes another seed.
struct DrawKey {
  uint64_t seed = 0;  // of the run
  uint32_t fragment = 0;
  uint32_t round = 0;
};

// Elements whose draws are made together; calls that begin at a multiple of it are the fastest.
inline constexpr size_t kDrawsTogether = 64;

// out[i] <- the draw of element first_element + i, uniform in [0, 1) in steps of 2^-24. Bit-equal
// everywhere. Thread-safe.
void UniformDraws(const DrawKey& key, uint64_t first_element, absl::Span<float> out);

}  // namespace isthmus
