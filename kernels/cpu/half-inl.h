// Floats of 16 bits, by integer operations that the compiler makes vectors of.
// Included once for each target (see hwy/foreach_target.h), so its guard is a toggle.
#if defined(ISTHMUS_KERNELS_CPU_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_KERNELS_CPU_HALF_INL_H_
#undef ISTHMUS_KERNELS_CPU_HALF_INL_H_
#else
#define ISTHMUS_KERNELS_CPU_HALF_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus {
namespace HWY_NAMESPACE {

// The largest values that are written: of bf16 what does not round above kNumberMax, of f16 its
// largest finite number.
constexpr float kBf16Max = 0x1.92p+99f;
constexpr float kF16Max = 65504.0f;

// To the nearest, ties to even, of the bits of a float32 up to kBf16Max.
HWY_INLINE uint16_t ToBf16(uint32_t bits) {
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// To the nearest, ties to even, |v| <= kF16Max. Below 2^-14 the format has steps of 2^-24, which
// are those of a float32 near 0.5: adding it rounds.
HWY_INLINE uint16_t ToF16(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof(bits));
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t size = bits & 0x7fffffffu;
  float magnitude;
  std::memcpy(&magnitude, &size, sizeof(magnitude));
  magnitude += 0.5f;
  uint32_t small;
  std::memcpy(&small, &magnitude, sizeof(small));
  small -= 0x3f000000u;
  const uint32_t normal = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
  return static_cast<uint16_t>(sign | (size < 0x38800000u ? small : normal));
}

// Exact; infinities and NaNs become infinite. By masks, since the compiler makes branches of
// choices here, and then no vectors.
HWY_INLINE float FromF16(uint16_t half) {
  const int32_t size = half & 0x7fff;
  const float small = static_cast<float>(size) * 0x1p-24f;
  uint32_t small_bits;
  std::memcpy(&small_bits, &small, sizeof(small_bits));
  const uint32_t normal_bits = (static_cast<uint32_t>(size) << 13) + 0x38000000u;
  const uint32_t is_small = 0u - static_cast<uint32_t>(size < 0x0400);
  const uint32_t is_infinite = 0u - static_cast<uint32_t>(size >= 0x7c00);
  uint32_t bits = (small_bits & is_small) | (normal_bits & ~is_small);
  bits = (bits & ~is_infinite) | (0x7f800000u & is_infinite);
  bits |= static_cast<uint32_t>(half & 0x8000u) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace HWY_NAMESPACE
}  // namespace isthmus
HWY_AFTER_NAMESPACE();

#endif  // ISTHMUS_KERNELS_CPU_HALF_INL_H_
