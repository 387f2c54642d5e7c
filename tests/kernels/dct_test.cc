// The DCT tables, and encoding and decoding of chunks against sums in long double.
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/dct_tables.h"
#include "kernels/demo.h"
#include "tests/kernels/random.h"

namespace isthmus {
namespace {

long double ExactBasis(uint32_t n, uint32_t j, uint32_t b) {
  const long double pi = std::acos(-1.0L);
  if (b == 0) return std::sqrt(1.0L / n);
  return std::sqrt(2.0L / n) * std::cos(pi * (2 * j + 1) * b / (2 * n));
}

Components All(absl::Span<const float> coefficients) {
  Components components;
  for (uint32_t i = 0; i < coefficients.size(); ++i) {
    components.index.push_back(i);
    components.value.push_back(coefficients[i]);
  }
  return components;
}

// The definition, in long double and in no particular order.
std::vector<long double> ExactDecode(ChunkShape shape, const Components& components) {
  std::vector<long double> x(shape.elements());
  for (size_t i = 0; i < components.size(); ++i) {
    const uint32_t b = components.index[i] / shape.cols;
    const uint32_t e = components.index[i] % shape.cols;
    for (uint32_t j = 0; j < shape.rows; ++j) {
      for (uint32_t l = 0; l < shape.cols; ++l) {
        x[j * shape.cols + l] += static_cast<long double>(components.value[i]) *
                                 ExactBasis(shape.rows, j, b) * ExactBasis(shape.cols, l, e);
      }
    }
  }
  return x;
}

TEST(DctTables, EveryEntryIsTheCosineRoundedOnce) {
  for (uint32_t n = 1; n <= 128; ++n) {
    const absl::Span<const float> basis = DctBasis(n);
    const absl::Span<const float> transposed = DctBasisTransposed(n);
    ASSERT_EQ(basis.size(), n * n);
    for (uint32_t j = 0; j < n; ++j) {
      for (uint32_t b = 0; b < n; ++b) {
        const long double exact = ExactBasis(n, j, b);
        // A cosine that is 0 in theory is 1e-20 in long double.
        const float rounded = std::fabs(exact) < 1e-17L ? 0.0f : static_cast<float>(exact);
        ASSERT_EQ(basis[j * n + b], rounded) << "n " << n << " j " << j << " b " << b;
        ASSERT_EQ(transposed[b * n + j], rounded);
      }
    }
  }
}

TEST(DctTables, ThreadsGetTheSameTable) {
  std::vector<const float*> seen(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < seen.size(); ++i) {
    threads.emplace_back([&seen, i] { seen[i] = DctBasis(97).data(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const float* table : seen) EXPECT_EQ(table, DctBasis(97).data());
}

TEST(Encode, RoundTripAndEnergyOfEveryShape) {
  TestRandom random;
  for (const ChunkShape shape : InterestingShapes(&random, 60)) {
    // The chunk lies inside a wider tensor.
    const size_t stride = shape.cols + random.Between(0, 9);
    const std::vector<float> tensor = random.Normals(stride * shape.rows);
    std::vector<float> coefficients(shape.elements());
    EncodeChunk(shape, tensor.data(), stride, absl::MakeSpan(coefficients));
    std::vector<float> back(shape.elements(), 1e9f);
    DecodeComponents(shape, All(coefficients), absl::MakeSpan(back));
    double energy = 0, energy_of_coefficients = 0;
    for (uint32_t j = 0; j < shape.rows; ++j) {
      for (uint32_t l = 0; l < shape.cols; ++l) {
        const float x = tensor[j * stride + l];
        ASSERT_NEAR(back[j * shape.cols + l], x, 6e-6) << shape.rows << " x " << shape.cols;
        energy += double{x} * x;
      }
    }
    for (const float c : coefficients) energy_of_coefficients += double{c} * c;
    EXPECT_NEAR(energy_of_coefficients, energy, 2e-6 * energy + 1e-9);
  }
}

TEST(Encode, OneCoefficientForOneCosine) {
  const ChunkShape shape{12, 20};
  Components one;
  one.index = {7 * 20 + 13};
  one.value = {2.5f};
  std::vector<float> x(shape.elements());
  DecodeComponents(shape, one, absl::MakeSpan(x));
  std::vector<float> coefficients(shape.elements());
  EncodeChunk(shape, x.data(), shape.cols, absl::MakeSpan(coefficients));
  for (uint32_t i = 0; i < shape.elements(); ++i) {
    EXPECT_NEAR(coefficients[i], i == one.index[0] ? 2.5f : 0.0f, 1e-6);
  }
}

TEST(Decode, FewComponentsNearTheDefinition) {
  TestRandom random;
  for (const ChunkShape shape : InterestingShapes(&random, 20)) {
    const uint32_t count = random.Between(0, std::min(shape.elements(), 12u));
    const Components components = random.Some(shape.elements(), count);
    ASSERT_EQ(components.size(), count);
    std::vector<float> x(shape.elements());
    DecodeComponents(shape, components, absl::MakeSpan(x));
    const std::vector<long double> exact = ExactDecode(shape, components);
    for (uint32_t i = 0; i < shape.elements(); ++i) ASSERT_NEAR(x[i], exact[i], 1e-5);
  }
}

TEST(Decode, NothingIsPositiveZero) {
  std::vector<float> x(15, -3.0f);
  DecodeComponents({3, 5}, Components(), absl::MakeSpan(x));
  for (const float value : x) EXPECT_TRUE(value == 0.0f && !std::signbit(value));
}

// The stated order, element by element: bits, not tolerances.
TEST(Decode, StatedOrderBitForBit) {
  TestRandom random;
  for (const ChunkShape shape : InterestingShapes(&random, 30)) {
    const uint32_t count = random.Between(0, std::min(shape.elements(), 300u));
    const Components components = random.Some(shape.elements(), count);
    std::vector<float> x(shape.elements());
    DecodeComponents(shape, components, absl::MakeSpan(x));
    const absl::Span<const float> rows = DctBasis(shape.rows);
    const absl::Span<const float> cols = DctBasis(shape.cols);
    for (int probe = 0; probe < 50; ++probe) {
      const uint32_t j = random.Between(0, shape.rows - 1);
      const uint32_t l = random.Between(0, shape.cols - 1);
      volatile float sum = 0.0f;  // volatile: each rounding happens as written
      for (uint32_t b = 0; b < shape.rows; ++b) {
        bool any = false;
        volatile float y = 0.0f;
        for (size_t i = 0; i < components.size(); ++i) {
          if (components.index[i] / shape.cols != b) continue;
          any = true;
          const uint32_t e = components.index[i] % shape.cols;
          volatile float product = components.value[i] * cols[l * shape.cols + e];
          y = y + product;
        }
        if (!any) continue;
        volatile float product = rows[j * shape.rows + b] * y;
        sum = sum + product;
      }
      const float expected = sum;
      ASSERT_EQ(std::memcmp(&expected, &x[j * shape.cols + l], sizeof(float)), 0)
          << shape.rows << " x " << shape.cols << " at " << j << ", " << l;
    }
  }
}

// What the dense merged form adds must not change a bit.
TEST(Decode, AddedZerosChangeNoBit) {
  TestRandom random;
  for (const ChunkShape shape : InterestingShapes(&random, 20)) {
    const Components some = random.Some(shape.elements(), random.Between(0, shape.elements()));
    std::vector<float> dense(shape.elements(), 0.0f);
    for (size_t i = 0; i < some.size(); ++i) dense[some.index[i]] = some.value[i];
    std::vector<float> x(shape.elements());
    std::vector<float> with_zeros(shape.elements());
    DecodeComponents(shape, some, absl::MakeSpan(x));
    DecodeComponents(shape, All(dense), absl::MakeSpan(with_zeros));
    ASSERT_EQ(std::memcmp(x.data(), with_zeros.data(), x.size() * sizeof(float)), 0);
  }
}

// Nothing is flushed to zero.
TEST(Decode, KeepsSubnormalNumbers) {
  Components tiny;
  tiny.index = {0};
  tiny.value = {std::numeric_limits<float>::denorm_min() * 1000};
  std::vector<float> x(4);
  DecodeComponents({1, 4}, tiny, absl::MakeSpan(x));
  for (const float value : x) EXPECT_EQ(value, std::numeric_limits<float>::denorm_min() * 500);
}

TEST(DecodeDeathTest, IndexOutOfRangeIsABug) {
  Components components;
  components.index = {15};
  components.value = {1.0f};
  std::vector<float> x(15);
  EXPECT_DEATH(DecodeComponents({3, 5}, components, absl::MakeSpan(x)), "b < rows");
}

}  // namespace
}  // namespace isthmus
