// Inside of kernels/component_code.h: the scales of int8 and int4 components and the codes under
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/number_format.h"

namespace isthmus {

inline constexpr int32_t kInt8Max = 127;
inline constexpr int32_t kInt4Max = 7;

// Codes go from -CodeMaxOf to CodeMaxOf.
inline int32_t CodeMaxOf(NumberFormat format) {
  return format == NumberFormat::kInt8 ? kInt8Max : kInt4Max;
}

// What most chunks need is on the stack.
class CodeBuffer {
 public:
  explicit CodeBuffer(size_t count) {
    if (count > sizeof(few_)) many_.resize(count);
  }
  int8_t* data() { return many_.empty() ? few_ : many_.data(); }

 private:
  int8_t few_[256];
  std::vector<int8_t> many_;
};

// Writes a code for each value, and returns their scale.
uint32_t ScaledCodes(NumberFormat format, absl::Span<const float> values, int8_t* codes);

// The values of codes. False: one is beyond +-qmax, or there is none to have without a scale.
bool ValuesOf(const int8_t* codes, uint32_t q, int32_t qmax, absl::Span<float> value);

}  // namespace isthmus
