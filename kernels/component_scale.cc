#include "kernels/component_scale.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/component_code.h"

namespace isthmus {
namespace {

constexpr uint32_t kScaleMax = 255;

float LargestOf(absl::Span<const float> values) {
  uint32_t largest = 0;
  for (const float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    largest = std::max(largest, bits & 0x7fffffffu);
  }
  float value;
  std::memcpy(&value, &largest, sizeof(value));
  return value;
}

const float* Steps() {
  // 2^(1/4), 2^(1/2), 2^(3/4), rounded once.
  constexpr float kParts[] = {1.0f, 0x1.306fep+0f, 0x1.6a09e6p+0f, 0x1.ae89fap+0f};
  static const std::array<float, kScaleMax + 1> steps = [&] {
    std::array<float, kScaleMax + 1> made{};
    for (int i = 1; i <= static_cast<int>(kScaleMax); ++i) {
      made[i] = std::ldexp(kParts[i % 4], i / 4 - 48);
    }
    return made;
  }();
  return steps.data();
}

uint32_t ScaleFor(float largest, int32_t qmax) {
  if (largest == 0.0f) return 0;
  const float* const steps = Steps();
  const auto levels = static_cast<float>(qmax);
  // From below: the power of two under largest / qmax.
  const float wanted = largest / levels;
  uint32_t bits;
  std::memcpy(&bits, &wanted, sizeof(bits));
  const int first = 4 * (static_cast<int>(bits >> 23) - 127 + 48) - 1;
  auto q = static_cast<uint32_t>(std::min<int>(std::max(first, 1), kScaleMax));
  // In float32, as codes are read: the largest code's own value has its scale again.
  while (q < kScaleMax && steps[q] * levels < largest) ++q;
  return q;
}

// Codes to the nearest, ties to even. Adding and subtracting 1.5 * 2^23 rounds so.
void CodesOf(absl::Span<const float> values, float step, int32_t qmax, int8_t* codes) {
  const float inverse = 1.0f / step;
  const auto limit = static_cast<float>(qmax);
  for (size_t i = 0; i < values.size(); ++i) {
    const float level = std::min(std::max(values[i] * inverse, -limit), limit);
    const float rounded = (level + 12582912.0f) - 12582912.0f;
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(rounded));
  }
}

}  // namespace

float StepOf(uint32_t q) { return Steps()[q]; }

uint32_t ScaledCodes(NumberFormat format, absl::Span<const float> values, int8_t* codes) {
  const uint32_t q = ScaleFor(LargestOf(values), CodeMaxOf(format));
  if (q == 0) {
    std::memset(codes, 0, values.size());
    return 0;
  }
  CodesOf(values, StepOf(q), CodeMaxOf(format), codes);
  // Under the least scale all may be too small for it.
  const bool some = q > 1 || std::any_of(codes, codes + values.size(), [](int8_t c) { return c; });
  return some ? q : 0;
}

bool ValuesOf(const int8_t* codes, uint32_t q, int32_t qmax, absl::Span<float> value) {
  const float step = StepOf(q);
  const int32_t allowed = q == 0 ? 0 : -1;
  uint32_t wrong = 0;
  for (size_t i = 0; i < value.size(); ++i) {
    const int32_t code = codes[i];
    wrong |= static_cast<uint32_t>((code < -qmax) | ((code & ~allowed) != 0));
    value[i] = static_cast<float>(code) * step;
  }
  return wrong == 0;
}

}  // namespace isthmus
