#include "worker/held_part.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace isthmus {

std::vector<TensorPart<const float>> AsConst(const std::vector<TensorPart<float>>& parts) {
  std::vector<TensorPart<const float>> result;
  for (const TensorPart<float>& part : parts) {
    result.push_back({part.tensor, part.first_element, part.data});
  }
  return result;
}

absl::StatusOr<BlockSpan> BlocksOfPart(const Grid& grid, const ElementRange& part) {
  if (part.tensor >= grid.tensors()) {
    return absl::InvalidArgumentError(absl::StrCat("a part is of tensor number ", part.tensor,
                                                   "; the model has ", grid.tensors()));
  }
  const uint64_t size = grid.tensor_elements(part.tensor);
  if (part.first_element > size || part.elements > size - part.first_element) {
    return absl::InvalidArgumentError(
        absl::StrCat("a part of '", grid.tensor_name(part.tensor), "' has ", part.elements,
                     " elements from ", part.first_element, " on; the tensor has ", size));
  }
  const auto begin = grid.blocks().begin();
  const auto last = begin + grid.tensor_end_block(part.tensor);
  const auto at = [&](uint64_t element) {
    return std::lower_bound(begin + grid.tensor_first_block(part.tensor), last, element,
                            [](const Block& b, uint64_t e) { return b.first_element < e; });
  };
  for (const uint64_t cut : {part.first_element, part.first_element + part.elements}) {
    const auto block = at(cut);
    if (cut == size || (block != last && block->first_element == cut)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("a part of '", grid.tensor_name(part.tensor), "' begins or ends at element ",
                     cut, ", inside the block that begins at ", (block - 1)->first_element,
                     "; cut tensors at block boundaries only"));
  }
  return BlockSpan{static_cast<uint32_t>(at(part.first_element) - begin),
                   static_cast<uint32_t>(at(part.first_element + part.elements) - begin)};
}

}  // namespace isthmus
