// Selection, merge and the element-wise steps.
#include "kernels/demo.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/random.h"

namespace isthmus {
namespace {

// The rule as a sort.
Components SortedTopK(absl::Span<const float> coefficients, uint32_t k) {
  std::vector<uint32_t> order(coefficients.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::fabs(coefficients[a]) > std::fabs(coefficients[b]);
  });
  Components out;
  out.index.assign(order.begin(), order.begin() + k);
  std::sort(out.index.begin(), out.index.end());
  for (const uint32_t at : out.index) out.value.push_back(coefficients[at]);
  return out;
}

void ExpectTopK(absl::Span<const float> coefficients, uint32_t k) {
  const Components expected = SortedTopK(coefficients, k);
  Components got;
  got.index = {99};  // what was in it before must not matter
  SelectTopK(coefficients, k, &got);
  ASSERT_EQ(got.index, expected.index);
  ASSERT_EQ(got.value, expected.value);
}

TEST(SelectTopK, EqualsASort) {
  TestRandom random;
  for (int i = 0; i < 300; ++i) {
    const uint32_t size = i < 20 ? i + 1 : random.Between(1, 4096);
    const std::vector<float> values = random.Normals(size);
    ExpectTopK(values, random.Between(1, size));
    ExpectTopK(values, 1);
    ExpectTopK(values, size);
  }
}

TEST(SelectTopK, ManyTiesOfBothSigns) {
  TestRandom random;
  const float few[] = {0.0f, -0.0f, 1.0f, -1.0f, 2.0f, -2.0f, FLT_MAX, -FLT_MIN};
  for (int i = 0; i < 300; ++i) {
    std::vector<float> values(random.Between(1, 200));
    for (float& value : values) value = few[random.Between(0, 7)];
    ExpectTopK(values, random.Between(1, static_cast<uint32_t>(values.size())));
  }
}

TEST(SelectTopK, AllEqualTakesTheFirst) {
  Components got;
  SelectTopK(std::vector<float>(64, 0.0f), 3, &got);
  EXPECT_EQ(got.index, (std::vector<uint32_t>{0, 1, 2}));
  SelectTopK(std::vector<float>{-0.0f, 0.0f, -5.0f, 5.0f}, 3, &got);
  EXPECT_EQ(got.index, (std::vector<uint32_t>{0, 2, 3}));
}

Components Make(std::vector<uint32_t> index, std::vector<float> value) {
  Components components;
  components.index = std::move(index);
  components.value = std::move(value);
  return components;
}

Components Merge(const std::vector<Components>& senders, uint32_t elements) {
  std::vector<const Components*> pointers;
  for (const Components& sender : senders) pointers.push_back(&sender);
  Components merged;
  merged.index = {5};
  MergeBySenders(pointers, elements, &merged);
  return merged;
}

TEST(MergeBySenders, CountsSendersAndNotNodes) {
  const Components merged =
      Merge({Make({1, 5}, {4, 8}), Make({5}, {2}), Make({}, {}), Make({0, 5, 9}, {1, 2, -3})}, 10);
  EXPECT_EQ(merged.index, (std::vector<uint32_t>{0, 1, 5, 9}));
  EXPECT_EQ(merged.value, (std::vector<float>{1, 4, 4, -3}));
}

TEST(MergeBySenders, NobodyAndOne) {
  EXPECT_EQ(Merge({}, 10).size(), 0u);
  EXPECT_EQ(Merge({Components(), Components()}, 1).size(), 0u);
  const Components merged = Merge({Make({0, 16383}, {0.1f, -0.3f})}, 16384);
  EXPECT_EQ(merged.index, (std::vector<uint32_t>{0, 16383}));
  EXPECT_EQ(merged.value, (std::vector<float>{0.1f, -0.3f}));
}

TEST(MergeBySenders, SumsInTheOrderOfSenders) {
  // (1 + 2^24) rounds to 2^24, so the order shows.
  const Components big = Make({3}, {16777216.0f});
  const Components minus_big = Make({3}, {-16777216.0f});
  const Components one = Make({3}, {1.0f});
  EXPECT_EQ(Merge({one, big, minus_big}, 4).value[0], 0.0f);
  EXPECT_EQ(Merge({big, minus_big, one}, 4).value[0], 1.0f / 3.0f);
}

TEST(MergeBySenders, ASenderOfZeroCounts) {
  EXPECT_EQ(Merge({Make({2}, {0.0f}), Make({2}, {6.0f})}, 4).value[0], 3.0f);
  const Components merged = Merge({Make({2}, {-0.0f}), Make({2}, {-0.0f})}, 4);
  EXPECT_TRUE(merged.value[0] == 0.0f && std::signbit(merged.value[0]));
}

TEST(MergeBySenders, StaysFinite) {
  const Components merged = Merge(
      {Make({0, 1}, {FLT_MAX, -FLT_MAX}), Make({0, 1}, {FLT_MAX, -FLT_MAX}), Make({0}, {-1})}, 2);
  EXPECT_EQ(merged.value, (std::vector<float>{FLT_MAX, -FLT_MAX}));
}

TEST(MergeBySenders, RandomAgainstPositionByPosition) {
  TestRandom random;
  for (int round = 0; round < 100; ++round) {
    const uint32_t elements = random.Between(1, 500);
    std::vector<Components> senders;
    for (uint32_t i = random.Between(0, 9); i > 0; --i) {
      senders.push_back(random.Some(elements, random.Between(0, elements)));
    }
    const Components merged = Merge(senders, elements);
    size_t next = 0;
    for (uint32_t at = 0; at < elements; ++at) {
      float sum = 0.0f;
      int count = 0;
      for (const Components& sender : senders) {
        const auto found = std::find(sender.index.begin(), sender.index.end(), at);
        if (found == sender.index.end()) continue;
        const float value = sender.value[found - sender.index.begin()];
        sum = count++ == 0 ? value : sum + value;
      }
      if (count == 0) continue;
      ASSERT_LT(next, merged.size());
      ASSERT_EQ(merged.index[next], at);
      ASSERT_EQ(merged.value[next++], sum / static_cast<float>(count));
    }
    ASSERT_EQ(next, merged.size());
  }
}

TEST(SignInPlace, AllKinds) {
  std::vector<float> x = {0.0f,
                          -0.0f,
                          FLT_MIN / 8,
                          -FLT_MIN / 8,
                          7.0f,
                          -7.0f,
                          std::numeric_limits<float>::infinity(),
                          std::nanf("")};
  SignInPlace(absl::MakeSpan(x));
  EXPECT_EQ(x, (std::vector<float>{0, 0, 1, -1, 1, -1, 1, 0}));
  for (const float value : x) EXPECT_FALSE(value == 0.0f && std::signbit(value));
  SignInPlace(absl::Span<float>());
}

TEST(Steps, EmptySpans) {
  UpdateMomentum(0.9f, 0.1f, {}, {});
  DecayInPlace(0.5f, {});
  SgdStep(0.1f, {}, {});
}

// a * b + c where the rounded product differs from the exact one: a fused multiply-add would show.
TEST(Steps, ProductsAreRoundedBeforeTheSum) {
  const float a = 1.0f + 1.0f / 4096;  // a * a = 1 + 2^-11 + 2^-24, rounded to 1 + 2^-11
  const float rounded = 1.0f + 1.0f / 2048;
  ASSERT_NE(std::fma(a, a, -rounded), 0.0f);

  std::vector<float> p(19, rounded);
  const std::vector<float> u(19, a);
  SgdStep(a, u, absl::MakeSpan(p));
  for (const float value : p) EXPECT_EQ(value, 0.0f);

  std::vector<float> d(19, -rounded);
  UpdateMomentum(1.0f, a, u, absl::MakeSpan(d));
  for (const float value : d) EXPECT_EQ(value, 0.0f);

  std::vector<float> target(19, -rounded);
  AddScaledChunk({1, 19}, a, u, target.data(), 19);
  for (const float value : target) EXPECT_EQ(value, 0.0f);

  // 1 - a * a = -(2^-11 + 2^-24) in one rounding.
  EXPECT_EQ(DecayFactor(a, a), -1.0f / 2048);
}

TEST(Steps, Decay) {
  EXPECT_EQ(DecayFactor(0.01f, 0.0f), 1.0f);
  std::vector<float> p = {1.0f, -2.0f, 0.0f};
  DecayInPlace(DecayFactor(0.5f, 0.5f), absl::MakeSpan(p));
  EXPECT_EQ(p, (std::vector<float>{0.75f, -1.5f, 0.0f}));
}

TEST(Steps, AddScaledChunkTouchesOnlyTheChunk) {
  std::vector<float> tensor(4 * 10, 1.0f);
  const std::vector<float> x = {1, 2, 3, 4, 5, 6};
  AddScaledChunk({2, 3}, -2.0f, x, tensor.data() + 10 + 4, 10);
  for (int j = 0; j < 4; ++j) {
    for (int l = 0; l < 10; ++l) {
      const bool inside = j >= 1 && j < 3 && l >= 4 && l < 7;
      const float added = inside ? -2.0f * x[(j - 1) * 3 + (l - 4)] : 0.0f;
      EXPECT_EQ(tensor[j * 10 + l], 1.0f + added);
    }
  }
}

}  // namespace
}  // namespace isthmus
