// Number formats: what a block of float32 values looks like on the wire, and back.
//
// A call is for one block of the canonical grid, or a part of one that begins and ends where groups
// do, so that groups never cross a block and bytes of parts are the bytes of the whole. Bits fill
// bytes from the least significant one up; unused bits are 0; numbers are little endian.
//   f32, bf16, f16  the values, to the nearest (ties to even); beyond the format's range its
//                   largest finite number
//   int8, int4      for each group of `group` values (the last may be short): scale as float32,
//                   then a code a value, two's complement, of 8 or 4 bits (the even one in the low
//                   nibble; an odd length is padded with 0). qmax = 127 or 7; scale =
//                   largest |v| / qmax; code = v / scale to the nearest (ties to even), at most
//                   qmax in magnitude; with a draw u in [0, 1) instead: a = |v| / scale,
//                   l = floor(a), |code| = l + 1 if u < a - l, else l. A scale of 0: all codes 0.
//   sign1           a bit a value, 1 for v >= 0: zero arrives as +1, others as +1 or -1
//   ternary         two bits a value, two's complement, of its sign: 0, +1 or -1
// Before them, with `hadamard` n: groups of n values are rotated (HadamardInPlace), zeros behind
// the last ones, so that the coded block has a multiple of n values.
//
// Reading is bit-equal everywhere: value = code * scale, rounded once. Writing is bit-equal too, so
// that what a sender takes for sent is what others read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/aggregate.h"

namespace isthmus {

enum class NumberFormat { kF32, kBf16, kF16, kInt8, kInt4, kSign1, kTernary };

struct NumberSettings {
  NumberFormat format = NumberFormat::kF32;
  uint32_t group = 128;   // int8, int4: values that share a scale
  uint32_t hadamard = 0;  // 0: none; else a power of two
};

// Values in a group: a block of a vector has that many.
inline constexpr uint32_t kNumberGroupMax = 4096;
inline constexpr uint32_t kHadamardMax = 256;
// Largest magnitude that is read. Sums and rotations of what kNodesMax nodes send stay far inside
// float32.
inline constexpr float kNumberMax = 1e30f;

// The name in RunSpecs and sentences ("int8").
absl::string_view NumberName(NumberFormat format);

// INVALID_ARGUMENT naming field and value: a group of 0 or above its limit, a rotation that is no
// power of two, or that does not divide the group of a format that has one.
absl::Status CheckNumberSettings(const NumberSettings& settings);
// INVALID_ARGUMENT: a majority of other numbers than votes.
absl::Status CheckAggregateFormat(AggregateKind kind, NumberFormat format);

// Values that are coded for `count`: more only where a rotation pads.
size_t CodedCount(const NumberSettings& settings, size_t count);
// Bytes of `count` values.
size_t NumberBytes(const NumberSettings& settings, size_t count);

// Appends NumberBytes. No value is a NaN; magnitudes above kNumberMax are written as that. `draws`
// holds CodedCount uniform numbers in [0, 1) for int8 and int4 to the nearest at random, or
// nothing.
void AppendNumbers(const NumberSettings& settings, absl::Span<const float> values,
                   absl::Span<const float> draws, std::vector<char>* out);

// Reads values.size() values from the front of *bytes and advances it. INVALID_ARGUMENT naming what
// and where: truncated, a value or scale that is not finite or above kNumberMax, a scale below 0,
// codes beyond +-qmax or without a scale, padding that is not 0. *bytes is then as before, and
// `values` holds nothing of use.
absl::Status ReadNumbers(const NumberSettings& settings, absl::string_view* bytes,
                         absl::Span<float> values);

// Rotates each group of n values by the orthonormal Sylvester matrix, which is its own inverse. n
// is a power of two from 2 to kHadamardMax that divides the size. Stated order: for h = 1, 2, 4,
// ... n / 2 the pairs at distance h become their sum and their difference, at last all are
// multiplied by 1 / sqrt(n), rounded once.
void HadamardInPlace(uint32_t n, absl::Span<float> values);

}  // namespace isthmus
