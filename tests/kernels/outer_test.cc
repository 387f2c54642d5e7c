// Outer steps and their draws: on every target against the plain implementation, in any cut into
// spans, and what the rules promise.
#include "kernels/outer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "base/parallel.h"
#include "gtest/gtest.h"
#include "kernels/reference/outer.h"
#include "tests/kernels/every_target.h"

namespace isthmus {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(Kernels, EveryTarget, testing::ValuesIn(KernelTargets()), TargetName);

constexpr OuterKind kKinds[] = {
    OuterKind::kAssign,   OuterKind::kSgd,    OuterKind::kMomentum,
    OuterKind::kNesterov, OuterKind::kSlowMo, OuterKind::kSignMomentum,
    OuterKind::kAdamW,    OuterKind::kLion,   OuterKind::kSignSgd,
};

// Each rule with and without decay, and sign_momentum with all its signs.
std::vector<OuterSettings> AllSettings() {
  std::vector<OuterSettings> all;
  for (const OuterKind kind : kKinds) {
    OuterSettings settings = DefaultOuterSettings(kind);
    all.push_back(settings);
    if (kind == OuterKind::kAssign || kind == OuterKind::kSlowMo) continue;
    settings.weight_decay = settings.weight_decay == 0.0 ? 0.05 : 0.0;
    all.push_back(settings);
    if (kind != OuterKind::kSignMomentum) continue;
    for (const SignKind sign : {SignKind::kRandomTwoPoint, SignKind::kRandomThreePoint}) {
      for (const BoundKind bound : {BoundKind::kFixed, BoundKind::kLargest}) {
        settings.sign = sign;
        settings.bound_kind = bound;
        settings.divide_by_gamma = !settings.divide_by_gamma;
        settings.weight_decay = 0.1;
        all.push_back(settings);
      }
    }
  }
  return all;
}

OuterRound RoundOf(const OuterSettings& settings, double gamma, uint32_t number) {
  OuterPowers powers;
  for (uint32_t t = 0; t < number; ++t) powers = NextOuterPowers(settings, powers);
  const auto round = MakeOuterRound(settings, {gamma, powers, {20260101, 3, number}});
  EXPECT_TRUE(round.ok()) << round.status();
  return *round;
}

struct Arrays {
  std::vector<float> x, first, second;

