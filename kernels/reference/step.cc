// Element-wise parts of a step: momentum, sign, decay, base step. Each product is rounded before it
// is added (the build sets -ffp-contract=off).
#include <cmath>

#include "base/check.h"
#include "kernels/reference/reference.h"

namespace isthmus {
namespace reference {

void UpdateMomentum(float beta, float eta, absl::Span<const float> g, absl::Span<float> d) {
  ISTHMUS_CHECK(g.size() == d.size());
  const float* __restrict from = g.data();
  float* __restrict to = d.data();
  for (size_t i = 0; i < d.size(); ++i) {
    const float decayed = beta * to[i];
    to[i] = decayed + eta * from[i];
  }
}

void SignInPlace(absl::Span<float> x) {
  float* values = x.data();
  for (size_t i = 0; i < x.size(); ++i) {
    // A NaN, which only decoding beyond float32's range can make, compares false and becomes +0.
    const float positive = values[i] > 0.0f ? 1.0f : 0.0f;
    const float negative = values[i] < 0.0f ? 1.0f : 0.0f;
    values[i] = positive - negative;
  }
}

void DecayInPlace(float factor, absl::Span<float> p) {
  float* values = p.data();
  for (size_t i = 0; i < p.size(); ++i) values[i] *= factor;
}

void SgdStep(float eta, absl::Span<const float> u, absl::Span<float> p) {
  ISTHMUS_CHECK(u.size() == p.size());
  const float* __restrict from = u.data();
  float* __restrict to = p.data();
  for (size_t i = 0; i < p.size(); ++i) {
    const float step = eta * from[i];
    to[i] -= step;
  }
}

void AddScaledChunk(ChunkShape shape, float scale, absl::Span<const float> x, float* target,
                    size_t stride) {
  ISTHMUS_CHECK(x.size() == shape.elements());
  ISTHMUS_CHECK(shape.rows <= 1 || stride >= shape.cols);
  for (uint32_t j = 0; j < shape.rows; ++j) {
    const float* __restrict from = x.data() + j * shape.cols;
    float* __restrict to = target + j * stride;
    for (uint32_t l = 0; l < shape.cols; ++l) {
      const float product = scale * from[l];
      to[l] += product;
    }
  }
}

void AdamWStep(const AdamWRule& rule, absl::Span<const float> u, absl::Span<float> p,
               absl::Span<float> m, absl::Span<float> v) {
  ISTHMUS_CHECK(p.size() == u.size() && m.size() == u.size() && v.size() == u.size());
  const float new1 = 1.0f - rule.beta1;
  const float new2 = 1.0f - rule.beta2;
  const float rate = rule.eta / rule.bias1;
  const float root = std::sqrt(rule.bias2);
  for (size_t i = 0; i < u.size(); ++i) {
    const float difference = u[i] - m[i];
    const float change = new1 * difference;
    m[i] += change;
    const float decayed = rule.beta2 * v[i];
    const float scaled = new2 * u[i];
    const float square = scaled * u[i];
    v[i] = decayed + square;
    const float size = std::sqrt(v[i]) / root;
    const float step = rate * m[i] / (size + rule.eps);
    const float kept = rule.decay_factor * p[i];
    p[i] = kept - step;
  }
}

}  // namespace reference
}  // namespace isthmus
