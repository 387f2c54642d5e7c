// The coded form of chunks: sizes, round trips, and bytes that somebody else made.
#include "kernels/chunk.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/kernels/random.h"

namespace isthmus {
namespace {

std::string Contribution(ChunkShape shape, uint32_t k, const Components& components) {
  std::vector<char> out;
  AppendContributionChunk(shape, k, components, &out);
  return std::string(out.begin(), out.end());
}

std::string Merged(ChunkShape shape, const Components& components) {
  std::vector<char> out;
  AppendMergedChunk(shape, components, &out);
  return std::string(out.begin(), out.end());
}

absl::Status ReadContribution(ChunkShape shape, uint32_t k, absl::string_view bytes) {
  Components components;
  const absl::string_view before = bytes;
  const absl::Status status = ReadContributionChunk(shape, k, &bytes, &components);
  // A refused chunk is not consumed.
  EXPECT_TRUE(status.ok() || bytes == before);
  return status;
}

absl::Status ReadMerged(ChunkShape shape, absl::string_view bytes) {
  Components components;
  const absl::string_view before = bytes;
  const absl::Status status = ReadMergedChunk(shape, &bytes, &components);
  EXPECT_TRUE(status.ok() || bytes == before);
  return status;
}

void ExpectRefused(const absl::Status& status, absl::string_view part) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), part)) << status;
}

std::string Bytes(std::initializer_list<int> values) {
  std::string bytes;
  for (const int value : values) bytes.push_back(static_cast<char>(value));
  return bytes;
}

std::string Floats(std::initializer_list<float> values) {
  std::string bytes;
  for (const float value : values) {
    char four[4];
    std::memcpy(four, &value, 4);  // this test's machines are little endian
    bytes.append(four, 4);
  }
  return bytes;
}

TEST(IndexBits, CeilingOfTheLogarithm) {
  EXPECT_EQ(IndexBits(0), 0u);
  EXPECT_EQ(IndexBits(1), 0u);
  EXPECT_EQ(IndexBits(2), 1u);
  EXPECT_EQ(IndexBits(3), 2u);
  EXPECT_EQ(IndexBits(64), 6u);
  EXPECT_EQ(IndexBits(65), 7u);
  EXPECT_EQ(IndexBits(4096), 12u);
  EXPECT_EQ(IndexBits(4097), 13u);
  EXPECT_EQ(IndexBits(16385), 15u);
  EXPECT_EQ(IndexBits(0xffffffffu), 32u);
}

TEST(ContributionChunk, BytesByHand) {
  Components components;
  components.index = {1, 4, 14};
  components.value = {1.0f, -2.0f, 0.5f};
  // 15 elements: 4 bits an index, the first in the low half of the first byte.
  EXPECT_EQ(Contribution({3, 5}, 3, components), Bytes({0x41, 0x0e}) + Floats({1.0f, -2.0f, 0.5f}));
  // 1 element: no index at all.
  components.index = {0};
  components.value = {3.0f};
  EXPECT_EQ(Contribution({1, 1}, 1, components), Floats({3.0f}));
}

TEST(MergedChunk, BytesByHand) {
  Components components;
  components.index = {1, 4};
  components.value = {1.0f, -2.0f};
  // Count and indices have 4 bits each: 2, 1, 4.
  EXPECT_EQ(Merged({3, 5}, components), Bytes({0x12, 0x04}) + Floats({1.0f, -2.0f}));
  EXPECT_EQ(Merged({3, 5}, Components()), Bytes({0x00}));
  // Two elements, two of them: count 2 in 2 bits, then both.
  components.index = {0, 1};
  EXPECT_EQ(Merged({1, 2}, components), Bytes({0x02}) + Floats({1.0f, -2.0f}));
}

TEST(ContributionChunk, DenseExactlyWhenNotSmaller) {
  for (uint32_t m : {1u, 2u, 3u, 4u, 15u, 16u, 17u, 50u, 64u, 65u, 4096u, 16384u}) {
    for (uint32_t k = 1; k <= m; ++k) {
      const size_t sparse = (k * IndexBits(m) + 7) / 8 + 4 * k;
      const ChunkShape shape = m == 4096    ? ChunkShape{64, 64}
                               : m == 16384 ? ChunkShape{128, 128}
                                            : ChunkShape{1, m};
      ASSERT_EQ(ContributionIsDense(m, k), sparse >= 4 * m);
      ASSERT_EQ(ContributionChunkBytes(shape, k), std::min<size_t>(sparse, 4 * m));
    }
  }
}

