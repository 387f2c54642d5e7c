// The forms in which the update of a round of components travels: exact equivalents of what was
// merged, of which the smallest is sent (design rule 19).
//
//   components     MERGED, MERGED_VOTES: what was merged, as FoldContributions writes it
//   contributions  what was sent, as it came: a mean of two nodes' values takes all bits of a
//                  float, what each of them sent may take four
//   sign plane     the signs of the decoded update, a bit a parameter, where the step takes signs
//   dense          MERGED_DENSE: every merged value
#pragma once

#include <string>
#include <vector>

#include "server/contribution.h"
#include "server/fold.h"
#include "spec/grid.h"

namespace isthmus {

// What decoding a parameter here must save at least, as a share of a byte: a sign plane costs the
// coordinator a transform of the whole model, components cost by what was sent. At 300 million
// parameters a second it is the time that a line of 150 Mbit/s takes for these bytes.
inline constexpr uint64_t kDecodedPerByte = 16;

// The update of `folded`, the fold of `contributions`, in the form that the codec forces, or in the
// smallest; of equal ones in the first above. A function of what was sent alone: neither the
// machine nor `threads` nor the pieces in which it came matter, and the norm stays that of the
// merged values. Updates of codecs without forms stay as they are.
FoldedUpdate InForm(const Grid& grid, FoldedUpdate folded,
                    const std::vector<std::vector<HeldPiece>>& contributions, int threads);

}  // namespace isthmus
