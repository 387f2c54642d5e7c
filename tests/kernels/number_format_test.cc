// Number formats: on every target against the plain implementation, there and back, and bytes that
// cannot be read.
#include "kernels/number_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "kernels/number_bytes.h"
#include "kernels/reference/outer.h"
#include "tests/kernels/every_target.h"

namespace isthmus {
namespace {

INSTANTIATE_TEST_SUITE_P(Kernels, EveryTarget, testing::ValuesIn(KernelTargets()), TargetName);

constexpr NumberFormat kFormats[] = {
    NumberFormat::kF32,  NumberFormat::kBf16,  NumberFormat::kF16,     NumberFormat::kInt8,
    NumberFormat::kInt4, NumberFormat::kSign1, NumberFormat::kTernary,
};

NumberSettings Of(NumberFormat format, uint32_t group = 128, uint32_t hadamard = 0) {
  NumberSettings settings;
  settings.format = format;
  settings.group = group;
  settings.hadamard = hadamard;
  return settings;
}

bool HasGroups(NumberFormat format) {
  return format == NumberFormat::kInt8 || format == NumberFormat::kInt4;
}

std::vector<char> Coded(const NumberSettings& settings, const std::vector<float>& values,
                        const std::vector<float>& draws = {}) {
  std::vector<char> bytes;
  AppendNumbers(settings, values, draws, &bytes);
  EXPECT_EQ(bytes.size(), NumberBytes(settings, values.size()));
  return bytes;
}

std::vector<float> Restored(const NumberSettings& settings, const std::vector<char>& bytes,
                            size_t count) {
  absl::string_view rest(bytes.data(), bytes.size());
  std::vector<float> values(count);
  const absl::Status status = ReadNumbers(settings, &rest, absl::MakeSpan(values));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(rest.empty());
  return values;
}

// Of all sizes: tiny ones next to large ones, groups of zeros, groups of subnormal numbers.
std::vector<float> Numbers(TestRandom* random, size_t count) {
  std::vector<float> values = OddNumbers(random, count);
  const float odd[] = {65504.0f, 65519.0f, 65520.0f, 1e38f, -1e38f, 6e-8f, 3e-8f, -2.5f, 3.5f};
  for (size_t i = 0; i < count; ++i) {
    if (random->Between(0, 9) == 0) values[i] = odd[random->Between(0, 8)];
    // Groups without very large numbers, of zeros, and of subnormal ones.
    if (i / 64 % 4 == 0) values[i] = random->Normal();
    if (i / 64 % 8 == 1) values[i] = 0.0f;
    if (i / 64 % 8 == 2) values[i] = random->Normal() * 1e-43f;
  }
  return values;
}

std::vector<float> Draws(TestRandom* random, size_t count) {
  std::vector<float> draws(count);
  for (float& draw : draws) draw = random->Between(0, (1 << 24) - 1) / 16777216.0f;
  return draws;
}

TEST_P(EveryTarget, EncodesAndDecodesBitForBit) {
  for (const NumberFormat format : kFormats) {
    for (const size_t size : InterestingSizes(&random_)) {
      const NumberSettings settings =
          Of(format, random_.Between(1, 3) == 1   ? 64
                     : random_.Between(0, 1) == 0 ? random_.Between(1, 200)
                                                  : 128);
      const std::vector<float> values = Numbers(&random_, size);
      for (const bool random_rounding : {false, true}) {
        if (random_rounding && !HasGroups(format)) continue;
        const std::vector<float> draws = Draws(&random_, random_rounding ? size : 0);
        const std::vector<char> got = Coded(settings, values, draws);
        std::vector<char> expected(got.size());
        reference::EncodeNumbers(settings, values, draws, expected.data());
        ASSERT_TRUE(SameBits(got, expected)) << NumberName(format) << " of " << size << ", group "
                                             << settings.group << ", random " << random_rounding;
        std::vector<float> restored(size);
        ASSERT_TRUE(reference::DecodeNumbers(settings, got.data(), absl::MakeSpan(restored)));
        ASSERT_TRUE(SameBits(Restored(settings, got, size), restored)) << NumberName(format);
      }
    }
  }
}

TEST_P(EveryTarget, RotatesBitForBitAndBack) {
  for (uint32_t n = 2; n <= kHadamardMax; n *= 2) {
    for (const size_t groups : {0, 1, 3, 15, 16, 17, 40}) {
      const std::vector<float> values = random_.Normals(groups * n);
      std::vector<float> got = values, expected = values;
      HadamardInPlace(n, absl::MakeSpan(got));
      reference::HadamardInPlace(n, absl::MakeSpan(expected));
      ASSERT_TRUE(SameBits(got, expected)) << n << " times " << groups;
      HadamardInPlace(n, absl::MakeSpan(got));
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], values[i], 4e-6);
    }
  }
}