TEST(MergedChunk, DenseExactlyWhenNotSmaller) {
  for (uint32_t m : {1u, 2u, 3u, 4u, 15u, 16u, 17u, 50u, 64u, 128u}) {
    const size_t count_bytes = (IndexBits(m + 1) + 7) / 8;
    for (uint32_t count = 0; count <= m; ++count) {
      const size_t sparse = (IndexBits(m + 1) + count * IndexBits(m) + 7) / 8 + 4 * count;
      const size_t expected = sparse >= 4 * m ? count_bytes + 4 * m : sparse;
      ASSERT_EQ(MergedChunkBytes({1, m}, count), expected) << m << " " << count;
      ASSERT_LE(MergedChunkBytes({1, m}, count), count_bytes + 4 * m);
    }
  }
}

TEST(ContributionChunk, RoundTrip) {
  TestRandom random;
  for (const ChunkShape shape : InterestingShapes(&random, 60)) {
    for (int i = 0; i < 5; ++i) {
      const uint32_t m = shape.elements();
      const uint32_t k = i == 0 ? 1 : i == 1 ? m : random.Between(1, m);
      const Components sent = random.Some(m, k);
      std::string bytes = Contribution(shape, k, sent);
      ASSERT_EQ(bytes.size(), ContributionChunkBytes(shape, k));
      bytes += "next";
      absl::string_view rest = bytes;
      Components got;
      ASSERT_TRUE(ReadContributionChunk(shape, k, &rest, &got).ok());
      ASSERT_EQ(rest, "next");
      ASSERT_EQ(got.index, sent.index);
      ASSERT_EQ(got.value, sent.value);
    }
  }
}

TEST(ContributionChunk, DenseFormKeepsSentZerosApart) {
  ASSERT_TRUE(ContributionIsDense(16, 15));
  Components sent;
  for (uint32_t i = 0; i < 16; ++i) {
    if (i == 6) continue;
    sent.index.push_back(i);
    sent.value.push_back(i % 3 == 0 ? 0.0f : 1.0f);
  }
  const std::string bytes = Contribution({4, 4}, 15, sent);
  ASSERT_EQ(bytes.size(), 64u);
  absl::string_view rest = bytes;
  Components got;
  ASSERT_TRUE(ReadContributionChunk({4, 4}, 15, &rest, &got).ok());
  EXPECT_EQ(got.index, sent.index);
  EXPECT_EQ(got.value, sent.value);
  // All 16 sent although k is 15.
  ExpectRefused(ReadContribution({4, 4}, 15, std::string(63, '\0') + "\x40"), "components");
}

TEST(ContributionChunk, AllSentMayBeZero) {
  Components got;
  const std::string bytes(64, '\0');
  absl::string_view rest = bytes;
  ASSERT_TRUE(ReadContributionChunk({4, 4}, 16, &rest, &got).ok());
  EXPECT_EQ(got.size(), 16u);
}

TEST(MergedChunk, RoundTrip) {
  TestRandom random;
  for (const ChunkShape shape : InterestingShapes(&random, 60)) {
    for (int i = 0; i < 5; ++i) {
      const uint32_t m = shape.elements();
      const uint32_t count = i == 0 ? 0 : i == 1 ? m : random.Between(0, m);
      const Components sent = random.Some(m, count);
      std::string bytes = Merged(shape, sent);
      ASSERT_EQ(bytes.size(), MergedChunkBytes(shape, count));
      bytes += "next";
      absl::string_view rest = bytes;
      Components got;
      ASSERT_TRUE(ReadMergedChunk(shape, &rest, &got).ok());
      ASSERT_EQ(rest, "next");
      if (got.size() == count) {
        ASSERT_EQ(got.index, sent.index);
        ASSERT_EQ(got.value, sent.value);
        continue;
      }
      // Dense: what nobody sent is +0.
      ASSERT_EQ(got.size(), m);
      size_t next = 0;
      for (uint32_t at = 0; at < m; ++at) {
        const bool was_sent = next < sent.size() && sent.index[next] == at;
        ASSERT_EQ(got.value[at], was_sent ? sent.value[next++] : 0.0f);
        ASSERT_EQ(got.index[at], at);
      }
    }
  }
}

