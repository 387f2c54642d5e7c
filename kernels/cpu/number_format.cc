// Number formats for each target of Highway. Most loops are plain: the compiler makes vectors of
// them for the target, and keeps each operation's rounding.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/number_format.cc"
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// It comes before all that is included once a target.
#include "hwy/highway.h"
#include "kernels/cpu/half-inl.h"
#include "kernels/cpu/vectors-inl.h"
#include "kernels/number_bytes.h"
#include "kernels/number_format.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus {
namespace HWY_NAMESPACE {

HWY_INLINE float Clamped(float v, float limit) { return std::min(std::max(v, -limit), limit); }

// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even, while |v| < 2^22.
HWY_INLINE float RoundHalfToEven(float v) {
  const float large = 12582912.0f;
  return (v + large) - large;
}

// Codes of a group as integers; the scale is not 0.
template <int32_t qmax>
void NearestCodes(const float* HWY_RESTRICT v, size_t count, float scale,
                  int8_t* HWY_RESTRICT codes) {
  for (size_t i = 0; i < count; ++i) {
    const float level = Clamped(Clamped(v[i], kNumberMax) / scale, qmax);
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(RoundHalfToEven(level)));
  }
}

template <int32_t qmax>
void RandomCodes(const float* HWY_RESTRICT v, const float* HWY_RESTRICT draws, size_t count,
                 float scale, int8_t* HWY_RESTRICT codes) {
  for (size_t i = 0; i < count; ++i) {
    const float level = std::fabs(Clamped(v[i], kNumberMax)) / scale;
    const float size = std::min(level, static_cast<float>(qmax));
    const int32_t low = static_cast<int32_t>(size);
    const int32_t up = draws[i] < size - static_cast<float>(low) ? 1 : 0;
    codes[i] = static_cast<int8_t>(v[i] < 0.0f ? -(low + up) : low + up);
  }
}

// The magnitudes of finite floats are in the order of their bits.
HWY_INLINE float LargestMagnitude(const float* HWY_RESTRICT v, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, v + i, sizeof(bits));
    largest = std::max(largest, bits & 0x7fffffffu);
  }
  float value;
  std::memcpy(&value, &largest, sizeof(value));
  return std::min(value, kNumberMax);
}

HWY_INLINE void PackNibbles(const int8_t* HWY_RESTRICT codes, size_t count, char* HWY_RESTRICT to) {
  for (size_t i = 0; i < count / 2; ++i) {
    to[i] = static_cast<char>((codes[2 * i] & 15) | ((codes[2 * i + 1] & 15) << 4));
  }
  if (count % 2 == 1) to[count / 2] = static_cast<char>(codes[count - 1] & 15);
}

template <int32_t qmax>
void EncodeInts(const NumberSettings& settings, const float* v, const float* draws, size_t count,
                char* to) {
  int8_t codes[kNumberGroupMax];
  for (size_t first = 0; first < count; first += settings.group) {
    const size_t size = std::min<size_t>(settings.group, count - first);
    const float scale = LargestMagnitude(v + first, size) / static_cast<float>(qmax);
    std::memcpy(to, &scale, kScaleBytes);
    if (scale == 0.0f) {
      std::memset(codes, 0, size);
    } else if (draws != nullptr) {
      RandomCodes<qmax>(v + first, draws + first, size, scale, codes);
    } else {
      NearestCodes<qmax>(v + first, size, scale, codes);
    }
    if (qmax == 127) {
      std::memcpy(to + kScaleBytes, codes, size);
    } else {
      PackNibbles(codes, size, to + kScaleBytes);
    }
    to += GroupBytes(settings, size);
  }
}

// Whether a code is none: its bits have the sign alone, or the scale is 0 and they are not.
HWY_INLINE uint32_t IsWrong(int32_t code, int32_t qmax, int32_t allowed) {
  return static_cast<uint32_t>((code < -qmax) | ((code & ~allowed) != 0));
}

