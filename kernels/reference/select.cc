// Top-k selection in a chunk.
#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "base/check.h"
#include "kernels/reference/reference.h"

namespace isthmus {
namespace reference {

void SelectTopK(absl::Span<const float> coefficients, uint32_t k, Components* out) {
  const uint32_t size = static_cast<uint32_t>(coefficients.size());
  ISTHMUS_CHECK(k >= 1 && k <= size);
  // One integer orders as the rule says: the magnitude's bits above (those of finite floats without
  // their sign are in the order of the numbers), and below the index, lower ones larger.
  std::vector<uint64_t> keys(size);
  for (uint32_t i = 0; i < size; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &coefficients[i], sizeof(bits));
    keys[i] = (uint64_t{bits & 0x7fffffffu} << 32) | (0xffffffffu - i);
  }
  if (k < size) {
    std::nth_element(keys.begin(), keys.begin() + k, keys.end(), std::greater<uint64_t>());
  }
  out->index.resize(k);
  out->value.resize(k);
  for (uint32_t i = 0; i < k; ++i) out->index[i] = 0xffffffffu - static_cast<uint32_t>(keys[i]);
  std::sort(out->index.begin(), out->index.end());
  for (uint32_t i = 0; i < k; ++i) out->value[i] = coefficients[out->index[i]];
}

}  // namespace reference
}  // namespace isthmus
