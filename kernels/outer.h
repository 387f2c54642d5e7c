// Outer steps: what a round does to the parameters x that the run shares, given the aggregate g of
// the pseudo-gradients (start minus end of a node's local steps). The rules with their papers are
// in docs/method.md; settings, limits and every order of operations are stated here.
//
// A round, for a fragment that several threads hold in spans:
//   OuterPowers powers = NextOuterPowers(settings, kept);            // part of the outer state
//   ISTHMUS_ASSIGN_OR_RETURN(OuterRound round,
//                            MakeOuterRound(settings, {gamma, powers, {seed, fragment, number}}));
//   if (NeedsLargest(settings)) round.bound = the largest OuterLargest of the tensor's spans;
//   OuterStep(round, first_element, g, {x, first, second});          // for each span
//
// Bit-equal everywhere: each operation is rounded by itself to float32, in the order written, and
// elements do not meet, so that threads and cuts into spans change nothing (design rule 18).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/demo.h"
#include "kernels/draws.h"

namespace isthmus {

// Below, k(v) is v rounded to float32 from double, once a round. All state starts at zero.
enum class OuterKind {
  kAssign,        // x <- x - g
  kSgd,           // g <- g + k(lambda) * x;  x <- x - k(lr) * g            (lambda 0: no addition)
  kMomentum,      // g as above;  buf <- k(mu) * buf + g;  x <- x - k(lr) * buf
  kNesterov,      // g, buf as above;  x <- x - k(lr) * (g + k(mu) * buf)
  kSlowMo,        // u <- k(beta) * u + g / k(gamma);  x <- x - k(alpha * gamma) * u
  kSignMomentum,  // z = g / k(gamma);  c = k(beta1) * m + k(1 - beta1) * z;  s = eta * gamma
                  // x <- x * k(1 - lambda * s);  x <- x - k(s) * S(c)
                  // m <- k(beta2) * m + k(1 - beta2) * z
  kAdamW,         // AdamWStep of kernels/demo.h
  kLion,          // x <- x - k(lr) * (g + k(lambda) * x): g is the vote of nodes' Lion directions
  kSignSgd,       // x <- x * k(1 - lr * lambda);  x <- x - k(lr) * sign(g)
};

// S of sign_momentum: -1, 0 or +1, of a number c, a draw u in [0, 1) and a bound B.
enum class SignKind {
  kExact,             // the sign; 0 of +-0
  kRandomTwoPoint,    // +1 if u < 0.5 + clip(c, -B, B) / (2 * B), else -1;  0 if B is 0
  kRandomThreePoint,  // sign(c) if u < min(|c|, B) / B, else 0
};

enum class BoundKind {
  kFixed,
  kLargest,  // the largest |c| of the tensor in this round
};

// As a RunSpec has them; a rule reads only its own.
struct OuterSettings {
  OuterKind kind = OuterKind::kNesterov;
  double lr = 0.7;            // sgd, momentum, nesterov, adamw, lion, sign_sgd
  double momentum = 0.9;      // mu of momentum, nesterov
  double alpha = 1.0;         // slowmo
  double beta = 0.5;          // slowmo
  double beta1 = 0.95;        // sign_momentum, adamw
  double beta2 = 0.98;        // sign_momentum, adamw
  double eta = 1.0;           // sign_momentum
  double eps = 0.1;           // adamw
  double weight_decay = 0.0;  // lambda of all but assign, slowmo
  // sign_momentum: whether z = g / gamma, else z = g.
  bool divide_by_gamma = true;
  SignKind sign = SignKind::kExact;  // sign_momentum
  BoundKind bound_kind = BoundKind::kFixed;
  double bound = 4.0;  // B where it is fixed and the sign is random
};

// Limits of the settings: far beyond what trains, and small enough that a step stays in float32.
inline constexpr double kOuterRateMax = 1000.0;    // lr, alpha, eta, gamma, weight_decay
inline constexpr double kOuterGammaMin = 1e-12;    // a delta is divided by it
inline constexpr double kOuterBoundMax = 1e30;     // as kMomentumMax
inline constexpr double kOuterEpsilonMin = 1e-20;  // a float32 that the root of v does not swallow

// The name in RunSpecs and sentences ("sign_momentum").
absl::string_view OuterName(OuterKind kind);
// The published defaults of the rule.
OuterSettings DefaultOuterSettings(OuterKind kind);
// Arrays of state beside x: 0, 1 (buf, u or m) or 2 (m and v).
int OuterStateArrays(OuterKind kind);
// Whether the rule reads gamma, the local learning rate at the moment of the round.
bool NeedsGamma(OuterKind kind);
// Whether a round needs OuterLargest of each tensor before its step.
bool NeedsLargest(const OuterSettings& settings);

// Whether a run with these settings may start. `gamma_max` is the largest local learning rate of
// its schedule (anything where the rule reads none). INVALID_ARGUMENT naming field, value and what
// is allowed: out of range or not a number, weight decay where the rule has none, lambda times the
// step above 1.
absl::Status CheckOuterSettings(const OuterSettings& settings, double gamma_max);

// beta1^t and beta2^t of adamw after t rounds: a part of the state, as running products in double.
struct OuterPowers {
  double beta1 = 1.0;
  double beta2 = 1.0;
};
// Those of the next round.
OuterPowers NextOuterPowers(const OuterSettings& settings, const OuterPowers& powers);

struct OuterRoundInputs {
  double gamma = 0.0;  // from the run's schedule, in the round's record
  OuterPowers powers;  // of this round (adamw)
  DrawKey draws;       // random signs
};

// One round's numbers, rounded.
struct OuterRound {
  OuterKind kind = OuterKind::kAssign;
  SignKind sign = SignKind::kExact;
  bool decays = false;   // the rule has a decay that is not 0
  bool divides = false;  // by gamma
  float rate = 1.0f;     // what the step is multiplied by
  float decay = 1.0f;    // k(lambda) of sgd, momentum, nesterov, lion; else the factor of x
  float gamma = 1.0f;
  float keep1 = 0.0f;  // mu, beta or beta1
  float add1 = 0.0f;   // 1 - beta1
  float keep2 = 0.0f;  // beta2
  float add2 = 0.0f;   // 1 - beta2
  float bound = 0.0f;  // B
  AdamWRule adamw;
  DrawKey draws;
};

// INVALID_ARGUMENT as CheckOuterSettings, with this round's gamma (0, for example, at the first
// step of a warm-up), before any state is touched.
absl::StatusOr<OuterRound> MakeOuterRound(const OuterSettings& settings,
                                          const OuterRoundInputs& inputs);

// x and the state arrays that the rule has, all of the size of g; the others are empty.
struct OuterState {
  absl::Span<float> x;
  absl::Span<float> first;   // buf, u or m
  absl::Span<float> second;  // v
};

// One span of a fragment. `first_element` is the number of g[0] in the fragment: random signs
// depend on it, nothing else does. Thread-safe on different spans.
void OuterStep(const OuterRound& round, uint64_t first_element, absl::Span<const float> g,
               const OuterState& state);

// The same with given draws: one in [0, 1) for each element where the sign is random, else none.
void OuterStepWithDraws(const OuterRound& round, absl::Span<const float> g,
                        absl::Span<const float> draws, const OuterState& state);

// sign_momentum: the largest |c| of the span, 0 of an empty one; m is left as it is.
float OuterLargest(const OuterRound& round, absl::Span<const float> g, absl::Span<const float> m);

// delta <- start - end: a pseudo-gradient, or a round's u = x' - x with the two exchanged.
void DeltaOf(absl::Span<const float> start, absl::Span<const float> end, absl::Span<float> delta);

// The node's half of distributed Lion: c <- keep1 * m + add1 * g, whose signs are sent;
// m <- keep2 * m + add2 * g.
struct LionRule {
  float keep1 = 0.9f, add1 = 0.1f, keep2 = 0.99f, add2 = 0.01f;
};
// 1 - beta in double, rounded once. 0 <= beta < 1.
LionRule MakeLionRule(double beta1, double beta2);
void LionDirection(const LionRule& rule, absl::Span<const float> g, absl::Span<float> m,
                   absl::Span<float> c);

}  // namespace isthmus