HWY_INLINE bool DecodeBytes(const char* HWY_RESTRICT from, size_t count, float scale,
                            float* HWY_RESTRICT out) {
  const int32_t allowed = scale == 0.0f ? 0 : -1;
  uint32_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t code = static_cast<int8_t>(from[i]);
    wrong |= IsWrong(code, 127, allowed);
    out[i] = static_cast<float>(code) * scale;
  }
  return wrong == 0;
}

HWY_INLINE bool DecodeNibbles(const char* HWY_RESTRICT from, size_t count, float scale,
                              float* HWY_RESTRICT out) {
  const int32_t allowed = scale == 0.0f ? 0 : -1;
  uint32_t wrong = 0;
  for (size_t i = 0; i < count / 2; ++i) {
    const int32_t byte = static_cast<uint8_t>(from[i]);
    const int32_t low = ((byte & 15) ^ 8) - 8;
    const int32_t high = ((byte >> 4) ^ 8) - 8;
    wrong |= IsWrong(low, 7, allowed) | IsWrong(high, 7, allowed);
    out[2 * i] = static_cast<float>(low) * scale;
    out[2 * i + 1] = static_cast<float>(high) * scale;
  }
  if (count % 2 == 1) {
    const int32_t byte = static_cast<uint8_t>(from[count / 2]);
    const int32_t low = ((byte & 15) ^ 8) - 8;
    wrong |= IsWrong(low, 7, allowed) | static_cast<uint32_t>(byte >> 4);
    out[count - 1] = static_cast<float>(low) * scale;
  }
  return wrong == 0;
}

bool DecodeInts(const NumberSettings& settings, const char* bytes, float* out, size_t count) {
  const bool wide = settings.format == NumberFormat::kInt8;
  for (size_t first = 0; first < count; first += settings.group) {
    const size_t size = std::min<size_t>(settings.group, count - first);
    const float scale = ScaleAt(bytes);
    const char* codes = bytes + kScaleBytes;
    if (!ScaleIsRight(scale, CodeMax(settings.format))) return false;
    if (!(wide ? DecodeBytes(codes, size, scale, out + first)
               : DecodeNibbles(codes, size, scale, out + first))) {
      return false;
    }
    bytes += GroupBytes(settings, size);
  }
  return true;
}

// `bits` of each value's code, 8 / bits of them a byte; what is left of the last byte is 0.
template <class CodeOf>
HWY_INLINE void Pack(size_t bits, const float* HWY_RESTRICT v, size_t count, const CodeOf& code,
                     char* HWY_RESTRICT to) {
  const size_t each = 8 / bits;
  for (size_t first = 0; first < count; first += each) {
    uint32_t byte = 0;
    const size_t size = std::min(each, count - first);
    for (size_t i = 0; i < size; ++i) byte |= code(v[first + i]) << (bits * i);
    *to++ = static_cast<char>(byte);
  }
}

void EncodeVotes(const NumberSettings& settings, const float* v, size_t count, char* to) {
  if (settings.format == NumberFormat::kSign1) {
    return Pack(
        1, v, count, [](float value) { return value >= 0.0f ? 1u : 0u; }, to);
  }
  Pack(
      2, v, count, [](float value) { return value > 0.0f   ? 1u
                                            : value < 0.0f ? 3u
                                                           : 0u; }, to);
}

HWY_INLINE void SignsOfByte(uint32_t byte, float* HWY_RESTRICT out) {
  for (uint32_t i = 0; i < 8; ++i) {
    out[i] = static_cast<float>(static_cast<int32_t>((byte >> i) & 1) * 2 - 1);
  }
}

bool DecodeSigns(const char* HWY_RESTRICT from, float* HWY_RESTRICT out, size_t count) {
  for (size_t i = 0; i < count / 8; ++i) SignsOfByte(static_cast<uint8_t>(from[i]), out + 8 * i);
  const size_t rest = count % 8;
  if (rest == 0) return true;
  const uint32_t byte = static_cast<uint8_t>(from[count / 8]);
  float last[8];
  SignsOfByte(byte, last);
  std::copy_n(last, rest, out + count - rest);
  return byte >> rest == 0;
}

