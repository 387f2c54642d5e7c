// What a link of WAN in a box does to packets, on a clock of the test's own.
#include "tools/wan/shaper.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace isthmus::wan {
namespace {

constexpr int64_t kMs = 1'000'000;  // in ns
constexpr int64_t kFullPacket = 1500;

Shaper MakeShaper(const Shape& shape, uint64_t seed = 1) {
  Shaper shaper(seed);
  shaper.Set(shape);
  return shaper;
}

TEST(Shaper, WithoutSettingsAPacketPassesAtOnce) {
  Shaper shaper = MakeShaper({});
  const Verdict verdict = shaper.Offer(5 * kMs, kFullPacket);
  EXPECT_EQ(verdict.outcome, Outcome::kPass);
  EXPECT_EQ(verdict.release_ns, 5 * kMs);
  EXPECT_FALSE(verdict.duplicate);
  EXPECT_FALSE(verdict.reordered);
  EXPECT_EQ(verdict.corrupt_bit, -1);
}

TEST(Shaper, TheRateSpacesPacketsAndTheDelayComesOnTop) {
  Shape shape;
  shape.rate_mbit = 12;  // 1500 bytes take 1 ms
  shape.delay_ms = 20;
  Shaper shaper = MakeShaper(shape);
  for (int i = 1; i <= 10; ++i) {
    EXPECT_EQ(shaper.Offer(0, kFullPacket).release_ns, (20 + i) * kMs) << i;
  }
  // After a pause the link is free again and owes nothing for the time it was idle.
  EXPECT_EQ(shaper.Offer(1000 * kMs, kFullPacket).release_ns, 1021 * kMs);
  EXPECT_EQ(shaper.Offer(1000 * kMs, kFullPacket / 2).release_ns, 1021 * kMs + kMs / 2);
}

TEST(Shaper, TheQueueIsAsLongAsStated) {
  Shape shape;
  shape.rate_mbit = 12;
  shape.queue_kbyte = 15;  // 10 packets
  Shaper shaper = MakeShaper(shape);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(shaper.Offer(0, kFullPacket).outcome, Outcome::kPass) << i;
  }
  EXPECT_EQ(shaper.Offer(0, kFullPacket).outcome, Outcome::kQueueFull);
  EXPECT_EQ(shaper.Offer(kMs, kFullPacket).outcome, Outcome::kPass);  // one has left
  EXPECT_EQ(shaper.Offer(kMs, kFullPacket).outcome, Outcome::kQueueFull);
}