// Random bytes: read or refused as the plain implementation does, and never beyond their end.
TEST_P(EveryTarget, RandomBytesAreReadOrRefused) {
  for (int i = 0; i < 3000; ++i) {
    const NumberFormat format = kFormats[random_.Between(0, 6)];
    const size_t size = random_.Between(0, 40);
    const NumberSettings settings = Of(format, random_.Between(1, 20));
    // Exactly as long as needed, on the heap: a sanitizer sees what is read beyond it.
    std::vector<char> bytes(NumberBytes(settings, size));
    if (random_.Between(0, 1) == 0) bytes = Coded(settings, random_.Normals(size));
    for (uint32_t changes = random_.Between(0, 3); changes > 0 && !bytes.empty(); --changes) {
      bytes[random_.Between(0, bytes.size() - 1)] = static_cast<char>(random_.Between(0, 255));
    }
    std::vector<float> got(size), expected(size);
    absl::string_view rest(bytes.data(), bytes.size());
    const absl::Status status = ReadNumbers(settings, &rest, absl::MakeSpan(got));
    const bool right = reference::DecodeNumbers(settings, bytes.data(), absl::MakeSpan(expected));
    ASSERT_EQ(status.ok(), right) << NumberName(format) << " of " << size << ": " << status;
    EXPECT_EQ(rest.size(), right ? 0 : bytes.size());
    if (right) {
      ASSERT_TRUE(SameBits(got, expected));
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_TRUE(absl::StartsWith(status.message(), NumberName(format))) << status;
    }
  }
}

TEST(NumberFormat, SixteenBitsAreAllRestored) {
  for (const NumberFormat format : {NumberFormat::kF16, NumberFormat::kBf16}) {
    int finite = 0;
    for (uint32_t code = 0; code < 65536; ++code) {
      const char bytes[2] = {static_cast<char>(code & 255), static_cast<char>(code >> 8)};
      absl::string_view rest(bytes, 2);
      float value;
      if (!ReadNumbers(Of(format), &rest, {&value, 1}).ok()) continue;
      ++finite;
      const std::vector<char> again = Coded(Of(format), {value});
      ASSERT_EQ(std::memcmp(again.data(), bytes, 2), 0) << NumberName(format) << " " << code;
    }
    // All but infinities and NaNs; of bf16 only those up to 1e30.
    EXPECT_EQ(finite, format == NumberFormat::kF16 ? 2 * 0x7c00 : 2 * 0x714a);
  }
}

TEST(NumberFormat, PartsAreTheBytesOfTheWhole) {
  TestRandom random;
  const std::vector<float> values = random.Normals(1000);
  for (const NumberFormat format : kFormats) {
    const NumberSettings settings = Of(format, 40, 8);
    const std::vector<char> whole = Coded(settings, values);
    std::vector<char> parts;
    for (size_t first = 0; first < 1000;) {
      const size_t count = std::min<size_t>(40 * random.Between(1, 9), 1000 - first);
      AppendNumbers(settings, absl::MakeConstSpan(values).subspan(first, count), {}, &parts);
      first += count;
    }
    EXPECT_TRUE(SameBits(whole, parts)) << NumberName(format);
  }
}