bool DecodeTernary(const char* HWY_RESTRICT from, float* HWY_RESTRICT out, size_t count) {
  uint32_t wrong = 0;
  for (size_t i = 0; i < count / 4; ++i) {
    const int32_t byte = static_cast<uint8_t>(from[i]);
    for (size_t j = 0; j < 4; ++j) {
      const int32_t code = (((byte >> (2 * j)) & 3) ^ 2) - 2;
      wrong |= static_cast<uint32_t>(code == -2);
      out[4 * i + j] = static_cast<float>(code);
    }
  }
  for (size_t i = count / 4 * 4; i < count; ++i) {
    const int32_t code = CodeAt(NumberFormat::kTernary, from, i);
    wrong |= static_cast<uint32_t>(code == -2);
    out[i] = static_cast<float>(code);
  }
  const size_t rest = count % 4;
  if (rest != 0)
    wrong |= static_cast<uint32_t>(static_cast<uint8_t>(from[count / 4])) >> (2 * rest);
  return wrong == 0;
}

HWY_INLINE uint32_t BitsOf(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof(bits));
  return bits;
}

void EncodeFloats(const NumberSettings& settings, const float* HWY_RESTRICT v, size_t count,
                  char* HWY_RESTRICT to) {
  if (settings.format == NumberFormat::kF32) {
    for (size_t i = 0; i < count; ++i) {
      const float value = Clamped(v[i], kNumberMax);
      std::memcpy(to + 4 * i, &value, 4);
    }
  } else if (settings.format == NumberFormat::kBf16) {
    for (size_t i = 0; i < count; ++i) {
      const uint16_t half = ToBf16(BitsOf(Clamped(v[i], kBf16Max)));
      std::memcpy(to + 2 * i, &half, 2);
    }
  } else {
    for (size_t i = 0; i < count; ++i) {
      const uint16_t half = ToF16(Clamped(v[i], kF16Max));
      std::memcpy(to + 2 * i, &half, 2);
    }
  }
}

// So many at a time, since a chunk may have no more: alone they would be the rest of a loop over
// whole vectors.
constexpr size_t kFew = 8;

HWY_INLINE void HalvesToFloats(const char* HWY_RESTRICT from, size_t count,
                               float* HWY_RESTRICT out) {
  for (size_t i = 0; i < count; ++i) {
    uint16_t half;
    std::memcpy(&half, from + 2 * i, 2);
    out[i] = FromF16(half);
  }
}

bool DecodeFloats(const NumberSettings& settings, const char* HWY_RESTRICT from,
                  float* HWY_RESTRICT out, size_t count) {
  uint32_t wrong = 0;
  if (settings.format == NumberFormat::kF32) {
    std::memcpy(out, from, count * sizeof(float));
  } else if (settings.format == NumberFormat::kBf16) {
    for (size_t i = 0; i < count; ++i) {
      uint16_t half;
      std::memcpy(&half, from + 2 * i, 2);
      const uint32_t bits = static_cast<uint32_t>(half) << 16;
      std::memcpy(out + i, &bits, 4);
    }
  } else {
    size_t i = 0;
    for (; i + kFew <= count; i += kFew) HalvesToFloats(from + 2 * i, kFew, out + i);
    HalvesToFloats(from + 2 * i, count - i, out + i);
  }
  for (size_t i = 0; i < count; ++i) {
    wrong |= static_cast<uint32_t>(!(std::fabs(out[i]) <= kNumberMax));
  }
  return wrong == 0;
}

void EncodeAny(const NumberSettings& settings, const float* v, const float* draws, size_t count,
               char* to) {
  switch (settings.format) {
    case NumberFormat::kInt8:
      return EncodeInts<127>(settings, v, draws, count, to);
    case NumberFormat::kInt4:
      return EncodeInts<7>(settings, v, draws, count, to);
    case NumberFormat::kSign1:
    case NumberFormat::kTernary:
      return EncodeVotes(settings, v, count, to);
    default:
      return EncodeFloats(settings, v, count, to);
  }
}

