// Gap-coded indices against a plain coder, one bit at a time; and how few bits they take.
#include "kernels/index_code.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/chunk.h"
#include "tests/kernels/random.h"

namespace isthmus {
namespace {

using Bits = std::vector<bool>;

void Put(uint64_t value, uint32_t count, Bits* bits) {
  for (uint32_t i = 0; i < count; ++i) bits->push_back((value >> i) & 1);
}

// The header's sentences, as they stand.
Bits PlainBits(uint32_t m, const std::vector<uint32_t>& index) {
  const auto k = static_cast<uint32_t>(index.size());
  std::vector<uint32_t> coded = index;
  if (k > m - k) {
    coded.clear();
    for (uint32_t at = 0, i = 0; at < m; ++at) {
      if (i < k && index[i] == at) {
        ++i;
      } else {
        coded.push_back(at);
      }
    }
  }
  const auto j = static_cast<uint32_t>(coded.size());
  Bits bits;
  if (j == 0) return bits;
  if (j == 1) {
    const uint32_t wide = IndexBits(m), u = (1u << wide) - m;
    if (coded[0] < u) {
      Put(coded[0], wide - 1, &bits);
    } else if (wide > 0) {
      Put((coded[0] + u) / 2, wide - 1, &bits);
      Put((coded[0] + u) % 2, 1, &bits);
    }
    return bits;
  }
  uint32_t b = 0;
  while (std::ldexp(20000.0 * (j + 1), static_cast<int>(b)) < 4812.0 * (2.0 * m - j + 1)) ++b;
  uint32_t next = 0;
  for (const uint32_t at : coded) {
    const uint32_t gap = at - next;
    for (uint32_t zero = 0; zero < gap >> b; ++zero) bits.push_back(false);
    bits.push_back(true);
    Put(gap, b, &bits);
    next = at + 1;
  }
  return bits;
}

std::vector<char> Packed(const Bits& bits) {
  std::vector<char> bytes((bits.size() + 7) / 8);
  for (size_t i = 0; i < bits.size(); ++i) {
    if (bits[i]) bytes[i / 8] = static_cast<char>(bytes[i / 8] | (1 << (i % 8)));
  }
  return bytes;
}

std::vector<char> Coded(uint32_t m, const std::vector<uint32_t>& index) {
  const IndexCode code(m, static_cast<uint32_t>(index.size()));
  std::vector<char> bytes((IndexCodeBitsMax(code) + 7) / 8 + 8, '\x55');
  BitWriter64 writer(bytes.data());
  PutIndices(code, index, &writer);
  const size_t size = static_cast<size_t>(writer.Pad() - bytes.data());
  EXPECT_LE(size, bytes.size() - 8);
  bytes.resize(size);
  return bytes;
}

void ExpectRoundTrip(uint32_t m, const std::vector<uint32_t>& index) {
  const Bits plain = PlainBits(m, index);
  const std::vector<char> bytes = Coded(m, index);
  ASSERT_EQ(bytes, Packed(plain)) << m << " " << index.size();
  const IndexCode code(m, static_cast<uint32_t>(index.size()));
  ASSERT_LE(plain.size(), IndexCodeBitsMax(code)) << m << " " << index.size();
  ASSERT_GE(plain.size(), IndexCodeBitsMin(code)) << m << " " << index.size();
  BitReader64 reader({bytes.data(), bytes.size()});
  std::vector<uint32_t> read(index.size());
  ASSERT_TRUE(GetIndices(code, &reader, absl::MakeSpan(read)));
  ASSERT_EQ(read, index);
  ASSERT_TRUE(reader.Pad());
  ASSERT_EQ(reader.bytes(), bytes.size());
  if (bytes.empty()) return;
  BitReader64 shorter({bytes.data(), bytes.size() - 1});
  EXPECT_FALSE(GetIndices(code, &shorter, absl::MakeSpan(read))) << m << " " << index.size();
}

std::vector<uint32_t> Ascending(uint32_t begin, uint32_t count) {
  std::vector<uint32_t> index(count);
  for (uint32_t i = 0; i < count; ++i) index[i] = begin + i;
  return index;
}

TEST(IndexCode, AllSetsOfSmallChunks) {
  for (uint32_t m = 1; m <= 12; ++m) {
    for (uint32_t set = 0; set < 1u << m; ++set) {
      std::vector<uint32_t> index;
      for (uint32_t at = 0; at < m; ++at) {
        if ((set >> at) & 1) index.push_back(at);
      }
      ExpectRoundTrip(m, index);
    }
  }
}

TEST(IndexCode, RandomAndWorstSets) {
  TestRandom random;
  for (const uint32_t m : {1u, 2u, 3u, 33u, 47u, 63u, 64u, 65u, 127u, 920u, 2560u, 4095u, 4096u,
                           uint32_t{47 * 64}, 16384u}) {
    for (int round = 0; round < 60; ++round) {
      const uint32_t k = round < 20 ? std::min<uint32_t>(m, round) : random.Between(0, m);
      ExpectRoundTrip(m, random.Some(m, k).index);
      ExpectRoundTrip(m, Ascending(0, k));
      ExpectRoundTrip(m, Ascending(m - k, k));
      std::vector<uint32_t> ends = Ascending(0, k / 2);
      for (uint32_t at : Ascending(m - (k - k / 2), k - k / 2)) ends.push_back(at);
      ExpectRoundTrip(m, ends);
    }
  }
}

TEST(IndexCode, NoSetTakesMuchMoreThanABitmapOrFourBytesAnIndex) {
  for (uint32_t m = 1; m <= 16384; m = m < 200 ? m + 1 : m * 5 / 4) {
    for (uint32_t k = 0; k <= m; ++k) {
      const size_t most = IndexCodeBitsMax(IndexCode(m, k));
      const uint32_t j = std::min(k, m - k);
      ASSERT_LE(most, 32u * j) << m << " " << k;
      ASSERT_LE(most, j == 1 ? IndexBits(m) : 1.1 * m) << m << " " << k;
      // So that values of float32 never take more than all of them would.
      ASSERT_LE((most + 7) / 8 + 4 * k, 4 * m) << m << " " << k;
    }
  }
}

double Log2Choose(uint32_t m, uint32_t k) {
  const auto log2_factorial = [](uint32_t n) { return std::lgamma(n + 1.0) / std::log(2.0); };
  return log2_factorial(m) - log2_factorial(k) - log2_factorial(m - k);
}

TEST(IndexCode, RandomSetsAreNearTheBound) {
  TestRandom random;
  for (const auto& [m, k] : std::vector<std::pair<uint32_t, uint32_t>>{{64, 1},
                                                                       {64, 2},
                                                                       {64, 8},
                                                                       {64, 32},
                                                                       {64, 48},
                                                                       {64, 63},
                                                                       {4096, 2},
                                                                       {4096, 32},
                                                                       {4096, 1000},
                                                                       {4096, 3000},
                                                                       {3008, 1},
                                                                       {3008, 24}}) {
    size_t bits = 0;
    const int sets = 2000;
    for (int i = 0; i < sets; ++i) bits += PlainBits(m, random.Some(m, k).index).size();
    EXPECT_LE(static_cast<double>(bits) / sets, 1.1 * Log2Choose(m, k)) << m << " " << k;
  }
}

// Every byte string is either refused or read as indices that ascend below m; nothing is read
// behind its end (the sanitizer's part).
TEST(IndexCode, AnyBytesAreReadOrRefused) {
  TestRandom random;
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    const uint32_t m = random.Between(1, round % 2 == 0 ? 64 : 4096);
    const uint32_t k = random.Between(0, m);
    const IndexCode code(m, k);
    std::vector<char> bytes(
        random.Between(0, static_cast<uint32_t>(IndexCodeBitsMax(code) / 8 + 2)));
    const uint32_t ones = random.Between(0, 8);
    for (char& byte : bytes) {
      byte = static_cast<char>(random.Between(0, 8) < ones ? random.Between(0, 255) : 0);
    }
    BitReader64 reader({bytes.data(), bytes.size()});
    std::vector<uint32_t> index(k);
    if (!GetIndices(code, &reader, absl::MakeSpan(index))) {
      ++refused;
      continue;
    }
    for (uint32_t i = 0; i < k; ++i) {
      ASSERT_LT(index[i], m);
      ASSERT_TRUE(i == 0 || index[i - 1] < index[i]);
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace isthmus
