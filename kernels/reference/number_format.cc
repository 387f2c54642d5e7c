// Number formats, a value at a time.
#include "kernels/number_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/number_bytes.h"
#include "kernels/reference/outer.h"

namespace isthmus {
namespace reference {
namespace {

// To the nearest multiple of 2^exponent, ties to even.
double ToMultiple(double v, int exponent) {
  return std::ldexp(std::nearbyint(std::ldexp(v, -exponent)), exponent);
}

// A float of 16 bits, `fraction` of them behind the point, smallest normal number 2^least.
uint16_t ToHalf(float v, int fraction, int least, float largest) {
  const double size = std::min(std::fabs(v), largest);
  const int exponent = size == 0.0 ? least : std::max(std::ilogb(size), least);
  const double steps = std::ldexp(ToMultiple(size, exponent - fraction), fraction - exponent);
  // The exponent's field counts on where the fraction overflows, and is 0 for what is not normal.
  const int field = exponent - least;
  const uint32_t bits = (static_cast<uint32_t>(field) << fraction) + static_cast<uint32_t>(steps);
  return static_cast<uint16_t>(bits | (std::signbit(v) ? 0x8000u : 0u));
}

int32_t Code(const NumberSettings& settings, float v, float scale, const float* draw) {
  const float qmax = static_cast<float>(CodeMax(settings.format));
  if (scale == 0.0f) return 0;
  const float level = v / scale;
  if (draw == nullptr) {
    return static_cast<int32_t>(std::nearbyint(std::min(std::max(level, -qmax), qmax)));
  }
  const float size = std::min(std::fabs(level), qmax);
  const float low = std::floor(size);
  const float rounded = *draw < size - low ? low + 1.0f : low;
  return static_cast<int32_t>(level < 0.0f ? -rounded : rounded);
}

void PutGroup(const NumberSettings& settings, absl::Span<const float> values, const float* draws,
              char* to) {
  float largest = 0.0f;
  for (const float v : values) largest = std::max(largest, std::fabs(v));
  const float scale = largest / static_cast<float>(CodeMax(settings.format));
  std::memcpy(to, &scale, kScaleBytes);
  to += kScaleBytes;
  for (size_t i = 0; i < values.size(); ++i) {
    const int32_t code = Code(settings, values[i], scale, draws == nullptr ? nullptr : draws + i);
    if (settings.format == NumberFormat::kInt8) {
      to[i] = static_cast<char>(code);
    } else {
      to[i / 2] = static_cast<char>(to[i / 2] | ((code & 15) << (4 * (i % 2))));
    }
  }
}

void PutOne(NumberFormat format, float v, size_t i, char* to) {
  uint16_t half = 0;
  switch (format) {
    case NumberFormat::kF32:
      std::memcpy(to + 4 * i, &v, 4);
      return;
    case NumberFormat::kBf16:
      half = ToHalf(v, 7, -126, 0x1.92p+99f);
      break;
    case NumberFormat::kF16:
      half = ToHalf(v, 10, -14, 65504.0f);
      break;
    case NumberFormat::kSign1:
      to[i / 8] = static_cast<char>(to[i / 8] | ((v >= 0.0f ? 1 : 0) << (i % 8)));
      return;
    default: {
      const int code = v > 0.0f ? 1 : v < 0.0f ? 3 : 0;
      to[i / 4] = static_cast<char>(to[i / 4] | (code << (2 * (i % 4))));
      return;
    }
  }
  std::memcpy(to + 2 * i, &half, 2);
}

bool GetGroup(const NumberSettings& settings, const NumberGroup& group, absl::Span<float> values) {
  const float scale = ScaleAt(group.bytes);
  const int32_t qmax = CodeMax(settings.format);
  bool right = ScaleIsRight(scale, qmax);
  for (size_t i = 0; i < group.count; ++i) {
    const int32_t code = CodeAt(settings.format, group.bytes + kScaleBytes, i);
    right = right && code >= -qmax && (code == 0 || scale != 0.0f);
    values[group.first + i] = static_cast<float>(code) * scale;
  }
  if (settings.format == NumberFormat::kInt4 && group.count % 2 == 1) {
    right = right && CodeAt(settings.format, group.bytes + kScaleBytes, group.count) == 0;
  }
  return right;
}

}  // namespace

void EncodeNumbers(const NumberSettings& settings, absl::Span<const float> values,
                   absl::Span<const float> draws, char* to) {
  if (values.empty()) return;
  std::memset(to, 0, NumberBytes(settings, values.size()));
  std::vector<float> taken(values.begin(), values.end());
  for (float& v : taken) v = std::min(std::max(v, -kNumberMax), kNumberMax);
  if (settings.format != NumberFormat::kInt8 && settings.format != NumberFormat::kInt4) {
    for (size_t i = 0; i < taken.size(); ++i) PutOne(settings.format, taken[i], i, to);
    return;
  }
  for (size_t first = 0; first < taken.size(); first += settings.group) {
    const size_t count = std::min<size_t>(settings.group, taken.size() - first);
    PutGroup(settings, absl::MakeConstSpan(taken).subspan(first, count),
             draws.empty() ? nullptr : draws.data() + first, to);
    to += GroupBytes(settings, count);
  }
}

bool DecodeNumbers(const NumberSettings& settings, const char* bytes, absl::Span<float> values) {
  const size_t count = values.size();
  bool right = true;
  switch (settings.format) {
    case NumberFormat::kInt8:
    case NumberFormat::kInt4:
      for (size_t first = 0; first < count; first += settings.group) {
        right = GetGroup(settings, GroupAt(settings, bytes, first, count), values) && right;
      }
      return right;
    case NumberFormat::kSign1:
      for (size_t i = 0; i < (count + 7) / 8 * 8; ++i) {
        const int bit = (static_cast<uint8_t>(bytes[i / 8]) >> (i % 8)) & 1;
        if (i < count) values[i] = bit == 1 ? 1.0f : -1.0f;
        right = right && (i < count || bit == 0);
      }
      return right;
    case NumberFormat::kTernary:
      for (size_t i = 0; i < (count + 3) / 4 * 4; ++i) {
        const int32_t code = CodeAt(settings.format, bytes, i);
        if (i < count) values[i] = static_cast<float>(code);
        right = right && code != -2 && (i < count || code == 0);
      }
      return right;
    default:
      for (size_t i = 0; i < count; ++i) {
        values[i] = FloatAt(settings.format, bytes, i);
        right = right && std::fabs(values[i]) <= kNumberMax;
      }
      return right;
  }
}

void HadamardInPlace(uint32_t n, absl::Span<float> values) {
  const float factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (size_t first = 0; first < values.size(); first += n) {
    float* v = values.data() + first;
    for (uint32_t h = 1; h < n; h *= 2) {
      for (uint32_t i = 0; i < n; ++i) {
        if ((i & h) != 0) continue;
        const float sum = v[i] + v[i + h];
        const float difference = v[i] - v[i + h];
        v[i] = sum;
        v[i + h] = difference;
      }
    }
    for (uint32_t i = 0; i < n; ++i) v[i] *= factor;
  }
}

}  // namespace reference
}  // namespace isthmus
