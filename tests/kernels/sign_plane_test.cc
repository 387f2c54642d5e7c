// Sign planes: every pattern of small chunks, random and worst ones of large, and wrong bytes.
#include "kernels/sign_plane.h"

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/random.h"

namespace isthmus {
namespace {

void ExpectRoundTrip(const std::vector<float>& values) {
  std::vector<char> out;
  AppendSignPlane(values, &out);
  std::vector<float> signs, read(values.size(), 5);
  size_t zeros = 0;
  for (const float value : values) {
    signs.push_back(value > 0 ? 1.0f : value < 0 ? -1.0f : 0.0f);
    zeros += value == 0;
  }
  ASSERT_TRUE(zeros > 0 || out.size() == SignPlaneBytes(values.size()));
  absl::string_view bytes(out.data(), out.size());
  ASSERT_TRUE(ReadSignPlane(&bytes, absl::MakeSpan(read)).ok());
  ASSERT_TRUE(bytes.empty());
  ASSERT_EQ(read, signs);
  for (const float sign : read) ASSERT_FALSE(sign == 0 && std::signbit(sign));
  bytes = {out.data(), out.size() - 1};
  EXPECT_FALSE(ReadSignPlane(&bytes, absl::MakeSpan(read)).ok());
  EXPECT_EQ(bytes.size(), out.size() - 1);
}

TEST(SignPlane, AllOfSmallChunks) {
  for (size_t m = 1; m <= 7; ++m) {
    for (int code = 0; code < static_cast<int>(std::pow(3, m)); ++code) {
      std::vector<float> values(m);
      for (int left = code, i = 0; i < static_cast<int>(m); ++i, left /= 3) {
        values[i] = 0.25f * (left % 3 - 1);
      }
      ExpectRoundTrip(values);
    }
  }
}

TEST(SignPlane, LargeChunks) {
  TestRandom random;
  for (const uint32_t m : {1u, 31u, 32u, 33u, 63u, 64u, 65u, 920u, 4096u, 16384u}) {
    for (uint32_t share = 0; share <= 10; ++share) {
      std::vector<float> values = random.Normals(m);
      for (float& value : values) {
        if (random.Between(1, 10) <= share) value = random.Between(0, 1) == 0 ? 0.0f : -0.0f;
      }
      ExpectRoundTrip(values);
    }
  }
}

TEST(SignPlane, AnEmptyChunkIsItsHead) {
  std::vector<char> out;
  AppendSignPlane(std::vector<float>(4096), &out);
  EXPECT_EQ(out.size(), 2u);
}

TEST(SignPlane, AnyBytesAreReadOrRefused) {
  TestRandom random;
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<float> values(random.Between(1, round % 2 == 0 ? 64 : 500));
    std::string bytes(random.Between(0, 70), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random.Between(0, 255));
    absl::string_view rest = bytes;
    const absl::Status status = ReadSignPlane(&rest, absl::MakeSpan(values));
    if (!status.ok()) {
      ++refused;
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(rest.size(), bytes.size());
      continue;
    }
    std::vector<char> again;
    AppendSignPlane(values, &again);
    ASSERT_EQ(std::string(again.begin(), again.end()), bytes.substr(0, bytes.size() - rest.size()));
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace isthmus
