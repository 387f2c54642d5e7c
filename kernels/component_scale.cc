#include "kernels/component_scale.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "absl/base/casts.h"
#include "kernels/component_code.h"

namespace isthmus {
namespace {

constexpr uint32_t kScaleMax = 255;

// From the power of two below what is wanted to the step above it, in quarters, and one for the
// rounding of both.
constexpr uint32_t kQuarters = 6;

// Loops of this fixed length become vectors; a chunk may have no more values.
constexpr size_t kFew = 8;

// The magnitudes of finite floats are in the order of their bits.
uint32_t MagnitudeBits(float value) { return absl::bit_cast<uint32_t>(value) & 0x7fffffffu; }

float LargestOf(absl::Span<const float> values) {
  std::array<uint32_t, kFew> lanes{};
  size_t i = 0;
  for (; i + kFew <= values.size(); i += kFew) {
    for (size_t j = 0; j < kFew; ++j) lanes[j] = std::max(lanes[j], MagnitudeBits(values[i + j]));
  }
  for (; i < values.size(); ++i) lanes[0] = std::max(lanes[0], MagnitudeBits(values[i]));
  return absl::bit_cast<float>(*std::max_element(lanes.begin(), lanes.end()));
}

// [q]: 2^(q / 4 - 48), exact but for the quarter, which is rounded once; [0] is unused. Behind the
// last infinite, so that a search needs no end.
using Steps = std::array<float, kScaleMax + 1 + kQuarters>;
constexpr Steps MakeSteps() {
  constexpr float kParts[] = {1.0f, 0x1.306fep+0f, 0x1.6a09e6p+0f, 0x1.ae89fap+0f};
  Steps steps{};
  float power = 0x1p-48f;
  for (uint32_t q = 0; q < steps.size(); ++q) {
    if (q > 0) steps[q] = q <= kScaleMax ? kParts[q % 4] * power : HUGE_VALF;
    if (q % 4 == 3) power *= 2.0f;
  }
  return steps;
}
constexpr Steps kSteps = MakeSteps();

constexpr std::array<float, kScaleMax + 1> MakeInverses() {
  std::array<float, kScaleMax + 1> inverses{};
  for (uint32_t q = 1; q <= kScaleMax; ++q) inverses[q] = 1.0f / kSteps[q];
  return inverses;
}
constexpr std::array<float, kScaleMax + 1> kInverses = MakeInverses();

// In float32, as codes are read: the largest code's own value has its scale again. Without
// branches, which nothing could foresee.
uint32_t ScaleFor(float largest, int32_t qmax) {
  if (largest == 0.0f) return 0;
  const auto levels = static_cast<float>(qmax);
  const auto bits = absl::bit_cast<uint32_t>(largest * (1.0f / levels));
  const int below = 4 * (static_cast<int>(bits >> 23) - 127 + 48) - 1;
  const auto first = static_cast<uint32_t>(std::min<int>(std::max(below, 1), kScaleMax));
  uint32_t q = first;
  for (uint32_t i = 0; i < kQuarters; ++i) {
    q += static_cast<uint32_t>(kSteps[first + i] * levels < largest);
  }
  return std::min(q, kScaleMax);
}

// To the nearest, ties to even. Adding and subtracting 1.5 * 2^23 rounds so.
inline int8_t CodeOf(float value, float inverse, float limit) {
  const float level = std::min(std::max(value * inverse, -limit), limit);
  const float rounded = (level + 12582912.0f) - 12582912.0f;
  return static_cast<int8_t>(static_cast<int32_t>(rounded));
}

void CodesOf(absl::Span<const float> values, uint32_t q, int32_t qmax, int8_t* codes) {
  const float inverse = kInverses[q];
  const auto limit = static_cast<float>(qmax);
  size_t i = 0;
  for (; i + kFew <= values.size(); i += kFew) {
    for (size_t j = 0; j < kFew; ++j) codes[i + j] = CodeOf(values[i + j], inverse, limit);
  }
  for (; i < values.size(); ++i) codes[i] = CodeOf(values[i], inverse, limit);
}

}  // namespace

float StepOf(uint32_t q) { return kSteps[q]; }

uint32_t ScaledCodes(NumberFormat format, absl::Span<const float> values, int8_t* codes) {
  const uint32_t q = ScaleFor(LargestOf(values), CodeMaxOf(format));
  if (q == 0) {
    std::memset(codes, 0, values.size());
    return 0;
  }
  CodesOf(values, q, CodeMaxOf(format), codes);
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