bool DecodeAny(const NumberSettings& settings, const char* bytes, float* out, size_t count) {
  switch (settings.format) {
    case NumberFormat::kInt8:
    case NumberFormat::kInt4:
      return DecodeInts(settings, bytes, out, count);
    case NumberFormat::kSign1:
      return DecodeSigns(bytes, out, count);
    case NumberFormat::kTernary:
      return DecodeTernary(bytes, out, count);
    default:
      return DecodeFloats(settings, bytes, out, count);
  }
}

// One group, in place.
HWY_INLINE void RotateOne(uint32_t n, float factor, float* v) {
  for (uint32_t h = 1; h < n; h *= 2) {
    for (uint32_t low = 0; low < n; low += 2 * h) {
      for (uint32_t i = low; i < low + h; ++i) {
        const float a = v[i], b = v[i + h];
        v[i] = a + b;
        v[i + h] = a - b;
      }
    }
  }
  for (uint32_t i = 0; i < n; ++i) v[i] *= factor;
}

// kLanes groups side by side: a lane holds one of them.
HWY_INLINE void RotateLanes(uint32_t n, float factor, float* v) {
  const FloatTag d;
  HWY_ALIGN float lanes[kHadamardMax * kLanes];
  Transpose(kLanes, n, v, n, lanes, kLanes);
  for (uint32_t h = 1; h < n; h *= 2) {
    for (uint32_t low = 0; low < n; low += 2 * h) {
      for (uint32_t i = low; i < low + h; ++i) {
        const FloatVec a = hn::Load(d, lanes + i * kLanes);
        const FloatVec b = hn::Load(d, lanes + (i + h) * kLanes);
        hn::Store(hn::Add(a, b), d, lanes + i * kLanes);
        hn::Store(hn::Sub(a, b), d, lanes + (i + h) * kLanes);
      }
    }
  }
  const FloatVec factors = hn::Set(d, factor);
  for (uint32_t i = 0; i < n; ++i) {
    hn::Store(hn::Mul(hn::Load(d, lanes + i * kLanes), factors), d, lanes + i * kLanes);
  }
  Transpose(n, kLanes, lanes, kLanes, v, n);
}

void RotateSome(uint32_t n, float factor, float* v, size_t size) {
  size_t i = 0;
  // The transpose wants whole vectors both ways.
  for (; n % kLanes == 0 && n % 4 == 0 && i + kLanes * n <= size; i += kLanes * n) {
    RotateLanes(n, factor, v + i);
  }
  for (; i < size; i += n) RotateOne(n, factor, v + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace isthmus
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {
namespace {

HWY_EXPORT(EncodeAny);
HWY_EXPORT(DecodeAny);
HWY_EXPORT(RotateSome);

}  // namespace

void EncodeNumbers(const NumberSettings& settings, absl::Span<const float> values,
                   absl::Span<const float> draws, char* to) {
  HWY_DYNAMIC_DISPATCH(EncodeAny)
  (settings, values.data(), draws.empty() ? nullptr : draws.data(), values.size(), to);
}

bool DecodeNumbers(const NumberSettings& settings, const char* bytes, absl::Span<float> values) {
  return HWY_DYNAMIC_DISPATCH(DecodeAny)(settings, bytes, values.data(), values.size());
}

void HadamardInPlace(uint32_t n, absl::Span<float> values) {
  ISTHMUS_CHECK(n >= 2 && n <= kHadamardMax && (n & (n - 1)) == 0);
  ISTHMUS_CHECK(values.size() % n == 0);
  const float factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  HWY_DYNAMIC_DISPATCH(RotateSome)(n, factor, values.data(), values.size());
}

}  // namespace isthmus
#endif  // HWY_ONCE
