// Error feedback and top-k of chunks: nothing is lost, nothing counts twice.
#include "kernels/feedback.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "kernels/chunk_topk.h"
#include "kernels/number_format.h"
#include "tests/kernels/every_target.h"

namespace isthmus {
namespace {

constexpr size_t kSize = 700;

void ExpectRefused(const absl::Status& status, absl::string_view text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_TRUE(absl::StrContains(status.message(), text)) << status.message();
}

// Sends e in a format of its own and gives back what the receiver decodes.
std::vector<float> ThroughWire(int format, const std::vector<float>& e) {
  std::vector<char> bytes;
  std::vector<float> decoded(e.size());
  if (format == 0) {
    AppendChunkTopK({64, 5}, e, &bytes);
    absl::string_view rest(bytes.data(), bytes.size());
    EXPECT_TRUE(ReadChunkTopK({64, 5}, &rest, absl::MakeSpan(decoded)).ok());
    return decoded;
  }
  NumberSettings settings;
  settings.format = format == 1 ? NumberFormat::kInt4 : NumberFormat::kBf16;
  settings.hadamard = format == 1 ? 32 : 0;
  AppendNumbers(settings, e, {}, &bytes);
  absl::string_view rest(bytes.data(), bytes.size());
  EXPECT_TRUE(ReadNumbers(settings, &rest, absl::MakeSpan(decoded)).ok());
  return decoded;
}

// Rounds are included or left out at random, and settled up to three rounds later: at the end what
// went in is in the updates, pending, or in the residual.
TEST(Feedback, InputsAreUpdatesPendingAndResidual) {
  TestRandom random;
  for (int format = 0; format < 3; ++format) {
    std::vector<double> in(kSize), out(kSize);
    std::vector<float> e(kSize);
    std::map<int, std::vector<float>> pending;
    for (int round = 0; round < 200; ++round) {
      const std::vector<float> d = random.Normals(kSize);
      AddToResidual(1.0f, d, absl::MakeSpan(e));
      const std::vector<float> sent = ThroughWire(format, e);
      TakeFromResidual(1.0f, sent, absl::MakeSpan(e));
      pending[round] = sent;
      for (size_t i = 0; i < kSize; ++i) in[i] += d[i];
      while (pending.size() > random.Between(0, 3)) {
        const std::vector<float>& settled = pending.begin()->second;
        const bool included = random.Between(0, 2) > 0;
        if (!included) GiveBack(1.0f, settled, absl::MakeSpan(e));
        for (size_t i = 0; included && i < kSize; ++i) out[i] += settled[i];
        pending.erase(pending.begin());
      }
    }
    for (const auto& entry : pending) {
      for (size_t i = 0; i < kSize; ++i) out[i] += entry.second[i];
    }
    for (size_t i = 0; i < kSize; ++i) {
      // A rounding of a few units each round, of sums of some tens.
      ASSERT_NEAR(in[i], out[i] + e[i], 2e-3) << "format " << format;
    }
  }
}

// With decay and gain what is left out comes back as if it had been taken out of a residual that
// decayed meanwhile.
TEST(Feedback, WhatIsLeftOutDecaysAsTheResidualDoes) {
  TestRandom random;
  const float decay = 0.95f, gain = 0.5f;
  std::vector<float> e = random.Normals(kSize), never = e;
  const std::vector<float> sent = ThroughWire(2, e);
  TakeFromResidual(gain, sent, absl::MakeSpan(e));
  float factor = gain;
  for (int round = 0; round < 3; ++round) {
    const std::vector<float> d = random.Normals(kSize);
    AddToResidual(decay, d, absl::MakeSpan(e));
    AddToResidual(decay, d, absl::MakeSpan(never));
    factor *= decay;
  }
  GiveBack(factor, sent, absl::MakeSpan(e));
  for (size_t i = 0; i < kSize; ++i) EXPECT_NEAR(e[i], never[i], 3e-6f);
}

TEST(Feedback, OperationsAreRoundedOneByOne) {
  TestRandom random;
  std::vector<float> e = OddNumbers(&random, kSize);
  const std::vector<float> d = OddNumbers(&random, kSize);
  std::vector<float> expected = e;
  for (size_t i = 0; i < kSize; ++i) {
    const volatile float kept = 0.9f * expected[i];
    const volatile float sum = kept + d[i];
    const volatile float taken = 0.7f * d[i];
    const volatile float left = sum - taken;
    const volatile float back = 0.3f * d[i];
    expected[i] = left + back;
  }
  AddToResidual(0.9f, d, absl::MakeSpan(e));
  TakeFromResidual(0.7f, d, absl::MakeSpan(e));
  GiveBack(0.3f, d, absl::MakeSpan(e));
  EXPECT_TRUE(SameBits(e, expected));
}

TEST(Feedback, RefusesWithFieldAndValue) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(CheckFeedback({0.95, 1.0}).ok());
  EXPECT_TRUE(CheckFeedback({0.0, 0.1}).ok());
  for (const double bad : {-0.1, 1.1, nan}) {
    ExpectRefused(CheckFeedback({bad, 1.0}), "feedback.decay is ");
    ExpectRefused(CheckFeedback({1.0, bad}), "feedback.gain is ");
  }
  ExpectRefused(CheckFeedback({1.0, 0.0}), "feedback.gain is 0");
}

TEST(ChunkTopK, ThereAndBack) {
  TestRandom random;
  std::vector<size_t> sizes = InterestingSizes(&random);
  sizes.push_back(9001);
  for (const size_t size : sizes) {
    const uint32_t chunk = random.Between(0, 1) == 0 ? 4096 : random.Between(1, 500);
    const ChunkTopK settings{chunk, std::min(chunk, random.Between(1, 70))};
    const std::vector<float> values = random.Normals(size);
    std::vector<char> bytes;
    AppendChunkTopK(settings, values, &bytes);
    ASSERT_EQ(bytes.size(), ChunkTopKBytes(settings, size));
    std::vector<float> got(size, 99.0f), sum = random.Normals(size), expected = sum;
    absl::string_view rest(bytes.data(), bytes.size());
    ASSERT_TRUE(ReadChunkTopK(settings, &rest, absl::MakeSpan(got)).ok());
    EXPECT_TRUE(rest.empty());
    rest = absl::string_view(bytes.data(), bytes.size());
    ASSERT_TRUE(FoldChunkTopK(settings, 0.5f, &rest, absl::MakeSpan(sum)).ok());
    EXPECT_TRUE(rest.empty());
    size_t sent = 0, due = 0;
    for (size_t first = 0; first < size; first += chunk) {
      due += std::min<size_t>(settings.k, size - first);
    }
    for (size_t i = 0; i < size; ++i) {
      ASSERT_TRUE(got[i] == 0.0f || got[i] == values[i]);
      sent += got[i] != 0.0f;
      ASSERT_EQ(sum[i], expected[i] + 0.5f * got[i]);
    }
    ASSERT_EQ(sent, due);
  }
}

TEST(ChunkTopK, BitsAParameter) {
  // 64 of 4096 with 12 bits of index and 32 of value.
  EXPECT_EQ(ChunkTopKBytes({4096, 64}, 4096), 64u * 12 / 8 + 64 * 4);
  EXPECT_EQ(ChunkTopKBytes({16, 3}, 70), 4 * (2 + 12) + 2 + 12u);
  EXPECT_EQ(ChunkTopKBytes({16, 3}, 0), 0u);
}

TEST(ChunkTopK, RefusesWithFieldAndChunk) {
  ExpectRefused(CheckChunkTopK({0, 1}), "codec.chunk is 0");
  ExpectRefused(CheckChunkTopK({4097, 1}), "codec.chunk is 4097");
  ExpectRefused(CheckChunkTopK({16, 0}), "codec.k is 0");
  ExpectRefused(CheckChunkTopK({16, 17}), "codec.k is 17");
  EXPECT_TRUE(CheckChunkTopK({4096, 64}).ok());
  std::vector<char> bytes;
  AppendChunkTopK({16, 3}, std::vector<float>(40, 1.0f), &bytes);
  std::vector<float> values(40);
  absl::string_view cut(bytes.data(), bytes.size() - 1);
  ExpectRefused(ReadChunkTopK({16, 3}, &cut, absl::MakeSpan(values)),
                "top-k chunk at value 32 of 40: ");
  EXPECT_EQ(cut.size(), bytes.size() - 1);
  bytes[14] = static_cast<char>(0xff);  // the second chunk's first index
  absl::string_view rest(bytes.data(), bytes.size());
  ExpectRefused(FoldChunkTopK({16, 3}, 1.0f, &rest, absl::MakeSpan(values)),
                "top-k chunk at value 16 of 40: ");
  EXPECT_EQ(rest.size(), bytes.size());
}

}  // namespace
}  // namespace isthmus
