// The outer steps of kernels/outer.h for each target of Highway. Bit-equal: each operation is one
// instruction with one rounding, and the tail does the same one by one.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/outer.cc"
#include <algorithm>

#include "base/check.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// It comes before all that is included once a target.
#include "hwy/highway.h"
#include "kernels/cpu/vectors-inl.h"
#include "kernels/outer.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus {
namespace HWY_NAMESPACE {

// keep * m + add * z, each rounded by itself.
HWY_INLINE FloatVec MixedOf(FloatVec keep, FloatVec m, FloatVec add, FloatVec z) {
  return hn::Add(hn::Mul(keep, m), hn::Mul(add, z));
}

// x <- x - rate * (g + decay * x), without the addition where `decays` is false.
template <bool decays>
void SgdSome(const OuterRound& round, const float* HWY_RESTRICT g, float* HWY_RESTRICT x,
             size_t size) {
  const FloatTag d;
  const FloatVec rate = hn::Set(d, round.rate);
  const FloatVec decay = hn::Set(d, round.decay);
  for (size_t i = 0; i < size; i += kLanes) {
    const size_t left = size - i;
    const FloatVec xi = LoadPart(x + i, left);
    FloatVec gi = LoadPart(g + i, left);
    if (decays) gi = hn::Add(gi, hn::Mul(decay, xi));
    StorePart(hn::Sub(xi, hn::Mul(rate, gi)), x + i, left);
  }
}

template <bool decays, bool nesterov>
void MomentumSome(const OuterRound& round, const float* HWY_RESTRICT g, float* HWY_RESTRICT x,
                  float* HWY_RESTRICT buffer, size_t size) {
  const FloatTag d;
  const FloatVec rate = hn::Set(d, round.rate);
  const FloatVec decay = hn::Set(d, round.decay);
  const FloatVec keep = hn::Set(d, round.keep1);
  for (size_t i = 0; i < size; i += kLanes) {
    const size_t left = size - i;
    const FloatVec xi = LoadPart(x + i, left);
    FloatVec gi = LoadPart(g + i, left);
    if (decays) gi = hn::Add(gi, hn::Mul(decay, xi));
    const FloatVec bi = hn::Add(hn::Mul(keep, LoadPart(buffer + i, left)), gi);
    StorePart(bi, buffer + i, left);
    const FloatVec step = nesterov ? hn::Add(gi, hn::Mul(keep, bi)) : bi;
    StorePart(hn::Sub(xi, hn::Mul(rate, step)), x + i, left);
  }
}

void SlowMoSome(const OuterRound& round, const float* HWY_RESTRICT g, float* HWY_RESTRICT x,
                float* HWY_RESTRICT u, size_t size) {
  const FloatTag d;
  const FloatVec rate = hn::Set(d, round.rate);
  const FloatVec gamma = hn::Set(d, round.gamma);
  const FloatVec keep = hn::Set(d, round.keep1);
  for (size_t i = 0; i < size; i += kLanes) {
    const size_t left = size - i;
    const FloatVec z = hn::Div(LoadPart(g + i, left), gamma);
    const FloatVec ui = hn::Add(hn::Mul(keep, LoadPart(u + i, left)), z);
    StorePart(ui, u + i, left);
    StorePart(hn::Sub(LoadPart(x + i, left), hn::Mul(rate, ui)), x + i, left);
  }
}

void SignSgdSome(const OuterRound& round, const float* HWY_RESTRICT g, float* HWY_RESTRICT x,
                 size_t size) {
  const FloatTag d;
  const FloatVec rate = hn::Set(d, round.rate);
  const FloatVec factor = hn::Set(d, round.decay);
  for (size_t i = 0; i < size; i += kLanes) {
    const size_t left = size - i;
    const FloatVec kept = hn::Mul(LoadPart(x + i, left), factor);
    const FloatVec step = hn::Mul(rate, SignOf(LoadPart(g + i, left)));
    StorePart(hn::Sub(kept, step), x + i, left);
  }
}

template <SignKind kind>
HWY_INLINE FloatVec SignBy(FloatVec c, FloatVec draw, FloatVec bound) {
  const FloatTag d;
  if constexpr (kind == SignKind::kExact) {
    return SignOf(c);
  } else if constexpr (kind == SignKind::kRandomTwoPoint) {
    const FloatVec clipped = hn::Min(hn::Max(c, hn::Neg(bound)), bound);
    const FloatVec share = hn::Div(clipped, hn::Mul(hn::Set(d, 2.0f), bound));
    const auto up = hn::Lt(draw, hn::Add(hn::Set(d, 0.5f), share));
    return hn::IfThenElse(up, hn::Set(d, 1.0f), hn::Set(d, -1.0f));
  } else {
    const FloatVec share = hn::Div(hn::Min(hn::Abs(c), bound), bound);
    return hn::IfThenElseZero(hn::Lt(draw, share), SignOf(c));
  }
}

template <SignKind kind, bool divides>
void SignMomentumSome(const OuterRound& round, const float* HWY_RESTRICT g,
                      const float* HWY_RESTRICT draws, float* HWY_RESTRICT x, float* HWY_RESTRICT m,
                      size_t size) {
  const FloatTag d;
  const FloatVec rate = hn::Set(d, round.rate);
  const FloatVec factor = hn::Set(d, round.decay);
  const FloatVec gamma = hn::Set(d, round.gamma);
  const FloatVec bound = hn::Set(d, round.bound);
  const FloatVec keep1 = hn::Set(d, round.keep1);
  const FloatVec add1 = hn::Set(d, round.add1);
  const FloatVec keep2 = hn::Set(d, round.keep2);
  const FloatVec add2 = hn::Set(d, round.add2);
  for (size_t i = 0; i < size; i += kLanes) {
    const size_t left = size - i;
    FloatVec z = LoadPart(g + i, left);
    if (divides) z = hn::Div(z, gamma);
    const FloatVec mi = LoadPart(m + i, left);
    const FloatVec c = MixedOf(keep1, mi, add1, z);
    const FloatVec draw = kind == SignKind::kExact ? hn::Zero(d) : LoadPart(draws + i, left);
    const FloatVec step = hn::Mul(rate, SignBy<kind>(c, draw, bound));
    const FloatVec kept = hn::Mul(LoadPart(x + i, left), factor);
    StorePart(hn::Sub(kept, step), x + i, left);
    StorePart(MixedOf(keep2, mi, add2, z), m + i, left);
  }
}

template <SignKind kind>
void SignMomentumBy(const OuterRound& round, const float* g, const float* draws, float* x, float* m,
                    size_t size) {
  if (round.divides) {
    SignMomentumSome<kind, true>(round, g, draws, x, m, size);
  } else {
    SignMomentumSome<kind, false>(round, g, draws, x, m, size);
  }
}

void SignMomentumAny(const OuterRound& round, const float* g, const float* draws, float* x,
                     float* m, size_t size) {
  // A bound of 0 gives 0: exactly what three points make of it, a NaN being below nothing.
  if (round.sign == SignKind::kExact) {
    SignMomentumBy<SignKind::kExact>(round, g, draws, x, m, size);
  } else if (round.sign == SignKind::kRandomTwoPoint && round.bound != 0.0f) {
    SignMomentumBy<SignKind::kRandomTwoPoint>(round, g, draws, x, m, size);
  } else {
    SignMomentumBy<SignKind::kRandomThreePoint>(round, g, draws, x, m, size);
  }
}

template <bool decays>
void DecayingSome(const OuterRound& round, const float* g, float* x, float* first, size_t size) {
  if (round.kind == OuterKind::kNesterov) {
    MomentumSome<decays, true>(round, g, x, first, size);
  } else if (round.kind == OuterKind::kMomentum) {
    MomentumSome<decays, false>(round, g, x, first, size);
  } else {
    SgdSome<decays>(round, g, x, size);
  }
}

void OuterSome(const OuterRound& round, const float* g, const float* draws, float* x, float* first,
               size_t size) {
  switch (round.kind) {
    case OuterKind::kSlowMo:
      return SlowMoSome(round, g, x, first, size);
    case OuterKind::kSignMomentum:
      return SignMomentumAny(round, g, draws, x, first, size);
    case OuterKind::kSignSgd:
      return SignSgdSome(round, g, x, size);
    default:
      if (round.decays) return DecayingSome<true>(round, g, x, first, size);
      return DecayingSome<false>(round, g, x, first, size);
  }
}

float LargestSome(const OuterRound& round, const float* HWY_RESTRICT g, const float* HWY_RESTRICT m,
                  size_t size) {
  const FloatTag d;
  const FloatVec gamma = hn::Set(d, round.gamma);
  const FloatVec keep = hn::Set(d, round.keep1);
  const FloatVec add = hn::Set(d, round.add1);
  FloatVec largest = hn::Zero(d);
  for (size_t i = 0; i < size; i += kLanes) {
    FloatVec z = LoadPart(g + i, size - i);
    if (round.divides) z = hn::Div(z, gamma);
    largest = hn::Max(largest, hn::Abs(MixedOf(keep, LoadPart(m + i, size - i), add, z)));
  }
  HWY_ALIGN float lanes[kLanes];
  hn::Store(largest, d, lanes);
  return *std::max_element(lanes, lanes + kLanes);
}

void LionSome(const LionRule& rule, const float* HWY_RESTRICT g, float* HWY_RESTRICT m,
              float* HWY_RESTRICT c, size_t size) {
  const FloatTag d;
  const FloatVec keep1 = hn::Set(d, rule.keep1);
  const FloatVec add1 = hn::Set(d, rule.add1);
  const FloatVec keep2 = hn::Set(d, rule.keep2);
  const FloatVec add2 = hn::Set(d, rule.add2);
  for (size_t i = 0; i < size; i += kLanes) {
    const FloatVec mi = LoadPart(m + i, size - i);
    const FloatVec gi = LoadPart(g + i, size - i);
    StorePart(MixedOf(keep1, mi, add1, gi), c + i, size - i);
    StorePart(MixedOf(keep2, mi, add2, gi), m + i, size - i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace isthmus
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus {
namespace {

HWY_EXPORT(OuterSome);
HWY_EXPORT(LargestSome);
HWY_EXPORT(LionSome);

}  // namespace

void OuterStepWithDraws(const OuterRound& round, absl::Span<const float> g,
                        absl::Span<const float> draws, const OuterState& state) {
  const int arrays = OuterStateArrays(round.kind);
  ISTHMUS_CHECK(state.x.size() == g.size());
  ISTHMUS_CHECK(arrays < 1 || state.first.size() == g.size());
  ISTHMUS_CHECK(arrays < 2 || state.second.size() == g.size());
  if (round.kind == OuterKind::kAdamW) {
    return AdamWStep(round.adamw, g, state.x, state.first, state.second);
  }
  const bool random = round.kind == OuterKind::kSignMomentum && round.sign != SignKind::kExact;
  ISTHMUS_CHECK(!random || draws.size() == g.size());
  HWY_DYNAMIC_DISPATCH(OuterSome)
  (round, g.data(), draws.data(), state.x.data(), state.first.data(), g.size());
}

float OuterLargest(const OuterRound& round, absl::Span<const float> g, absl::Span<const float> m) {
  ISTHMUS_CHECK(round.kind == OuterKind::kSignMomentum && m.size() == g.size());
  return HWY_DYNAMIC_DISPATCH(LargestSome)(round, g.data(), m.data(), g.size());
}

void LionDirection(const LionRule& rule, absl::Span<const float> g, absl::Span<float> m,
                   absl::Span<float> c) {
  ISTHMUS_CHECK(m.size() == g.size() && c.size() == g.size());
  HWY_DYNAMIC_DISPATCH(LionSome)(rule, g.data(), m.data(), c.data(), g.size());
}

}  // namespace isthmus
#endif  // HWY_ONCE
