// Every kernel, on every target that this machine has, against the plain implementation: random
// sizes with 0 where that is allowed, 1, primes and odd lengths.
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/demo.h"
#include "kernels/reference/reference.h"
#include "tests/kernels/every_target.h"

namespace isthmus {
namespace {

INSTANTIATE_TEST_SUITE_P(Kernels, EveryTarget, testing::ValuesIn(KernelTargets()), TargetName);

TEST_P(EveryTarget, IsTheOneInUse) { EXPECT_EQ(KernelTarget(), GetParam()); }

TEST_P(EveryTarget, ElementwiseBitForBit) {
  for (const size_t size : InterestingSizes(&random_)) {
    const std::vector<float> u = OddNumbers(&random_, size);
    const std::vector<float> before = OddNumbers(&random_, size);
    const float a = random_.Normal();
    const float b = random_.Normal();
    std::vector<float> got = before;
    std::vector<float> expected = before;
    UpdateMomentum(a, b, u, absl::MakeSpan(got));
    reference::UpdateMomentum(a, b, u, absl::MakeSpan(expected));
    ASSERT_TRUE(SameBits(got, expected)) << "momentum " << size;
    SgdStep(a, u, absl::MakeSpan(got));
    reference::SgdStep(a, u, absl::MakeSpan(expected));
    ASSERT_TRUE(SameBits(got, expected)) << "SGD " << size;
    DecayInPlace(b, absl::MakeSpan(got));
    reference::DecayInPlace(b, absl::MakeSpan(expected));
    ASSERT_TRUE(SameBits(got, expected)) << "decay " << size;
    SignInPlace(absl::MakeSpan(got));
    reference::SignInPlace(absl::MakeSpan(expected));
    ASSERT_TRUE(SameBits(got, expected)) << "sign " << size;
  }
}

TEST_P(EveryTarget, AdamWBitForBit) {
  for (const size_t size : InterestingSizes(&random_)) {
    AdamWRule rule;
    rule.eta = 0.01f;
    rule.decay_factor = DecayFactor(rule.eta, 0.1f);
    std::vector<float> p = OddNumbers(&random_, size), m(size), v(size);
    std::vector<float> p_expected = p, m_expected(size), v_expected(size);
    float power1 = 1.0f, power2 = 1.0f;
    for (int t = 1; t <= 3; ++t) {
      power1 *= rule.beta1;
      power2 *= rule.beta2;
      rule.bias1 = 1.0f - power1;
      rule.bias2 = 1.0f - power2;
      const std::vector<float> u = random_.Normals(size);
      AdamWStep(rule, u, absl::MakeSpan(p), absl::MakeSpan(m), absl::MakeSpan(v));
      reference::AdamWStep(rule, u, absl::MakeSpan(p_expected), absl::MakeSpan(m_expected),
                           absl::MakeSpan(v_expected));
      ASSERT_TRUE(SameBits(p, p_expected)) << size;
      ASSERT_TRUE(SameBits(m, m_expected)) << size;
      ASSERT_TRUE(SameBits(v, v_expected)) << size;
    }
  }
}

TEST_P(EveryTarget, AddScaledChunkBitForBit) {
  for (const ChunkShape shape : InterestingShapes(&random_, 10)) {
    const size_t stride = shape.cols + random_.Between(0, 9);
    const std::vector<float> x = OddNumbers(&random_, shape.elements());
    std::vector<float> got = OddNumbers(&random_, stride * shape.rows);
    std::vector<float> expected = got;
    const float scale = random_.Normal();
    AddScaledChunk(shape, scale, x, got.data(), stride);
    reference::AddScaledChunk(shape, scale, x, expected.data(), stride);
    ASSERT_TRUE(SameBits(got, expected)) << shape.rows << " x " << shape.cols;
  }
}

TEST_P(EveryTarget, EncodeWithinTolerance) {
  for (const ChunkShape shape : InterestingShapes(&random_, 30)) {
    const size_t stride = shape.cols + random_.Between(0, 9);
    const std::vector<float> tensor = random_.Normals(stride * shape.rows);
    std::vector<float> got(shape.elements());
    std::vector<float> again(shape.elements());
    std::vector<float> expected(shape.elements());
    EncodeChunk(shape, tensor.data(), stride, absl::MakeSpan(got));
    EncodeChunk(shape, tensor.data(), stride, absl::MakeSpan(again));
    reference::EncodeChunk(shape, tensor.data(), stride, absl::MakeSpan(expected));
    ASSERT_TRUE(SameBits(got, again)) << shape.rows << " x " << shape.cols;
    for (uint32_t i = 0; i < shape.elements(); ++i) {
      ASSERT_NEAR(got[i], expected[i], 4e-6) << shape.rows << " x " << shape.cols << " at " << i;
    }
  }
}

TEST_P(EveryTarget, SelectEqualsAPartialSort) {
  const float few[] = {0.0f, -0.0f, 1.0f, -1.0f, 1.5f, 3e38f, 1e-42f};
  for (int i = 0; i < 200; ++i) {
    const uint32_t size = i < 70 ? i + 1 : random_.Between(1, i < 190 ? 5000 : 16384);
    std::vector<float> values = OddNumbers(&random_, size);
    if (i % 3 == 0) {
      for (float& value : values) value = few[random_.Between(0, 6)];
    }
    for (const uint32_t k :
         {1u, std::min(size, 32u), (size + 1) / 2, size, random_.Between(1, size)}) {
      Components got, expected;
      SelectTopK(values, k, &got);
      reference::SelectTopK(values, k, &expected);
      ASSERT_EQ(got.index, expected.index) << "size " << size << " k " << k;
      ASSERT_TRUE(SameBits(got.value, expected.value)) << "size " << size << " k " << k;
    }
  }
}

TEST_P(EveryTarget, DecodeBitForBit) {
  for (const ChunkShape shape : InterestingShapes(&random_, 30)) {
    const uint32_t m = shape.elements();
    for (const uint32_t count : {0u, 1u, std::min(m, 32u), random_.Between(0, m)}) {
      const Components components = random_.Some(m, count);
      std::vector<float> got(m), expected(m);
      DecodeComponents(shape, components, absl::MakeSpan(got));
      reference::DecodeComponents(shape, components, absl::MakeSpan(expected));
      ASSERT_TRUE(SameBits(got, expected)) << shape.rows << " x " << shape.cols << " " << count;
    }
  }
}

TEST_P(EveryTarget, StepBitForBit) {
  const auto scratch = std::make_unique<ChunkScratch>();
  for (const ChunkShape shape : InterestingShapes(&random_, 20)) {
    for (const bool sign : {true, false}) {
      const uint32_t m = shape.elements();
      const Components merged = random_.Some(m, random_.Between(0, std::min(m, 100u)));
      const size_t stride = shape.cols + random_.Between(0, 9);
      std::vector<float> got = OddNumbers(&random_, stride * shape.rows);
      std::vector<float> expected = got;
      StepRule rule;
      rule.sign = sign;
      rule.eta = random_.Normal();
      rule.decay_factor = random_.Between(0, 1) == 0 ? 1.0f : random_.Normal();
      StepChunk(shape, rule, merged, got.data(), stride, scratch.get());
      reference::StepChunk(shape, rule, merged, expected.data(), stride, scratch.get());
      ASSERT_TRUE(SameBits(got, expected)) << shape.rows << " x " << shape.cols;
    }
  }
}

// What is sent is the selection of what EncodeChunk gives; momentum and subtraction have the bits
// of the plain parts; what lies beside the chunk is not touched.
TEST_P(EveryTarget, ReserveIsItsParts) {
  const auto scratch = std::make_unique<ChunkScratch>();
  for (const ChunkShape shape : InterestingShapes(&random_, 20)) {
    const uint32_t m = shape.elements();
    const size_t stride = shape.cols + random_.Between(0, 9);
    const size_t g_stride = shape.cols + random_.Between(0, 9);
    const bool has_gradient = random_.Between(0, 3) != 0;
    const std::vector<float> g = random_.Normals(g_stride * shape.rows);
    const std::vector<float> zeros(shape.cols);
    ReserveRule rule;
    rule.k = random_.Between(1, std::min(m, 64u));
    rule.beta = 0.9f;
    rule.eta = 0.1f;
    rule.alpha = random_.Between(0, 1) == 0 ? 1.0f : 0.2f;
    std::vector<float> got = random_.Normals(stride * shape.rows);
    std::vector<float> expected = got;
    Components sent;
    ReserveChunk(shape, rule, has_gradient ? g.data() : nullptr, g_stride, got.data(), stride,
                 scratch.get(), &sent);
    for (uint32_t j = 0; j < shape.rows; ++j) {
      const float* row = has_gradient ? g.data() + j * g_stride : zeros.data();
      reference::UpdateMomentum(rule.beta, rule.eta, absl::MakeConstSpan(row, shape.cols),
                                absl::MakeSpan(expected.data() + j * stride, shape.cols));
    }
    std::vector<float> coefficients(m), x(m);
    EncodeChunk(shape, expected.data(), stride, absl::MakeSpan(coefficients));
    Components selected;
    reference::SelectTopK(coefficients, rule.k, &selected);
    ASSERT_EQ(sent.index, selected.index) << shape.rows << " x " << shape.cols;
    ASSERT_TRUE(SameBits(sent.value, selected.value)) << shape.rows << " x " << shape.cols;
    reference::DecodeComponents(shape, sent, absl::MakeSpan(x));
    reference::AddScaledChunk(shape, -rule.alpha, x, expected.data(), stride);
    ASSERT_TRUE(SameBits(got, expected)) << shape.rows << " x " << shape.cols;
  }
}

// Many runs at once are the same as one after the other, whatever their number.
TEST_P(EveryTarget, RunsAreTheirChunks) {
  const auto scratch = std::make_unique<ChunkScratch>();
  for (const uint32_t cols : {1u, 2u, 7u, 31u, 32u, 33u, 61u, 64u, 65u, 127u, 128u}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{13}, size_t{16}, size_t{37}}) {
      const bool has_gradient = random_.Between(0, 3) != 0;
      const std::vector<float> g = random_.Normals(count * cols);
      const std::vector<float> before = random_.Normals(count * cols);
      ReserveRule rule;
      rule.k = random_.Between(1, cols);
      rule.beta = 0.9f;
      rule.eta = 0.1f;
      std::vector<float> d = before, one_by_one = before;
      std::vector<Components> sent(count), expected(count);
      ReserveRuns(cols, count, rule, has_gradient ? g.data() : nullptr, d.data(), scratch.get(),
                  sent.data());
      for (size_t i = 0; i < count; ++i) {
        ReserveChunk({1, cols}, rule, has_gradient ? g.data() + i * cols : nullptr, cols,
                     one_by_one.data() + i * cols, cols, scratch.get(), &expected[i]);
        ASSERT_EQ(sent[i].index, expected[i].index) << cols << " " << i;
        ASSERT_TRUE(SameBits(sent[i].value, expected[i].value)) << cols << " " << i;
      }
      ASSERT_TRUE(SameBits(d, one_by_one)) << cols;
      std::vector<float> p = before, p_one_by_one = before;
      StepRuns(cols, count, StepRule{true, 0.5f, 0.9f}, sent.data(), p.data());
      for (size_t i = 0; i < count; ++i) {
        StepChunk({1, cols}, StepRule{true, 0.5f, 0.9f}, sent[i], p_one_by_one.data() + i * cols,
                  cols, scratch.get());
      }
      ASSERT_TRUE(SameBits(p, p_one_by_one)) << cols;
    }
  }
}

// The bytes behind the last element of a chunk may belong to nobody.
TEST_P(EveryTarget, ReadsAndWritesNoFurtherThanTheChunk) {
  const auto scratch = std::make_unique<ChunkScratch>();
  for (const ChunkShape shape : {ChunkShape{1, 1}, ChunkShape{1, 13}, ChunkShape{5, 7}}) {
    // Exactly as large as the chunk, so that a sanitizer sees what lies behind.
    std::vector<float> d = random_.Normals(shape.elements());
    std::vector<float> p = random_.Normals(shape.elements());
    const std::vector<float> g = random_.Normals(shape.elements());
    ReserveRule rule;
    rule.beta = 0.5f;
    rule.eta = 1.0f;
    Components sent;
    ReserveChunk(shape, rule, g.data(), shape.cols, d.data(), shape.cols, scratch.get(), &sent);
    StepChunk(shape, StepRule(), sent, p.data(), shape.cols, scratch.get());
    EXPECT_EQ(sent.size(), 1u);
  }
}

}  // namespace
}  // namespace isthmus