TEST(ContributionChunk, EveryTruncationIsRefused) {
  TestRandom random;
  for (const ChunkShape shape : {ChunkShape{1, 1}, ChunkShape{3, 5}, ChunkShape{16, 16}}) {
    const uint32_t m = shape.elements();
    for (const uint32_t k : {1u, (m + 3) / 4, m}) {
      const std::string bytes = Contribution(shape, k, random.Some(m, k));
      for (size_t size = 0; size < bytes.size(); ++size) {
        ExpectRefused(ReadContribution(shape, k, bytes.substr(0, size)), "truncated");
      }
      const std::string merged = Merged(shape, random.Some(m, k));
      for (size_t size = 0; size < merged.size(); ++size) {
        ExpectRefused(ReadMerged(shape, merged.substr(0, size)), "truncated");
      }
    }
  }
}

TEST(ContributionChunk, BadIndices) {
  const std::string values = Floats({1.0f, 2.0f});
  const ChunkShape shape{3, 5};
  EXPECT_TRUE(ReadContribution(shape, 2, Bytes({0xe3}) + values).ok());
  ExpectRefused(ReadContribution(shape, 2, Bytes({0xf3}) + values), "index 15; the limit is 14");
  ExpectRefused(ReadContribution(shape, 2, Bytes({0x3e}) + values), "must ascend");
  ExpectRefused(ReadContribution(shape, 2, Bytes({0x33}) + values), "must ascend");
}

TEST(ContributionChunk, BadPadding) {
  const std::string value = Floats({1.0f});
  EXPECT_TRUE(ReadContribution({3, 5}, 1, Bytes({0x0e}) + value).ok());
  for (const int padding : {0x10, 0x20, 0x40, 0x80}) {
    ExpectRefused(ReadContribution({3, 5}, 1, Bytes({0x0e | padding}) + value), "padding");
  }
}

TEST(ContributionChunk, BadValues) {
  const float bad[] = {std::nanf(""), std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  for (const float value : bad) {
    ExpectRefused(ReadContribution({3, 5}, 1, Bytes({0x0e}) + Floats({value})), "finite");
    ExpectRefused(ReadContribution({1, 2}, 2, Floats({0.0f, value})), "finite");
    ExpectRefused(ReadMerged({3, 5}, Bytes({0xe1}) + Floats({value})), "finite");
    ExpectRefused(ReadMerged({1, 2}, Bytes({0x02}) + Floats({value, 0.0f})), "finite");
  }
}

TEST(MergedChunk, BadCountIndicesAndPadding) {
  // 16 components of 12 elements.
  ExpectRefused(ReadMerged({3, 4}, std::string(100, '\x0f')), "the limit is 12");
  ExpectRefused(ReadMerged({3, 5}, Bytes({0xf1}) + Floats({1.0f})), "the limit is 14");
  ExpectRefused(ReadMerged({3, 5}, Bytes({0x32, 0x03}) + Floats({1, 2})), "must ascend");
  ExpectRefused(ReadMerged({3, 5}, Bytes({0x32, 0x15}) + Floats({1, 2})), "padding");
  ExpectRefused(ReadMerged({3, 5}, Bytes({0x10})), "padding");
  ExpectRefused(ReadMerged({1, 2}, Bytes({0x06}) + Floats({1, 2})), "padding");
}

TEST(MergedChunk, OneCodingOnly) {
  // 15 of 16 with indices would be no smaller than all 16.
  std::string bytes(200, '\0');
  bytes[0] = 15;
  ExpectRefused(ReadMerged({4, 4}, bytes), "must be dense");
}

// Random bytes are refused or are a coding that comes out the same when written again.
TEST(Chunk, RandomBytes) {
  TestRandom random;
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    const ChunkShape shape{random.Between(1, 4), random.Between(1, 5)};
    std::string bytes(random.Between(0, 90), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random.Between(0, 255));
    const uint32_t k = random.Between(1, shape.elements());
    Components got;
    absl::string_view rest = bytes;
    if (ReadContributionChunk(shape, k, &rest, &got).ok()) {
      ++accepted;
      ASSERT_EQ(Contribution(shape, k, got), bytes.substr(0, bytes.size() - rest.size()));
    }
    rest = bytes;
    if (ReadMergedChunk(shape, &rest, &got).ok()) {
      ++accepted;
      ASSERT_EQ(Merged(shape, got), bytes.substr(0, bytes.size() - rest.size()));
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST(ChunkDeathTest, WrongNumberOfComponentsIsABug) {
  EXPECT_DEATH(Contribution({4, 4}, 2, Components()), "components.size\\(\\) == k");
}

}  // namespace
}  // namespace isthmus
