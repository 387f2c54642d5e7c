// The slow obvious merge of contributions: what an update must be, bit for bit.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "spec/grid.h"
#include "tests/history/history.h"

namespace isthmus {

// Values of each chunk, zeros where nothing was sent. An error: a piece is damaged.
using DenseChunks = std::vector<std::vector<float>>;
absl::StatusOr<DenseChunks> ReadDense(const Grid& grid, const std::vector<std::string>& pieces);

// Per chunk and position the mean over those who sent it, added up in the order given, which is
// ascending node name; a mean beyond float32 is its largest number.
absl::StatusOr<DenseChunks> PlainFold(const Grid& grid, const std::vector<PiecesPtr>& nodes);

// What a sign plane has of it: the signs of the decoded values.
void TakeSigns(const Grid& grid, DenseChunks* chunks);

// Whether all bits are the same.
bool SameBits(const DenseChunks& a, const DenseChunks& b);

}  // namespace isthmus
