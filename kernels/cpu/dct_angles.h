// Rotations of the fast DCT, computed by the compiler: no library's cosine is asked.
#pragma once

#include <cstddef>

namespace isthmus {

// cos(x) for 0 <= x <= pi/2 by its series; what is left out is below 1e-19.
constexpr double CosineSeries(double x) {
  double term = 1.0;
  double sum = 1.0;
  for (int i = 1; i <= 12; ++i) {
    term *= -x * x / ((2 * i - 1) * (2 * i));
    sum += term;
  }
  return sum;
}

constexpr double kPi = 3.14159265358979323846;

// cos and sin of pi * (2j + 1) / (4n): the rotations of a DCT-IV of n elements.
template <size_t n>
struct DctAngles {
  float cosine[n / 2 + 1] = {};
  float sine[n / 2 + 1] = {};

  constexpr DctAngles() {
    for (size_t j = 0; j < n / 2 + 1; ++j) {
      const double angle = kPi * static_cast<double>(2 * j + 1) / static_cast<double>(4 * n);
      if (2 * angle > kPi) break;
      cosine[j] = static_cast<float>(CosineSeries(angle));
      sine[j] = static_cast<float>(CosineSeries(kPi / 2 - angle));
    }
  }
};
template <size_t n>
inline constexpr DctAngles<n> kDctAngles;

// sqrt(1/n) for a power of two n.
constexpr float SqrtOfOneOver(size_t n) {
  double root = 1.0;
  for (size_t m = 1; m < n; m *= 2) root *= 0.70710678118654752440;
  return static_cast<float>(root);
}

}  // namespace isthmus