TEST(NumberFormat, BitsAParameter) {
  EXPECT_EQ(NumberBytes(Of(NumberFormat::kInt8), 1 << 20) * 8.0 / (1 << 20), 8.25);
  EXPECT_EQ(NumberBytes(Of(NumberFormat::kInt4), 1 << 20) * 8.0 / (1 << 20), 4.25);
  EXPECT_EQ(NumberBytes(Of(NumberFormat::kInt4, 2048), 1 << 20) * 8.0 / (1 << 20), 4.015625);
  EXPECT_EQ(NumberBytes(Of(NumberFormat::kSign1), 35), 5u);
  EXPECT_EQ(NumberBytes(Of(NumberFormat::kTernary), 35), 9u);
  EXPECT_EQ(NumberBytes(Of(NumberFormat::kInt4, 128, 32), 5), 4u + 16u);
  for (const NumberFormat format : kFormats) EXPECT_EQ(NumberBytes(Of(format), 0), 0u);
}

TEST(NumberFormat, SignsAndVotes) {
  const std::vector<float> values = {0.0f, -0.0f, 1e-42f, -1e-42f, 5.0f, -5.0f, 0.0f, 2.0f, -1.0f};
  EXPECT_EQ(Restored(Of(NumberFormat::kSign1), Coded(Of(NumberFormat::kSign1), values), 9),
            (std::vector<float>{1, 1, 1, -1, 1, -1, 1, 1, -1}));
  EXPECT_EQ(Restored(Of(NumberFormat::kTernary), Coded(Of(NumberFormat::kTernary), values), 9),
            (std::vector<float>{0, 0, 1, -1, 1, -1, 0, 1, -1}));
}

TEST(NumberFormat, RandomRoundingHasTheRightMean) {
  TestRandom random;
  constexpr size_t kSize = 1 << 16;
  std::vector<float> values(kSize, 0.37f);
  for (size_t i = 0; i < kSize; i += 128) values[i] = 7.0f;  // the scale is 1
  const std::vector<char> bytes = Coded(Of(NumberFormat::kInt4), values, Draws(&random, kSize));
  double sum = 0.0;
  for (const float v : Restored(Of(NumberFormat::kInt4), bytes, kSize)) {
    if (v != 7.0f) sum += v;
  }
  EXPECT_NEAR(sum / (kSize - kSize / 128), 0.37, 5 * 0.483 / std::sqrt(kSize));
}

TEST(NumberFormat, ARotationHelpsWithOutliers) {
  TestRandom random;
  std::vector<float> values = random.Normals(4096);
  for (size_t i = 0; i < values.size(); i += 100) values[i] *= 30.0f;
  double plain = 0.0, rotated = 0.0;
  const NumberSettings four = Of(NumberFormat::kInt4), turned = Of(NumberFormat::kInt4, 128, 32);
  const std::vector<float> a = Restored(four, Coded(four, values), 4096);
  const std::vector<float> b = Restored(turned, Coded(turned, values), 4096);
  for (size_t i = 0; i < values.size(); ++i) {
    plain += (a[i] - values[i]) * (a[i] - values[i]);
    rotated += (b[i] - values[i]) * (b[i] - values[i]);
  }
  EXPECT_LT(rotated, plain);
  // Any length: what the last group is padded with is not read back.
  for (const size_t size : {1u, 31u, 33u, 129u, 4095u}) {
    const std::vector<float> some(values.begin(), values.begin() + size);
    EXPECT_EQ(Restored(turned, Coded(turned, some), size).size(), size);
  }
}

void ExpectRefused(const NumberSettings& settings, std::vector<char> bytes, size_t count,
                   absl::string_view text) {
  absl::string_view rest(bytes.data(), bytes.size());
  std::vector<float> values(count);
  const absl::Status status = ReadNumbers(settings, &rest, absl::MakeSpan(values));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_TRUE(absl::StrContains(status.message(), text)) << status.message();
  EXPECT_EQ(rest.size(), bytes.size());
}

