// Inside of kernels/number_format.h: where the numbers of a block stand, one at a time, and the
// functions that do many at once. The caller has checked lengths.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "base/check.h"
#include "kernels/number_format.h"

namespace isthmus {

inline constexpr size_t kScaleBytes = 4;

// Codes go from -CodeMax to CodeMax.
inline int32_t CodeMax(NumberFormat format) { return format == NumberFormat::kInt8 ? 127 : 7; }

// int8, int4: scale and codes of `count` values.
inline size_t GroupBytes(const NumberSettings& settings, size_t count) {
  return kScaleBytes + (settings.format == NumberFormat::kInt8 ? count : (count + 1) / 2);
}

inline float ScaleAt(const char* bytes) {
  float scale;
  std::memcpy(&scale, bytes, sizeof(scale));
  return scale;
}

inline bool ScaleIsRight(float scale, int32_t qmax) {
  return !std::signbit(scale) && scale <= kNumberMax / static_cast<float>(qmax);
}

struct NumberGroup {
  const char* bytes;  // of its scale
  size_t first;       // value of the block
  size_t count;
};

// The group that begins with value `first`, a multiple of the group, of a block of `count`.
inline NumberGroup GroupAt(const NumberSettings& settings, const char* bytes, size_t first,
                           size_t count) {
  const size_t before = first / settings.group * GroupBytes(settings, settings.group);
  return {bytes + before, first, std::min<size_t>(settings.group, count - first)};
}

// Code i of an int8 or int4 group, or of a ternary block.
inline int32_t CodeAt(NumberFormat format, const char* bytes, size_t i) {
  if (format == NumberFormat::kInt8) return static_cast<int8_t>(bytes[i]);
  if (format == NumberFormat::kInt4) {
    const int32_t nibble = (static_cast<uint8_t>(bytes[i / 2]) >> (4 * (i % 2))) & 15;
    return (nibble ^ 8) - 8;
  }
  const int32_t pair = (static_cast<uint8_t>(bytes[i / 4]) >> (2 * (i % 4))) & 3;
  return (pair ^ 2) - 2;
}

// Value i of an f32, bf16 or f16 block; NaNs of 16 bits as infinities.
float FloatAt(NumberFormat format, const char* bytes, size_t i);

// What AppendNumbers writes, without the rotation, to NumberBytes at `to`.
void EncodeNumbers(const NumberSettings& settings, absl::Span<const float> values,
                   absl::Span<const float> draws, char* to);
// The other way. False where ReadNumbers would say what is wrong.
bool DecodeNumbers(const NumberSettings& settings, const char* bytes, absl::Span<float> values);

}  // namespace isthmus
