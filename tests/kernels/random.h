// Random inputs of the kernel tests. The seed is printed, and may be set by ISTHMUS_TEST_SEED to
// repeat a run.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "kernels/chunk.h"

namespace isthmus {

inline uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("ISTHMUS_TEST_SEED");
    const uint64_t chosen = given != nullptr ? std::stoull(given) : std::random_device{}();
    std::cout << "ISTHMUS_TEST_SEED=" << chosen << std::endl;
    return chosen;
  }();
  return seed;
}

// One generator a test, so that tests do not depend on each other's order.
class TestRandom {
 public:
  TestRandom() : generator_(TestSeed()) {}

  // In [low, high].
  uint32_t Between(uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(generator_);
  }
  float Normal() { return std::normal_distribution<float>()(generator_); }

  std::vector<float> Normals(size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = Normal();
    return values;
  }

  // `count` of `elements` positions with normal values.
  Components Some(uint32_t elements, uint32_t count) {
    Components components;
    uint32_t left = count;
    for (uint32_t i = 0; i < elements && left > 0; ++i) {
      if (Between(1, elements - i) > left) continue;
      components.index.push_back(i);
      components.value.push_back(Normal());
      --left;
    }
    return components;
  }

 private:
  std::mt19937_64 generator_;
};

// Shapes that are easy to get wrong, then random ones: sides 1, odd, prime, powers of two, the
// limit.
inline std::vector<ChunkShape> InterestingShapes(TestRandom* random, int random_count) {
  std::vector<ChunkShape> shapes = {{1, 1},  {1, 2},   {2, 1},   {1, 64},    {64, 1},   {3, 5},
                                    {7, 45}, {37, 53}, {64, 64}, {128, 1},   {1, 127},  {1, 128},
                                    {16, 9}, {64, 48}, {61, 2},  {128, 128}, {127, 113}};
  for (int i = 0; i < random_count; ++i) {
    shapes.push_back({random->Between(1, 128), random->Between(1, 128)});
  }
  return shapes;
}

}  // namespace isthmus
