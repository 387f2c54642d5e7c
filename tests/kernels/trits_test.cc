// Entropy-coded signs: there and back, how many bits, and that any bytes are read or refused.
#include "kernels/trits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <random>

namespace isthmus {
namespace {

std::vector<float> RandomTrits(size_t count, double share, double minus, std::mt19937* random) {
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<float> values(count);
  for (float& value : values) {
    if (uniform(*random) < share) value = uniform(*random) < minus ? -1.0f : 1.0f;
  }
  return values;
}

TEST(Trits, ThereAndBack) {
  const uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (const size_t count : {0, 1, 2, 3, 5, 63, 64, 100, 1000, 4096, 65536}) {
    for (const double share : {0.0, 0.001, 0.1, 0.3, 0.7, 1.0}) {
      for (const double minus : {0.0, 0.5, 1.0}) {
        const std::vector<float> values = RandomTrits(count, share, minus, &random);
        std::vector<char> bytes = {'x'};
        AppendTrits(values, &bytes);
        EXPECT_LE(bytes.size(), 3 + (count + 3) / 4);  // never more than plain
        bytes.push_back('y');
        absl::string_view rest(bytes.data() + 1, bytes.size() - 1);
        std::vector<float> read(count, 9);
        ASSERT_TRUE(ReadTrits(&rest, absl::MakeSpan(read)).ok()) << count << " " << share;
        EXPECT_EQ(read, values) << count << " " << share;
        EXPECT_EQ(rest, "y");
      }
    }
  }
}

// Within 3 percent and what a chunk takes to learn of the entropy.
TEST(Trits, TakeAboutTheirEntropy) {
  std::mt19937 random(7);
  for (const double share : {0.02, 0.1, 0.3, 0.5}) {
    size_t bytes = 0;
    constexpr int kChunks = 50;
    for (int i = 0; i < kChunks; ++i) {
      std::vector<char> coded;
      AppendTrits(RandomTrits(4096, share, 0.5, &random), &coded);
      bytes += coded.size();
    }
    const double entropy = -share * std::log2(share) - (1 - share) * std::log2(1 - share) + share;
    const double bits = 8.0 * static_cast<double>(bytes) / (kChunks * 4096);
    std::printf("share %.2f: %.4f bits a value, entropy %.4f\n", share, bits, entropy);
    EXPECT_LT(bits, 1.03 * entropy + 0.02);
  }
}

TEST(Trits, AnyBytesAreReadOrRefused) {
  std::mt19937 random(11);
  for (int i = 0; i < 3000; ++i) {
    std::string bytes(random() % 40, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (bytes.size() > 1) bytes[1] = 0;
    std::vector<float> read(random() % 100);
    absl::string_view rest(bytes);
    if (!ReadTrits(&rest, absl::MakeSpan(read)).ok()) {
      EXPECT_EQ(rest.size(), bytes.size());
      continue;
    }
    for (const float value : read) EXPECT_TRUE(value == 0 || std::abs(value) == 1);
  }
}

TEST(Trits, RefusesWhatIsCutOrTooLong) {
  std::mt19937 random(5);
  std::vector<char> bytes;
  AppendTrits(RandomTrits(1000, 0.3, 0.5, &random), &bytes);
  std::vector<float> read(1000);
  for (size_t size = 0; size < bytes.size(); ++size) {
    absl::string_view rest(bytes.data(), size);
    EXPECT_FALSE(ReadTrits(&rest, absl::MakeSpan(read)).ok()) << size;
  }
  std::vector<float> fewer(100);
  absl::string_view rest(bytes.data(), bytes.size());
  EXPECT_FALSE(ReadTrits(&rest, absl::MakeSpan(fewer)).ok());
}

}  // namespace
}  // namespace isthmus
