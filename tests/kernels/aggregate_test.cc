// Aggregation on every target against the plain implementation, and what the rules promise.
#include "kernels/aggregate.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "kernels/reference/outer.h"
#include "tests/kernels/every_target.h"

namespace isthmus {
namespace {

using Rows = std::vector<std::vector<float>>;

INSTANTIATE_TEST_SUITE_P(Kernels, EveryTarget, testing::ValuesIn(KernelTargets()), TargetName);

constexpr AggregateKind kKinds[] = {
    AggregateKind::kMean,
    AggregateKind::kWeightedMean,
    AggregateKind::kSignOfMean,
    AggregateKind::kMajority,
    AggregateKind::kTrimmedMean,
    AggregateKind::kMedian,
    AggregateKind::kNormClippedMean,
};

AggregateSettings Of(AggregateKind kind, uint32_t trim = 1) {
  AggregateSettings settings;
  settings.kind = kind;
  settings.trim = trim;
  return settings;
}

bool HasFactors(AggregateKind kind) {
  return kind == AggregateKind::kWeightedMean || kind == AggregateKind::kNormClippedMean;
}

std::vector<const float*> Pointers(const Rows& rows, size_t from = 0) {
  std::vector<const float*> pointers;
  for (const std::vector<float>& row : rows) pointers.push_back(row.data() + from);
  return pointers;
}

Rows RandomRows(TestRandom* random, size_t count, size_t size, bool votes) {
  Rows rows;
  for (size_t i = 0; i < count; ++i) {
    rows.push_back(OddNumbers(random, size));
    for (float& v : rows.back()) {
      if (votes) v = static_cast<float>(random->Between(0, 2)) - 1.0f;
      // Equal values among contributors.
      if (!votes && random->Between(0, 4) == 0) v = 0.25f;
    }
  }
  return rows;
}

std::vector<float> FactorsOf(AggregateKind kind, TestRandom* random, size_t count) {
  std::vector<float> factors;
  for (size_t i = 0; HasFactors(kind) && i < count; ++i) {
    factors.push_back(random->Between(0, 100) / 100.0f);
  }
  return factors;
}

TEST_P(EveryTarget, AggregatesBitForBit) {
  for (const AggregateKind kind : kKinds) {
    for (const size_t size : InterestingSizes(&random_)) {
      const uint32_t count =
          random_.Between(0, 9) == 0 ? random_.Between(1, 256) : random_.Between(1, 20);
      const uint32_t trim = random_.Between(0, (count - 1) / 2);
      const Rows rows = RandomRows(&random_, count, size, kind == AggregateKind::kMajority);
      const std::vector<float> factors = FactorsOf(kind, &random_, count);
      std::vector<float> got(size), expected(size);
      AggregateBlock(Of(kind, trim), Pointers(rows), factors, absl::MakeSpan(got));
      reference::AggregateBlock(Of(kind, trim), Pointers(rows), factors, absl::MakeSpan(expected));
      ASSERT_TRUE(SameBits(got, expected))
          << AggregateName(kind) << " of " << count << " times " << size << ", trim " << trim;
    }
  }
}

// The network sorts: all orders of few values, for each number of contributors.
TEST_P(EveryTarget, SortsEveryNumberOfContributors) {
  for (uint32_t count = 1; count <= 256; ++count) {
    const Rows rows = RandomRows(&random_, count, 40, false);
    std::vector<float> got(40), expected(40);
    AggregateBlock(Of(AggregateKind::kMedian), Pointers(rows), {}, absl::MakeSpan(got));
    reference::AggregateBlock(Of(AggregateKind::kMedian), Pointers(rows), {},
                              absl::MakeSpan(expected));
    ASSERT_TRUE(SameBits(got, expected)) << count;
  }
}

TEST_P(EveryTarget, SquaresBitForBit) {
  for (const size_t size : InterestingSizes(&random_)) {
    const std::vector<float> values = OddNumbers(&random_, size);
    EXPECT_EQ(SquaresOf(values), reference::SquaresOf(values)) << size;
  }
}

// Contributors one at a time, over spans of any cut: the same bits.
TEST_P(EveryTarget, FoldingOneAtATimeIsTheSame) {
  constexpr size_t kSize = 1003;
  for (const AggregateKind kind : kKinds) {
    if (!FoldsOneAtATime(kind)) continue;
    const Rows rows = RandomRows(&random_, 7, kSize, kind == AggregateKind::kMajority);
    const std::vector<float> factors = FactorsOf(kind, &random_, 7);
    std::vector<float> whole(kSize), folded(kSize, 99.0f);
    AggregateBlock(Of(kind), Pointers(rows), factors, absl::MakeSpan(whole));
    const size_t cut = random_.Between(0, kSize);
    for (const auto& [from, count] : {std::make_pair(cut, kSize - cut), {size_t{0}, cut}}) {
      const auto sum = absl::MakeSpan(folded).subspan(from, count);
      for (size_t i = 0; i < rows.size(); ++i) {
        Fold(i == 0, factors.empty() ? 1.0f : factors[i],
             absl::MakeConstSpan(rows[i]).subspan(from, count), sum);
      }
      FinishFold(Of(kind), 7, sum);
    }
    EXPECT_TRUE(SameBits(whole, folded)) << AggregateName(kind) << ", cut at " << cut;
  }
}

TEST(Aggregate, OfOneContributorIsItsValues) {
  TestRandom random;
  const std::vector<float> values = random.Normals(333);
  for (const AggregateKind kind : kKinds) {
    if (kind == AggregateKind::kSignOfMean || kind == AggregateKind::kMajority) continue;
    std::vector<float> factors;
    if (kind == AggregateKind::kWeightedMean) factors = *MeanFactors({1234.5}, 0.3);
    if (kind == AggregateKind::kNormClippedMean) factors = ClipFactors({SquaresOf(values)});
    std::vector<float> out(333);
    AggregateBlock(Of(kind, 0), {values.data()}, factors, absl::MakeSpan(out));
    EXPECT_TRUE(SameBits(out, values)) << AggregateName(kind);
  }
}

TEST(Aggregate, ComponentsFoldAsDenseZeros) {
  TestRandom random;
  for (const uint32_t size : {1u, 7u, 64u, 4096u}) {
    std::vector<float> sum(size), dense(size);
    for (int sender = 0; sender < 5; ++sender) {
      const Components some = random.Some(size, random.Between(0, size));
      std::vector<float> values(size);
      for (size_t i = 0; i < some.size(); ++i) values[some.index[i]] = some.value[i];
      FoldComponents(0.5f, some, absl::MakeSpan(sum));
      Fold(false, 0.5f, values, absl::MakeSpan(dense));
    }
    for (uint32_t i = 0; i < size; ++i) EXPECT_EQ(sum[i], dense[i]);
  }
}

TEST(Aggregate, RobustRulesIgnoreOneThatIsFarOff) {
  TestRandom random;
  Rows rows;
  for (int i = 0; i < 5; ++i) rows.push_back(random.Normals(500));
  Rows without(rows.begin() + 1, rows.end());
  for (float& v : rows[0]) v = 1e20f;
  for (const AggregateKind kind : {AggregateKind::kTrimmedMean, AggregateKind::kMedian}) {
    std::vector<float> out(500);
    AggregateBlock(Of(kind), Pointers(rows), {}, absl::MakeSpan(out));
    for (size_t i = 0; i < 500; ++i) {
      float lowest = without[0][i], highest = without[0][i];
      for (const auto& row : without) {
        lowest = std::min(lowest, row[i]);
        highest = std::max(highest, row[i]);
      }
      EXPECT_TRUE(out[i] >= lowest && out[i] <= highest) << AggregateName(kind);
    }
  }
}

TEST(Aggregate, SumsBeyondFloatStayFinite) {
  const Rows rows = {
      {FLT_MAX, -FLT_MAX}, {FLT_MAX, -FLT_MAX}, {FLT_MAX, -FLT_MAX}, {FLT_MAX, -FLT_MAX}};
  for (const AggregateKind kind : kKinds) {
    if (kind == AggregateKind::kSignOfMean || kind == AggregateKind::kMajority) continue;
    std::vector<float> out(2), factors;
    if (HasFactors(kind)) factors.assign(4, 1.0f);
    AggregateBlock(Of(kind), Pointers(rows), factors, absl::MakeSpan(out));
    EXPECT_EQ(out[0], FLT_MAX) << AggregateName(kind);
    EXPECT_EQ(out[1], -FLT_MAX) << AggregateName(kind);
  }
}

TEST(Aggregate, ClipFactorsBringNormsDownToTheMedian) {
  EXPECT_EQ(ClipFactors({16.0, 4.0, 1.0}), (std::vector<float>{0.5f, 1.0f, 1.0f}));
  EXPECT_EQ(ClipFactors({16.0, 4.0, 0.0, 0.0}), (std::vector<float>{0.25f, 0.5f, 1.0f, 1.0f}));
  EXPECT_EQ(ClipFactors({9.0}), std::vector<float>{1.0f});
  EXPECT_EQ(ClipFactors({0.0, 0.0, 25.0}), (std::vector<float>{1.0f, 1.0f, 0.0f}));
  EXPECT_TRUE(ClipFactors({}).empty());
}

TEST(Aggregate, MeanFactorsSumToOneAndStayUnderTheCap) {
  EXPECT_EQ(*MeanFactors({2.0, 1.0, 1.0}, 1.0), (std::vector<float>{0.5f, 0.25f, 0.25f}));
  EXPECT_EQ(*MeanFactors({98.0, 1.0, 1.0}, 0.5), (std::vector<float>{0.5f, 0.25f, 0.25f}));
  // What the first gives up brings the second above the cap.
  EXPECT_EQ(*MeanFactors({90.0, 8.0, 1.0, 1.0}, 0.375),
            (std::vector<float>{0.375f, 0.375f, 0.125f, 0.125f}));
  // A cap below 1/W means equal shares.
  EXPECT_EQ(*MeanFactors({90.0, 8.0, 1.0, 1.0}, 0.1), std::vector<float>(4, 0.25f));
  EXPECT_TRUE(MeanFactors({}, 0.5)->empty());
  TestRandom random;
  for (int i = 0; i < 1000; ++i) {
    std::vector<double> weights(random.Between(1, 40));
    for (double& weight : weights) weight = std::exp(4.0 * random.Normal());
    const double cap = random.Between(1, 100) / 100.0;
    const std::vector<float> factors = *MeanFactors(weights, cap);
    double sum = 0.0;
    for (const float factor : factors) {
      sum += factor;
      EXPECT_GT(factor, 0.0f);
      EXPECT_LE(factor, std::max(cap, 1.0 / weights.size()) * (1 + 1e-6));
    }
    EXPECT_NEAR(sum, 1.0, 1e-5);
  }
}

TEST(Aggregate, ContributionWeights) {
  const ContributionSize limits{1000, 50};
  EXPECT_EQ(*ContributionWeight(WeightKind::kOne, {0, 0}, limits), 1.0);
  EXPECT_EQ(*ContributionWeight(WeightKind::kTokens, {600, 0}, limits), 600.0);
  EXPECT_EQ(*ContributionWeight(WeightKind::kSteps, {0, 30}, limits), 30.0);
  EXPECT_EQ(*ContributionWeight(WeightKind::kTokensTimesTokensPerStep, {600, 30}, limits), 12000.0);
}

void ExpectRefused(const absl::Status& status, absl::string_view text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_TRUE(absl::StrContains(status.message(), text)) << status.message();
}

TEST(Aggregate, RefusesWithFieldAndValue) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {0.0, -1.0, HUGE_VAL, nan}) {
    ExpectRefused(MeanFactors({1.0, bad}, 1.0).status(), "the weight of contributor 1 of 2 is ");
    AggregateSettings settings = Of(AggregateKind::kWeightedMean);
    settings.weight_max_share = bad;
    ExpectRefused(CheckAggregate(settings, 2), "aggregate.weight_max_share is ");
  }
  const ContributionSize limits{1000, 50};
  ExpectRefused(ContributionWeight(WeightKind::kTokens, {0, 1}, limits).status(), "0 tokens");
  ExpectRefused(ContributionWeight(WeightKind::kTokens, {1001, 1}, limits).status(),
                "at most 1000");
  ExpectRefused(ContributionWeight(WeightKind::kTokensTimesTokensPerStep, {9, 0}, limits).status(),
                "0 steps");
  ExpectRefused(ContributionWeight(WeightKind::kSteps, {9, 51}, limits).status(), "at most 50");
  ExpectRefused(CheckAggregate(Of(AggregateKind::kTrimmedMean, 2), 4), "drops 4 of the 4");
  ExpectRefused(CheckAggregate(Of(AggregateKind::kTrimmedMean, ~0u), 4), "aggregate.trim is");
  ExpectRefused(CheckAggregate(Of(static_cast<AggregateKind>(77)), 4), "aggregate.kind is 77");
  for (const AggregateKind kind : kKinds) EXPECT_TRUE(CheckAggregate(Of(kind), 3).ok());
}

TEST(Aggregate, AllWithinNamesTheFirst) {
  TestRandom random;
  for (const size_t size : InterestingSizes(&random)) {
    std::vector<float> values = random.Normals(size);
    size_t at = 77;
    EXPECT_TRUE(AllWithin(1e30f, values, &at));
    if (size == 0) continue;
    const uint32_t last = static_cast<uint32_t>(size) - 1;
    const size_t bad = random.Between(0, last);
    for (const float wrong : {HUGE_VALF, -HUGE_VALF, std::nanf(""), 2e30f}) {
      values[bad] = wrong;
      EXPECT_FALSE(AllWithin(1e30f, values, &at));
      EXPECT_EQ(at, bad);
    }
  }
}

}  // namespace
}  // namespace isthmus
