// A part of one tensor that is held here: whole blocks of the canonical grid.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "spec/grid.h"

namespace isthmus {

// `data` covers the elements from `first_element` of the row-major unsharded tensor on; both ends
// are on block boundaries of the grid. The data belongs to the caller.
template <typename T>
struct TensorPart {
  uint32_t tensor = 0;
  uint64_t first_element = 0;
  absl::Span<T> data;
};

// The same parts, to be read.
std::vector<TensorPart<const float>> AsConst(const std::vector<TensorPart<float>>& parts);

// Blocks [first, end) of the grid.
struct BlockSpan {
  uint32_t first = 0;
  uint32_t end = 0;
};

struct ElementRange {
  uint32_t tensor = 0;
  uint64_t first_element = 0;
  uint64_t elements = 0;
};

// The blocks of a part; none for a part without elements. INVALID_ARGUMENT when it is not whole
// blocks of a tensor of the grid.
absl::StatusOr<BlockSpan> BlocksOfPart(const Grid& grid, const ElementRange& part);

}  // namespace isthmus
