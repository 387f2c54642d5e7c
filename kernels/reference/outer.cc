// Outer steps, an element at a time. Each product is rounded before it is added (the build sets
// -ffp-contract=off).
#include "kernels/reference/outer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/reference/reference.h"

namespace isthmus {
namespace reference {
namespace {

float SignOf(float c) { return c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : 0.0f; }

float RandomSign(const OuterRound& round, float c, float draw) {
  const float bound = round.bound;
  if (bound == 0.0f) return 0.0f;
  if (round.sign == SignKind::kRandomTwoPoint) {
    const float clipped = std::min(std::max(c, -bound), bound);
    const float twice = 2.0f * bound;
    const float share = clipped / twice;
    return draw < 0.5f + share ? 1.0f : -1.0f;
  }
  return draw < std::min(std::fabs(c), bound) / bound ? SignOf(c) : 0.0f;
}

// g + lambda * x
float WithDecay(const OuterRound& round, float g, float x) {
  if (!round.decays) return g;
  const float pull = round.decay * x;
  return g + pull;
}

float Scaled(const OuterRound& round, float g) { return round.divides ? g / round.gamma : g; }

// keep * m + add * z
float Mixed(float keep, float m, float add, float z) {
  const float kept = keep * m;
  const float added = add * z;
  return kept + added;
}

void MoveBy(const OuterRound& round, float step, float* x) {
  const float moved = round.rate * step;
  *x -= moved;
}

float WithMomentum(const OuterRound& round, float g, float* buffer) {
  const float kept = round.keep1 * *buffer;
  *buffer = kept + g;
  if (round.kind != OuterKind::kNesterov) return *buffer;
  const float ahead = round.keep1 * *buffer;
  return g + ahead;
}

void SignMomentum(const OuterRound& round, float g, float draw, float* x, float* m) {
  const float z = Scaled(round, g);
  const float c = Mixed(round.keep1, *m, round.add1, z);
  const float sign = round.sign == SignKind::kExact ? SignOf(c) : RandomSign(round, c, draw);
  *x *= round.decay;
  MoveBy(round, sign, x);
  *m = Mixed(round.keep2, *m, round.add2, z);
}

void StepOne(const OuterRound& round, float g, float draw, float* x, float* first) {
  switch (round.kind) {
    case OuterKind::kAssign:
    case OuterKind::kSgd:
    case OuterKind::kLion:
      return MoveBy(round, WithDecay(round, g, *x), x);
    case OuterKind::kMomentum:
    case OuterKind::kNesterov:
      return MoveBy(round, WithMomentum(round, WithDecay(round, g, *x), first), x);
    case OuterKind::kSlowMo: {
      const float kept = round.keep1 * *first;
      *first = kept + Scaled(round, g);
      return MoveBy(round, *first, x);
    }
    case OuterKind::kSignMomentum:
      return SignMomentum(round, g, draw, x, first);
    case OuterKind::kSignSgd:
      *x *= round.decay;
      return MoveBy(round, SignOf(g), x);
    case OuterKind::kAdamW:
      ISTHMUS_CHECK(false);
  }
}

}  // namespace

void OuterStepWithDraws(const OuterRound& round, absl::Span<const float> g,
                        absl::Span<const float> draws, const OuterState& state) {
  if (round.kind == OuterKind::kAdamW) {
    return reference::AdamWStep(round.adamw, g, state.x, state.first, state.second);
  }
  for (size_t i = 0; i < g.size(); ++i) {
    StepOne(round, g[i], draws.empty() ? 0.0f : draws[i], &state.x[i],
            state.first.empty() ? nullptr : &state.first[i]);
  }
}

float OuterLargest(const OuterRound& round, absl::Span<const float> g, absl::Span<const float> m) {
  float largest = 0.0f;
  for (size_t i = 0; i < g.size(); ++i) {
    const float c = Mixed(round.keep1, m[i], round.add1, Scaled(round, g[i]));
    largest = std::max(largest, std::fabs(c));
  }
  return largest;
}

void LionDirection(const LionRule& rule, absl::Span<const float> g, absl::Span<float> m,
                   absl::Span<float> c) {
  for (size_t i = 0; i < g.size(); ++i) {
    c[i] = Mixed(rule.keep1, m[i], rule.add1, g[i]);
    m[i] = Mixed(rule.keep2, m[i], rule.add2, g[i]);
  }
}

}  // namespace reference
}  // namespace isthmus
