#include "kernels/dct_tables.h"

#include <cstring>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "base/limits.h"
#include "kernels/demo.h"

namespace isthmus {
namespace {

// sqrt(1/n) at n - 1.
constexpr uint32_t kConstantBits[] = {
#include "kernels/dct_tables_constant.inc"
};

// sqrt(2/n) * cos(pi*t/(2n)), t = 0 .. n-1, at n*(n-1)/2 + t.
constexpr uint32_t kCosineBits[] = {
#include "kernels/dct_tables_1_64.inc"
#include "kernels/dct_tables_65_96.inc"
#include "kernels/dct_tables_97_128.inc"
};

static_assert(sizeof(kConstantBits) / sizeof(uint32_t) == kChunkSideMax, "one constant a side");
static_assert(sizeof(kCosineBits) / sizeof(uint32_t) == kChunkSideMax * (kChunkSideMax + 1) / 2,
              "n cosines a side");

float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// sqrt(2/n) * cos(pi*t/(2n)) for any t >= 0, by the symmetries of the cosine.
float Cosine(uint32_t n, uint32_t t) {
  t %= 4 * n;                    // period 2 pi
  if (t > 2 * n) t = 4 * n - t;  // cos(2 pi - x) = cos(x)
  const bool negative = t > n;   // cos(pi - x) = -cos(x)
  if (negative) t = 2 * n - t;
  if (t == n) return 0.0f;
  const float value = FloatOfBits(kCosineBits[n * (n - 1) / 2 + t]);
  return negative ? -value : value;
}

// One vector of the widest target, and its alignment.
struct alignas(kDctPadding * sizeof(float)) PaddedFloats {
  float value[kDctPadding];
};

struct Basis {
  std::once_flag once;
  std::vector<float> by_position;
  std::vector<float> by_frequency;
  std::vector<PaddedFloats> padded_by_position;
  std::vector<PaddedFloats> padded_by_frequency;
};

// The n x n matrix with each row padded.
std::vector<PaddedFloats> Padded(uint32_t n, const std::vector<float>& matrix) {
  const size_t blocks = PaddedSide(n) / kDctPadding;
  std::vector<PaddedFloats> padded(n * blocks, PaddedFloats{});
  for (uint32_t row = 0; row < n; ++row) {
    for (uint32_t col = 0; col < n; ++col) {
      padded[row * blocks + col / kDctPadding].value[col % kDctPadding] = matrix[row * n + col];
    }
  }
  return padded;
}

const Basis& BasisOf(uint32_t n) {
  ISTHMUS_CHECK(n >= 1 && n <= kChunkSideMax);
  // Never destroyed, so that threads still running at exit may use it.
  static Basis* const bases = new Basis[kChunkSideMax + 1];
  Basis& basis = bases[n];
  std::call_once(basis.once, [&basis, n] {
    basis.by_position.resize(n * n);
    basis.by_frequency.resize(n * n);
    for (uint32_t j = 0; j < n; ++j) {
      for (uint32_t b = 0; b < n; ++b) {
        const float value = b == 0 ? FloatOfBits(kConstantBits[n - 1]) : Cosine(n, (2 * j + 1) * b);
        basis.by_position[j * n + b] = value;
        basis.by_frequency[b * n + j] = value;
      }
    }
    basis.padded_by_position = Padded(n, basis.by_position);
    basis.padded_by_frequency = Padded(n, basis.by_frequency);
  });
  return basis;
}

}  // namespace

absl::Span<const float> DctBasis(uint32_t n) { return BasisOf(n).by_position; }

absl::Span<const float> DctBasisTransposed(uint32_t n) { return BasisOf(n).by_frequency; }

PaddedDctBasis DctBasisPadded(uint32_t n) {
  const Basis& basis = BasisOf(n);
  return {basis.padded_by_position[0].value, basis.padded_by_frequency[0].value};
}

}  // namespace isthmus
