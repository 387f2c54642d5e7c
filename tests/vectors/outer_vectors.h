// Compares this implementation with recorded outer updates: steps, aggregation, number formats and
// error feedback. The form of the recordings is described in tests/vectors/README.md.
#pragma once

#include <vector>

#include "tests/vectors/comparison.h"
#include "tests/vectors/vector_file.h"

namespace isthmus {

// Whether the file holds families of outer updates.
bool HasOuterVectors(const VectorFile& file);

// Everything in the file: one comparison a case, compared or skipped with a reason.
std::vector<Comparison> CheckOuterVectors(const VectorFile& file);

}  // namespace isthmus