std::vector<char> WithScale(float scale, const std::vector<char>& codes) {
  std::vector<char> bytes(kScaleBytes + codes.size());
  std::memcpy(bytes.data(), &scale, kScaleBytes);
  std::copy(codes.begin(), codes.end(), bytes.begin() + kScaleBytes);
  return bytes;
}

TEST(NumberFormat, RefusesBytesNamingWhatAndWhere) {
  const char low = static_cast<char>(-128);
  ExpectRefused(Of(NumberFormat::kInt8), WithScale(1.0f, {1, low, 3}), 3,
                "int8 value 1 has the code -128; codes from -127 to 127 are taken");
  ExpectRefused(Of(NumberFormat::kInt4), WithScale(1.0f, {0x01, 0x08}), 3,
                "int4 value 2 has the code -8");
  ExpectRefused(Of(NumberFormat::kInt4), WithScale(1.0f, {0x01, 0x11}), 3, "padding bits");
  for (const float bad : {-1.0f, -0.0f, HUGE_VALF, std::nanf(""), 1e30f}) {
    ExpectRefused(Of(NumberFormat::kInt8), WithScale(bad, {1}), 1,
                  "int8 group at value 0 has the scale ");
  }
  ExpectRefused(Of(NumberFormat::kInt8), WithScale(0.0f, {0, 1}), 2,
                "int8 value 1 has the code 1 in a group with the scale 0");
  ExpectRefused(Of(NumberFormat::kInt8), WithScale(1.0f, {1}), 2,
                "int8 block of 2 values is truncated: it takes 6 bytes and 5 are left");
  ExpectRefused(Of(NumberFormat::kSign1), {0x08}, 3, "sign1 block of 3 values has padding bits");
  ExpectRefused(Of(NumberFormat::kTernary), {0x02}, 1, "ternary value 0 has the code 2");
  ExpectRefused(Of(NumberFormat::kTernary), {0x04}, 1, "padding bits");
  ExpectRefused(Of(NumberFormat::kF16), {0, 0, 0, 0x7c}, 2, "f16 value 1 is inf");
  ExpectRefused(Of(NumberFormat::kBf16), {0, 0x7f}, 1, "magnitudes up to 1e+30 are taken");
  for (const float bad : {HUGE_VALF, -HUGE_VALF, std::nanf(""), 2e30f}) {
    ExpectRefused(Of(NumberFormat::kF32), WithScale(0.0f, WithScale(bad, {})), 2,
                  "f32 value 1 is ");
  }
}

TEST(NumberFormat, RefusesSettings) {
  const auto refused = [](const NumberSettings& settings, absl::string_view text) {
    const absl::Status status = CheckNumberSettings(settings);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << status.message();
  };
  refused(Of(NumberFormat::kInt8, 0), "codec.group is 0");
  refused(Of(NumberFormat::kInt4, 4097), "codec.group is 4097");
  refused(Of(NumberFormat::kInt4, 128, 24), "codec.hadamard is 24");
  refused(Of(NumberFormat::kInt4, 128, 1), "codec.hadamard is 1");
  refused(Of(NumberFormat::kInt4, 128, 512), "codec.hadamard is 512");
  refused(Of(NumberFormat::kInt4, 48, 32), "does not divide the group of 48");
  refused(Of(static_cast<NumberFormat>(77)), "codec.format is 77");
  for (const NumberFormat format : kFormats) {
    EXPECT_TRUE(CheckNumberSettings(Of(format, 128, 32)).ok());
    const bool votes = format == NumberFormat::kSign1 || format == NumberFormat::kTernary;
    EXPECT_EQ(CheckAggregateFormat(AggregateKind::kMajority, format).ok(), votes);
    EXPECT_TRUE(CheckAggregateFormat(AggregateKind::kMean, format).ok());
  }
}

}  // namespace
}  // namespace isthmus