TEST(Shaper, TheQueueIsAHundredMillisecondsUnlessStated) {
  Shape shape;
  shape.rate_mbit = 100;
  EXPECT_EQ(QueueBytes(shape), 1'250'000);
  shape.rate_mbit = 1;
  EXPECT_EQ(QueueBytes(shape), 64'000);
  shape.queue_kbyte = 2;
  EXPECT_EQ(QueueBytes(shape), 2'000);
}

TEST(Shaper, JitterKeepsTheOrderAndItsBound) {
  Shape shape;
  shape.delay_ms = 10;
  shape.jitter_ms = 5;
  Shaper shaper = MakeShaper(shape);
  int64_t last_ns = 0, most_ns = 0, least_ns = 1000 * kMs;
  for (int i = 0; i < 1000; ++i) {
    const int64_t now_ns = i * 100 * kMs;  // far apart: no packet waits for the one before it
    const int64_t release_ns = shaper.Offer(now_ns, kFullPacket).release_ns;
    EXPECT_GE(release_ns, last_ns);
    last_ns = release_ns;
    most_ns = std::max(most_ns, release_ns - now_ns);
    least_ns = std::min(least_ns, release_ns - now_ns);
  }
  EXPECT_GE(least_ns, 10 * kMs);
  EXPECT_LT(least_ns, 10 * kMs + kMs / 2);
  EXPECT_LE(most_ns, 15 * kMs);
  EXPECT_GT(most_ns, 14 * kMs);
  for (int i = 0; i < 1000; ++i) {  // close together
    const int64_t release_ns = shaper.Offer(200'000 * kMs + i * kMs / 10, kFullPacket).release_ns;
    EXPECT_GE(release_ns, last_ns);
    last_ns = release_ns;
  }
}

TEST(Shaper, AReorderedPacketIsLateAndHoldsUpNobody) {
  Shape shape;
  shape.delay_ms = 10;
  shape.reorder = 1;
  Shaper shaper = MakeShaper(shape);
  const Verdict late = shaper.Offer(0, kFullPacket);
  EXPECT_TRUE(late.reordered);
  EXPECT_EQ(late.release_ns, 15 * kMs);
  shape.reorder = 0;
  shaper.Set(shape);
  EXPECT_EQ(shaper.Offer(kMs, kFullPacket).release_ns, 11 * kMs);
}

TEST(Shaper, LossAndTheOthersComeWithTheirProbability) {
  Shape shape;
  shape.loss = 0.1;
  shape.duplicate = 0.2;
  shape.corrupt = 0.3;
  Shaper shaper = MakeShaper(shape);
  constexpr int kPackets = 20'000;
  int lost = 0, doubled = 0, corrupted = 0;
  for (int i = 0; i < kPackets; ++i) {
    const Verdict verdict = shaper.Offer(i * kMs, kFullPacket);
    lost += verdict.outcome == Outcome::kLost;
    doubled += verdict.duplicate;
    if (verdict.corrupt_bit < 0) continue;
    ++corrupted;
    EXPECT_GE(verdict.corrupt_bit, 20 * 8);
    EXPECT_LT(verdict.corrupt_bit, kFullPacket * 8);
  }
  const auto near = [](int count, int of, double probability) {
    return std::abs(count - of * probability) <=
           4 * std::sqrt(of * probability * (1 - probability));
  };
  EXPECT_TRUE(near(lost, kPackets, 0.1)) << lost;
  EXPECT_TRUE(near(doubled, kPackets - lost, 0.2)) << doubled;
  EXPECT_TRUE(near(corrupted, kPackets - lost, 0.3)) << corrupted;
}

TEST(Shaper, ALostPacketHasUsedTheLink) {
  Shape shape;
  shape.rate_mbit = 12;
  shape.loss = 1;
  Shaper shaper = MakeShaper(shape);
  EXPECT_EQ(shaper.Offer(0, kFullPacket).outcome, Outcome::kLost);
  shape.loss = 0;
  shaper.Set(shape);
  EXPECT_EQ(shaper.Offer(0, kFullPacket).release_ns, 2 * kMs);
}

TEST(Shaper, ACutLinkPassesNothingUntilItIsHealed) {
  Shape shape;
  shape.cut = true;
  Shaper shaper = MakeShaper(shape);
  EXPECT_EQ(shaper.Offer(0, kFullPacket).outcome, Outcome::kCut);
  shape.cut = false;
  shaper.Set(shape);
  EXPECT_EQ(shaper.Offer(0, kFullPacket).outcome, Outcome::kPass);
}

TEST(Shaper, ASeedDecidesEverything) {
  const auto outcomes = [](uint64_t seed) {
    Shape shape;
    shape.loss = 0.3;
    Shaper shaper = MakeShaper(shape, seed);
    std::vector<bool> lost;
    for (int i = 0; i < 200; ++i) {
      lost.push_back(shaper.Offer(i, kFullPacket).outcome == Outcome::kLost);
    }
    return lost;
  };
  EXPECT_EQ(outcomes(7), outcomes(7));
  EXPECT_NE(outcomes(7), outcomes(8));
}

TEST(SetField, SetsWhatItNamesAndRefusesTheRest) {
  Shape shape;
  ASSERT_TRUE(SetField("loss", "0.25", &shape).ok());
  ASSERT_TRUE(SetField("rate_mbit", "1e2", &shape).ok());
  ASSERT_TRUE(SetField("cut", "1", &shape).ok());
  EXPECT_EQ(shape.loss, 0.25);
  EXPECT_EQ(shape.rate_mbit, 100);
  EXPECT_TRUE(shape.cut);
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"loss", "1.01"},
                                                        {"loss", "-0.1"},
                                                        {"loss", "nan"},
                                                        {"loss", ""},
                                                        {"delay_ms", "inf"},
                                                        {"cut", "perhaps"},
                                                        {"speed", "1"},
                                                        {"", "1"}}) {
    const absl::Status status = SetField(name, value, &shape);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name << "=" << value;
    EXPECT_NE(status.message().find(name), absl::string_view::npos) << status;
  }
  EXPECT_EQ(shape.loss, 0.25);
}

}  // namespace
}  // namespace isthmus::wan
