// What tests of kernels share: they run once for each target of this machine, and compare bits.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/targets.h"
#include "tests/kernels/random.h"

namespace isthmus {

// Runs the test's body once a target.
class EveryTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ForceKernelTarget(GetParam()); }
  void TearDown() override { ForceKernelTarget(""); }

  TestRandom random_;
};

inline std::string TargetName(const testing::TestParamInfo<std::string>& info) {
  return info.param;
}

// 0, 1, lengths around those of vectors, primes, then random ones.
inline std::vector<size_t> InterestingSizes(TestRandom* random) {
  std::vector<size_t> sizes = {0,  1,  2,  3,  4,  5,  7,   8,   11,  13,  15,
                               16, 17, 31, 32, 33, 63, 101, 127, 128, 129, 1009};
  for (int i = 0; i < 20; ++i) sizes.push_back(random->Between(0, 3000));
  return sizes;
}

template <class Value>
bool SameBits(const std::vector<Value>& a, const std::vector<Value>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(Value)) == 0);
}

// Normal numbers, among them zeros of both signs, subnormal and large ones.
inline std::vector<float> OddNumbers(TestRandom* random, size_t count) {
  std::vector<float> values = random->Normals(count);
  const float odd[] = {0.0f, -0.0f, 1e-42f, -1e-42f, 1e30f, -1e-30f};
  for (float& value : values) {
    if (random->Between(0, 9) == 0) value = odd[random->Between(0, 5)];
  }
  return values;
}

}  // namespace isthmus
