// The element-wise functions of kernels/demo.h for each target of Highway. Bit-equal: each
// operation is one instruction with one rounding, and the tail does the same one by one.
#include <cmath>

#include "base/check.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// It comes before all that is included once a target.
#include "hwy/highway.h"
#include "kernels/cpu/vectors-inl.h"
#include "kernels/demo.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus {
namespace HWY_NAMESPACE {

void Momentum(float beta, float eta, const float* HWY_RESTRICT g, float* HWY_RESTRICT d,
              size_t size) {
  const FloatTag tag;
  const FloatVec betas = hn::Set(tag, beta);
  const FloatVec etas = hn::Set(tag, eta);
  for (size_t i = 0; i < size; i += kLanes) {
    const FloatVec decayed = hn::Mul(betas, LoadPart(d + i, size - i));
    const FloatVec added = hn::Mul(etas, LoadPart(g + i, size - i));
    StorePart(hn::Add(decayed, added), d + i, size - i);
  }
}

void Sign(float* HWY_RESTRICT x, size_t size) {
  for (size_t i = 0; i < size; i += kLanes) {
    StorePart(SignOf(LoadPart(x + i, size - i)), x + i, size - i);
  }
}

void Decay(float factor, float* HWY_RESTRICT p, size_t size) {
  const FloatVec factors = hn::Set(FloatTag(), factor);
  for (size_t i = 0; i < size; i += kLanes) {
    StorePart(hn::Mul(LoadPart(p + i, size - i), factors), p + i, size - i);
  }
}

// to <- to - scale * from
void Subtract(float scale, const float* HWY_RESTRICT from, float* HWY_RESTRICT to, size_t size) {
  const FloatVec scales = hn::Set(FloatTag(), scale);
  for (size_t i = 0; i < size; i += kLanes) {
    const FloatVec product = hn::Mul(scales, LoadPart(from + i, size - i));
    StorePart(hn::Sub(LoadPart(to + i, size - i), product), to + i, size - i);
  }
}

// to <- to + scale * from
void AddTo(float scale, const float* HWY_RESTRICT from, float* HWY_RESTRICT to, size_t size) {
  const FloatVec scales = hn::Set(FloatTag(), scale);
  for (size_t i = 0; i < size; i += kLanes) {
    const FloatVec product = hn::Mul(scales, LoadPart(from + i, size - i));
    StorePart(hn::Add(LoadPart(to + i, size - i), product), to + i, size - i);
  }
}

void AdamW(const AdamWRule& rule, const float* HWY_RESTRICT u, float* HWY_RESTRICT p,
           float* HWY_RESTRICT m, float* HWY_RESTRICT v, size_t size) {
  const FloatTag tag;
  const FloatVec new1 = hn::Set(tag, 1.0f - rule.beta1);
  const FloatVec new2 = hn::Set(tag, 1.0f - rule.beta2);
  const FloatVec beta2 = hn::Set(tag, rule.beta2);
  const FloatVec rate = hn::Set(tag, rule.eta / rule.bias1);
  const FloatVec root = hn::Set(tag, std::sqrt(rule.bias2));
  const FloatVec eps = hn::Set(tag, rule.eps);
  const FloatVec factor = hn::Set(tag, rule.decay_factor);
  for (size_t i = 0; i < size; i += kLanes) {
    const size_t left = size - i;
    const FloatVec ui = LoadPart(u + i, left);
    const FloatVec old_m = LoadPart(m + i, left);
    const FloatVec new_m = hn::Add(old_m, hn::Mul(new1, hn::Sub(ui, old_m)));
    const FloatVec decayed = hn::Mul(beta2, LoadPart(v + i, left));
    const FloatVec new_v = hn::Add(decayed, hn::Mul(hn::Mul(new2, ui), ui));
    const FloatVec size_of = hn::Div(hn::Sqrt(new_v), root);
    const FloatVec step = hn::Div(hn::Mul(rate, new_m), hn::Add(size_of, eps));
    const FloatVec kept = hn::Mul(factor, LoadPart(p + i, left));
    StorePart(new_m, m + i, left);
    StorePart(new_v, v + i, left);
    StorePart(hn::Sub(kept, step), p + i, left);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace isthmus
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {
namespace {

HWY_EXPORT(Momentum);
HWY_EXPORT(Sign);
HWY_EXPORT(Decay);
HWY_EXPORT(Subtract);
HWY_EXPORT(AddTo);
HWY_EXPORT(AdamW);

}  // namespace

void UpdateMomentum(float beta, float eta, absl::Span<const float> g, absl::Span<float> d) {
  ISTHMUS_CHECK(g.size() == d.size());
  HWY_DYNAMIC_DISPATCH(Momentum)(beta, eta, g.data(), d.data(), d.size());
}

void SignInPlace(absl::Span<float> x) { HWY_DYNAMIC_DISPATCH(Sign)(x.data(), x.size()); }

float DecayFactor(float eta, float lambda) {
  const float product = eta * lambda;
  return 1.0f - product;
}

void DecayInPlace(float factor, absl::Span<float> p) {
  HWY_DYNAMIC_DISPATCH(Decay)(factor, p.data(), p.size());
}

void SgdStep(float eta, absl::Span<const float> u, absl::Span<float> p) {
  ISTHMUS_CHECK(u.size() == p.size());
  HWY_DYNAMIC_DISPATCH(Subtract)(eta, u.data(), p.data(), p.size());
}

void AddScaledChunk(ChunkShape shape, float scale, absl::Span<const float> x, float* target,
                    size_t stride) {
  ISTHMUS_CHECK(x.size() == shape.elements());
  ISTHMUS_CHECK(shape.rows <= 1 || stride >= shape.cols);
  for (uint32_t j = 0; j < shape.rows; ++j) {
    HWY_DYNAMIC_DISPATCH(AddTo)
    (scale, x.data() + j * shape.cols, target + j * stride, shape.cols);
  }
}

void AdamWStep(const AdamWRule& rule, absl::Span<const float> u, absl::Span<float> p,
               absl::Span<float> m, absl::Span<float> v) {
  ISTHMUS_CHECK(p.size() == u.size() && m.size() == u.size() && v.size() == u.size());
  HWY_DYNAMIC_DISPATCH(AdamW)(rule, u.data(), p.data(), m.data(), v.data(), u.size());
}

}  // namespace isthmus
#endif  // HWY_ONCE