  explicit Arrays(std::vector<float> start)
      : x(std::move(start)), first(x.size()), second(x.size()) {}
  OuterState State(size_t from, size_t count) {
    return {absl::MakeSpan(x).subspan(from, count), absl::MakeSpan(first).subspan(from, count),
            absl::MakeSpan(second).subspan(from, count)};
  }
  bool Same(const Arrays& other) const {
    return SameBits(x, other.x) && SameBits(first, other.first) && SameBits(second, other.second);
  }
};

TEST(Philox, GivesTheNumbersOfItsAuthors) {
  // Known answers of philox4x32-10 published with the Random123 library.
  using reference::Philox4x32;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (reference::PhiloxWords{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(
      Philox4x32({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu}),
      (reference::PhiloxWords{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(
      Philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
      (reference::PhiloxWords{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST_P(EveryTarget, DrawsBitForBit) {
  for (const size_t size : InterestingSizes(&random_)) {
    const DrawKey key{(uint64_t{random_.Between(0, ~0u)} << 32) | random_.Between(0, ~0u),
                      random_.Between(0, 9), random_.Between(0, ~0u)};
    // Near the end of a counter's low word, too.
    const uint64_t first = random_.Between(0, 1) == 0
                               ? random_.Between(0, 1000)
                               : (uint64_t{1} << 34) - random_.Between(0, 2000);
    std::vector<float> got(size), expected(size);
    UniformDraws(key, first, absl::MakeSpan(got));
    reference::UniformDraws(key, first, absl::MakeSpan(expected));
    ASSERT_TRUE(SameBits(got, expected)) << size << " from " << first;
  }
}

TEST(Draws, AreUniformAndDifferBySeedFragmentAndRound) {
  constexpr size_t kCount = 1 << 18;
  const DrawKey keys[] = {{7, 0, 0}, {8, 0, 0}, {7, 1, 0}, {7, 0, 1}, {uint64_t{7} << 32, 0, 0}};
  std::vector<std::vector<float>> draws;
  for (const DrawKey& key : keys) {
    draws.emplace_back(kCount);
    UniformDraws(key, 0, absl::MakeSpan(draws.back()));
    std::vector<int> share(16);
    double sum = 0.0;
    for (const float u : draws.back()) {
      ASSERT_TRUE(u >= 0.0f && u < 1.0f);
      ++share[static_cast<size_t>(u * 16)];
      sum += u;
    }
    // Five standard deviations.
    EXPECT_NEAR(sum / kCount, 0.5, 5 * 0.2887 / std::sqrt(kCount));
    for (const int count : share) EXPECT_NEAR(count, kCount / 16, 5 * std::sqrt(kCount / 16.0));
  }
  for (size_t a = 0; a < draws.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      double product = 0.0;
      for (size_t i = 0; i < kCount; ++i) product += (draws[a][i] - 0.5) * (draws[b][i] - 0.5);
      EXPECT_NEAR(product / kCount, 0.0, 5.0 / 12 / std::sqrt(kCount)) << a << " and " << b;
    }
  }
}

TEST_P(EveryTarget, StepsBitForBit) {
  for (const OuterSettings& settings : AllSettings()) {
    for (const size_t size : InterestingSizes(&random_)) {
      Arrays got(OddNumbers(&random_, size));
      Arrays expected = got;
      for (uint32_t number = 1; number <= 3; ++number) {
        const std::vector<float> g = OddNumbers(&random_, size);
        OuterRound round = RoundOf(settings, 0.003 * number, number);
        if (NeedsLargest(settings)) {
          round.bound = OuterLargest(round, g, got.first);
          ASSERT_EQ(round.bound, reference::OuterLargest(round, g, expected.first));
        }
        const uint64_t first_element = random_.Between(0, 200);
        std::vector<float> draws(size);
        UniformDraws(round.draws, first_element, absl::MakeSpan(draws));
        OuterStep(round, first_element, g, got.State(0, size));
        reference::OuterStepWithDraws(round, g, draws, expected.State(0, size));
        ASSERT_TRUE(got.Same(expected))
            << OuterName(settings.kind) << " of " << size << ", round " << number;
      }
    }
  }
}

TEST_P(EveryTarget, LionDirectionBitForBit) {
  const LionRule rule = MakeLionRule(0.9, 0.99);
  for (const size_t size : InterestingSizes(&random_)) {
    const std::vector<float> g = OddNumbers(&random_, size);
    std::vector<float> m = OddNumbers(&random_, size), c(size), m_expected = m, c_expected(size);
    LionDirection(rule, g, absl::MakeSpan(m), absl::MakeSpan(c));
    reference::LionDirection(rule, g, absl::MakeSpan(m_expected), absl::MakeSpan(c_expected));
    ASSERT_TRUE(SameBits(m, m_expected) && SameBits(c, c_expected)) << size;
  }
}

// Threads and cuts change nothing: spans of random lengths, on several threads.
TEST_P(EveryTarget, AnyCutIntoSpansGivesTheSameBits) {
  constexpr size_t kSize = 5003;
  for (const OuterSettings& settings : AllSettings()) {
    const std::vector<float> start = OddNumbers(&random_, kSize);
    const std::vector<float> g = OddNumbers(&random_, kSize);
    OuterRound round = RoundOf(settings, 0.01, 1);
    Arrays whole(start);
    if (NeedsLargest(settings)) round.bound = OuterLargest(round, g, whole.first);
    OuterStep(round, 100, g, whole.State(0, kSize));
    std::vector<size_t> cuts = {0, kSize};
    for (int i = 0; i < 12; ++i) cuts.push_back(random_.Between(0, kSize));
    std::sort(cuts.begin(), cuts.end());
    for (const int threads : {1, 2, 5}) {
      Arrays cut(start);
      if (NeedsLargest(settings)) {
        float largest = 0.0f;
        for (size_t i = 0; i + 1 < cuts.size(); ++i) {
          const auto m = absl::MakeConstSpan(cut.first).subspan(cuts[i], cuts[i + 1] - cuts[i]);
          largest = std::max(
              largest, OuterLargest(round, absl::MakeConstSpan(g).subspan(cuts[i], m.size()), m));
        }
        ASSERT_EQ(largest, round.bound);
      }
      ParallelFor(cuts.size() - 1, threads, [&](size_t i) {
        const size_t count = cuts[i + 1] - cuts[i];
        OuterStep(round, 100 + cuts[i], absl::MakeConstSpan(g).subspan(cuts[i], count),
                  cut.State(cuts[i], count));
      });
      ASSERT_TRUE(cut.Same(whole)) << OuterName(settings.kind) << ", " << threads << " threads";
    }
  }
}

// |x| <= 1/lambda stays true while lambda times the step is at most 1.
TEST(SignMomentum, KeepsParametersWithinOneOverDecay) {
  TestRandom random;
  constexpr size_t kSize = 4096;
  OuterSettings settings = DefaultOuterSettings(OuterKind::kSignMomentum);
  settings.weight_decay = 0.5;
  settings.eta = 2.0;
  const float limit = 2.0f;
  for (const SignKind sign :
       {SignKind::kExact, SignKind::kRandomTwoPoint, SignKind::kRandomThreePoint}) {
    settings.sign = sign;
    std::vector<float> start(kSize);
    for (float& x : start) x = std::clamp(random.Normal() * 2.0f, -limit, limit);
    Arrays arrays(start);
    for (uint32_t number = 0; number < 200; ++number) {
      // The largest step that is allowed (gamma 1), small ones, and what lies between.
      const double gamma = number % 3 == 0 ? 1.0 : number % 3 == 1 ? 1e-3 : 0.37;
      const std::vector<float> g = OddNumbers(&random, kSize);
      OuterStep(RoundOf(settings, gamma, number), 0, g, arrays.State(0, kSize));
      for (const float x : arrays.x) {
        // A rounding of the product, of the step and of their difference each.
        ASSERT_LE(std::fabs(x), limit * (1.0f + 4e-7f)) << "round " << number;
      }
    }
  }
}

TEST(SignMomentum, RandomSignsHaveTheMeanCOverB) {
  constexpr size_t kSize = 1 << 20;
  OuterSettings settings = DefaultOuterSettings(OuterKind::kSignMomentum);
  settings.weight_decay = 0.0;
  settings.beta1 = 0.0;  // c = g / gamma
  settings.bound = 2.0;
  for (const SignKind sign : {SignKind::kRandomTwoPoint, SignKind::kRandomThreePoint}) {
    settings.sign = sign;
    for (const float c : {-3.0f, -2.0f, -0.7f, 0.0f, 0.01f, 0.5f, 1.99f, 2.5f}) {
      Arrays arrays(std::vector<float>(kSize, 0.0f));
      // s = eta * gamma = 1, so that x becomes -S(c).
      OuterStep(RoundOf(settings, 1.0, 5), 0, std::vector<float>(kSize, c), arrays.State(0, kSize));
      double sum = 0.0;
      for (const float x : arrays.x) {
        ASSERT_TRUE(x == 1.0f || x == -1.0f || (sign == SignKind::kRandomThreePoint && x == 0.0f));
        sum -= x;
      }
      const double mean = std::clamp(c / 2.0, -1.0, 1.0);
      EXPECT_NEAR(sum / kSize, mean, 5.0 / std::sqrt(kSize)) << "c " << c;
    }
  }
}

TEST(SignMomentum, ABoundOfZeroGivesZero) {
  for (const SignKind sign : {SignKind::kRandomTwoPoint, SignKind::kRandomThreePoint}) {
    OuterSettings settings = DefaultOuterSettings(OuterKind::kSignMomentum);
    settings.sign = sign;
    settings.bound_kind = BoundKind::kLargest;
    const std::vector<float> g(70);
    Arrays arrays(std::vector<float>(70, 1.0f));
    OuterRound round = RoundOf(settings, 0.5, 1);
    round.bound = OuterLargest(round, g, arrays.first);
    EXPECT_EQ(round.bound, 0.0f);
    OuterStep(round, 0, g, arrays.State(0, 70));
    for (const float x : arrays.x) EXPECT_EQ(x, 0.95f);  // it still decays
  }
}

TEST(SignMomentum, WithConstantGammaTheDivisionOnlyScalesTheMomentum) {
  TestRandom random;
  OuterSettings divided = DefaultOuterSettings(OuterKind::kSignMomentum);
  OuterSettings plain = divided;
  plain.divide_by_gamma = false;
  Arrays a(random.Normals(999)), b = a;
  for (uint32_t number = 0; number < 20; ++number) {
    const std::vector<float> g = random.Normals(999);
    // A power of two: the scale is exact.
    OuterStep(RoundOf(divided, 0.0625, number), 0, g, a.State(0, 999));
    OuterStep(RoundOf(plain, 0.0625, number), 0, g, b.State(0, 999));
  }
  EXPECT_TRUE(SameBits(a.x, b.x));
  for (size_t i = 0; i < 999; ++i) EXPECT_EQ(a.first[i] * 0.0625f, b.first[i]);
}

TEST(Outer, RulesThatAreOthersInDisguise) {
  TestRandom random;
  const std::vector<float> start = random.Normals(1001);
  Arrays assign(start), sgd(start), slowmo(start), momentum(start), heavy(start);
  OuterSettings sgd_one = DefaultOuterSettings(OuterKind::kSgd);
  OuterSettings slowmo_zero = DefaultOuterSettings(OuterKind::kSlowMo);
  slowmo_zero.beta = 0.0;
  OuterSettings heavy_ball = DefaultOuterSettings(OuterKind::kMomentum);
  heavy_ball.lr = 1.0;
  heavy_ball.momentum = 0.5;
  for (uint32_t number = 0; number < 10; ++number) {
    const std::vector<float> g = random.Normals(1001);
    OuterStep(RoundOf(DefaultOuterSettings(OuterKind::kAssign), 0.0, number), 0, g,
              assign.State(0, 1001));
    OuterStep(RoundOf(sgd_one, 0.0, number), 0, g, sgd.State(0, 1001));
    // Powers of two, so that dividing by gamma and multiplying again is exact.
    OuterStep(RoundOf(slowmo_zero, 0.25, number), 0, g, slowmo.State(0, 1001));
    OuterStep(RoundOf(heavy_ball, 0.0, number), 0, g, heavy.State(0, 1001));
    OuterStep(RoundOf(DefaultOuterSettings(OuterKind::kSlowMo), 0.25, number), 0, g,
              momentum.State(0, 1001));
  }
  EXPECT_TRUE(SameBits(assign.x, sgd.x));
  EXPECT_TRUE(SameBits(assign.x, slowmo.x));
  EXPECT_TRUE(SameBits(heavy.x, momentum.x));
}

// One node, no momentum, rate alpha: Lookahead, the way from start to end in part.
TEST(Outer, SgdOfOneNodeIsLookahead) {
  TestRandom random;
  const std::vector<float> start = random.Normals(100), end = random.Normals(100);
  OuterSettings settings = DefaultOuterSettings(OuterKind::kSgd);
  settings.lr = 0.5;
  Arrays arrays(start);
  std::vector<float> delta(100);
  DeltaOf(start, end, absl::MakeSpan(delta));
  OuterStep(RoundOf(settings, 0.0, 0), 0, delta, arrays.State(0, 100));
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_NEAR(arrays.x[i], 0.5f * start[i] + 0.5f * end[i], 1e-6f);
  }
}

void ExpectRefused(const OuterSettings& settings, double gamma, absl::string_view text) {
  for (const absl::Status& status :
       {CheckOuterSettings(settings, gamma), MakeOuterRound(settings, {gamma, {}, {}}).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << status.message();
  }
}

OuterSettings With(OuterKind kind, double OuterSettings::*field, double value) {
  OuterSettings settings = DefaultOuterSettings(kind);
  settings.*field = value;
  return settings;
}

TEST(Outer, DefaultsAreAllowed) {
  for (const OuterSettings& settings : AllSettings()) {
    EXPECT_TRUE(CheckOuterSettings(settings, 0.001).ok()) << OuterName(settings.kind);
  }
}

TEST(Outer, RefusesWithFieldAndValue) {
  const OuterKind sign = OuterKind::kSignMomentum, nesterov = OuterKind::kNesterov;
  for (const double bad : {0.0, -0.1, 1001.0, HUGE_VAL, kNan}) {
    for (const OuterKind kind : {OuterKind::kSgd, OuterKind::kMomentum, nesterov, OuterKind::kAdamW,
                                 OuterKind::kLion, OuterKind::kSignSgd}) {
      ExpectRefused(With(kind, &OuterSettings::lr, bad), 0.1, "outer.lr is ");
    }
    ExpectRefused(With(OuterKind::kSlowMo, &OuterSettings::alpha, bad), 0.1, "outer.alpha is ");
    ExpectRefused(With(sign, &OuterSettings::eta, bad), 0.1, "outer.eta is ");
    ExpectRefused(With(OuterKind::kAdamW, &OuterSettings::eps, bad), 0.1, "outer.eps is ");
    ExpectRefused(DefaultOuterSettings(sign), bad, "gamma is ");
    ExpectRefused(DefaultOuterSettings(OuterKind::kSlowMo), bad, "gamma is ");
  }
  for (const double bad : {-0.1, 1.0, 2.0, HUGE_VAL, kNan}) {
    ExpectRefused(With(nesterov, &OuterSettings::momentum, bad), 0.1, "outer.momentum is ");
    ExpectRefused(With(OuterKind::kSlowMo, &OuterSettings::beta, bad), 0.1, "outer.beta is ");
    ExpectRefused(With(sign, &OuterSettings::beta1, bad), 0.1, "outer.beta1 is ");
    ExpectRefused(With(sign, &OuterSettings::beta2, bad), 0.1, "outer.beta2 is ");
  }
  for (const double bad : {-0.1, 1001.0, kNan}) {
    ExpectRefused(With(nesterov, &OuterSettings::weight_decay, bad), 0.1, "outer.weight_decay is ");
  }
  ExpectRefused(With(OuterKind::kAssign, &OuterSettings::weight_decay, 0.1), 0.1,
                "assign has no decay");
  // lambda times the step.
  ExpectRefused(With(nesterov, &OuterSettings::weight_decay, 2.0), 0.1, "the step 0.7 (lr) is 1.4");
  ExpectRefused(With(sign, &OuterSettings::weight_decay, 2.0), 0.6,
                "(eta 1 times the local learning rate 0.6) is 1.2");
  EXPECT_TRUE(CheckOuterSettings(With(sign, &OuterSettings::weight_decay, 2.0), 0.5).ok());
  OuterSettings bound = With(sign, &OuterSettings::bound, 0.0);
  bound.sign = SignKind::kRandomThreePoint;
  ExpectRefused(bound, 0.1, "outer.bound is 0");
  bound.bound_kind = BoundKind::kLargest;
  EXPECT_TRUE(CheckOuterSettings(bound, 0.1).ok());
  OuterSettings unknown;
  unknown.kind = static_cast<OuterKind>(77);
  ExpectRefused(unknown, 0.1, "outer.kind is 77");
}

}  // namespace
}  // namespace isthmus
