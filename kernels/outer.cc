// What an outer step needs to know before it touches anything: names, defaults, checks, and a
// round's numbers in float32.
#include "kernels/outer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

struct Field {
  absl::string_view name;
  double value;
};

// Comparisons are written so that a NaN is refused.
absl::Status CheckPositive(Field field, double max) {
  if (field.value > 0.0 && field.value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("outer.", field.name, " is ", field.value,
                                                 "; it must be above 0 and at most ", max));
}

absl::Status CheckBeta(Field field) {
  if (field.value >= 0.0 && field.value < 1.0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("outer.", field.name, " is ", field.value,
                                                 "; it must be at least 0 and below 1"));
}

bool HasDecay(OuterKind kind) { return kind != OuterKind::kAssign && kind != OuterKind::kSlowMo; }

// What weight decay is multiplied by.
double StepOf(const OuterSettings& settings, double gamma) {
  return settings.kind == OuterKind::kSignMomentum ? settings.eta * gamma : settings.lr;
}

absl::Status CheckDecay(const OuterSettings& settings, double gamma) {
  const double decay = settings.weight_decay;
  if (!HasDecay(settings.kind)) {
    if (decay == 0.0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("outer.weight_decay is ", decay, "; ",
                                                   OuterName(settings.kind),
                                                   " has no decay, set it to 0"));
  }
  if (!(decay >= 0.0 && decay <= kOuterRateMax)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "outer.weight_decay is ", decay, "; it must be at least 0 and at most ", kOuterRateMax));
  }
  const double step = StepOf(settings, gamma);
  if (decay * step <= 1.0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "outer.weight_decay ", decay, " times the step ", step,
      settings.kind == OuterKind::kSignMomentum
          ? absl::StrCat(" (eta ", settings.eta, " times the local learning rate ", gamma, ")")
          : " (lr)",
      " is ", decay * step, "; above 1 it would turn parameters round, lower one of them"));
}

absl::Status CheckGamma(double gamma) {
  if (gamma >= kOuterGammaMin && gamma <= kOuterRateMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the local learning rate gamma is ", gamma, "; it must be at least ", kOuterGammaMin,
      " and at most ", kOuterRateMax, ": a warm-up or a decay of the schedule must not reach 0"));
}

absl::Status CheckSign(const OuterSettings& settings) {
  if (settings.sign == SignKind::kExact || settings.bound_kind == BoundKind::kLargest) {
    return absl::OkStatus();
  }
  return CheckPositive({"bound", settings.bound}, kOuterBoundMax);
}

absl::Status CheckRates(const OuterSettings& settings) {
  switch (settings.kind) {
    case OuterKind::kAssign:
      return absl::OkStatus();
    case OuterKind::kSgd:
    case OuterKind::kLion:
    case OuterKind::kSignSgd:
      return CheckPositive({"lr", settings.lr}, kOuterRateMax);
    case OuterKind::kMomentum:
    case OuterKind::kNesterov:
      ISTHMUS_RETURN_IF_ERROR(CheckPositive({"lr", settings.lr}, kOuterRateMax));
      return CheckBeta({"momentum", settings.momentum});
    case OuterKind::kSlowMo:
      ISTHMUS_RETURN_IF_ERROR(CheckPositive({"alpha", settings.alpha}, kOuterRateMax));
      return CheckBeta({"beta", settings.beta});
    case OuterKind::kSignMomentum:
      ISTHMUS_RETURN_IF_ERROR(CheckPositive({"eta", settings.eta}, kOuterRateMax));
      ISTHMUS_RETURN_IF_ERROR(CheckBeta({"beta1", settings.beta1}));
      ISTHMUS_RETURN_IF_ERROR(CheckBeta({"beta2", settings.beta2}));
      return CheckSign(settings);
    case OuterKind::kAdamW:
      ISTHMUS_RETURN_IF_ERROR(CheckPositive({"lr", settings.lr}, kOuterRateMax));
      ISTHMUS_RETURN_IF_ERROR(CheckBeta({"beta1", settings.beta1}));
      ISTHMUS_RETURN_IF_ERROR(CheckBeta({"beta2", settings.beta2}));
      if (settings.eps >= kOuterEpsilonMin && settings.eps <= kOuterRateMax) {
        return absl::OkStatus();
      }
      return absl::InvalidArgumentError(absl::StrCat("outer.eps is ", settings.eps,
                                                     "; it must be at least ", kOuterEpsilonMin,
                                                     " and at most ", kOuterRateMax));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("outer.kind is ", static_cast<int>(settings.kind), "; there is no such rule"));
}

float Rounded(double value) { return static_cast<float>(value); }

AdamWRule AdamWOf(const OuterSettings& settings, const OuterPowers& powers) {
  AdamWRule rule;
  rule.beta1 = Rounded(settings.beta1);
  rule.beta2 = Rounded(settings.beta2);
  rule.eps = Rounded(settings.eps);
  rule.eta = Rounded(settings.lr);
  rule.decay_factor = Rounded(1.0 - settings.lr * settings.weight_decay);
  rule.bias1 = Rounded(1.0 - powers.beta1);
  rule.bias2 = Rounded(1.0 - powers.beta2);
  return rule;
}

void SetSignMomentum(const OuterSettings& settings, double gamma, OuterRound* round) {
  const double step = settings.eta * gamma;
  round->sign = settings.sign;
  round->divides = settings.divide_by_gamma;
  round->rate = Rounded(step);
  round->decay = Rounded(1.0 - settings.weight_decay * step);
  round->keep1 = Rounded(settings.beta1);
  round->add1 = Rounded(1.0 - settings.beta1);
  round->keep2 = Rounded(settings.beta2);
  round->add2 = Rounded(1.0 - settings.beta2);
  if (settings.bound_kind == BoundKind::kFixed) round->bound = Rounded(settings.bound);
}

}  // namespace

absl::string_view OuterName(OuterKind kind) {
  switch (kind) {
    case OuterKind::kAssign:
      return "assign";
    case OuterKind::kSgd:
      return "sgd";
    case OuterKind::kMomentum:
      return "momentum";
    case OuterKind::kNesterov:
      return "nesterov";
    case OuterKind::kSlowMo:
      return "slowmo";
    case OuterKind::kSignMomentum:
      return "sign_momentum";
    case OuterKind::kAdamW:
      return "adamw";
    case OuterKind::kLion:
      return "lion";
    case OuterKind::kSignSgd:
      return "sign_sgd";
  }
  return "unknown";
}

OuterSettings DefaultOuterSettings(OuterKind kind) {
  OuterSettings settings;
  settings.kind = kind;
  switch (kind) {
    case OuterKind::kSignMomentum:
      settings.weight_decay = 0.1;
      break;
    case OuterKind::kAdamW:
      settings.lr = 0.3;
      settings.beta1 = 0.9;
      settings.beta2 = 0.95;
      break;
    case OuterKind::kSgd:
      settings.lr = 1.0;
      break;
    default:
      break;
  }
  return settings;
}

int OuterStateArrays(OuterKind kind) {
  switch (kind) {
    case OuterKind::kMomentum:
    case OuterKind::kNesterov:
    case OuterKind::kSlowMo:
    case OuterKind::kSignMomentum:
      return 1;
    case OuterKind::kAdamW:
      return 2;
    default:
      return 0;
  }
}

bool NeedsGamma(OuterKind kind) {
  return kind == OuterKind::kSlowMo || kind == OuterKind::kSignMomentum;
}

bool NeedsLargest(const OuterSettings& settings) {
  return settings.kind == OuterKind::kSignMomentum && settings.sign != SignKind::kExact &&
         settings.bound_kind == BoundKind::kLargest;
}

absl::Status CheckOuterSettings(const OuterSettings& settings, double gamma_max) {
  ISTHMUS_RETURN_IF_ERROR(CheckRates(settings));
  if (NeedsGamma(settings.kind)) ISTHMUS_RETURN_IF_ERROR(CheckGamma(gamma_max));
  return CheckDecay(settings, gamma_max);
}

OuterPowers NextOuterPowers(const OuterSettings& settings, const OuterPowers& powers) {
  if (settings.kind != OuterKind::kAdamW) return powers;
  return {powers.beta1 * settings.beta1, powers.beta2 * settings.beta2};
}

absl::StatusOr<OuterRound> MakeOuterRound(const OuterSettings& settings,
                                          const OuterRoundInputs& inputs) {
  ISTHMUS_RETURN_IF_ERROR(CheckOuterSettings(settings, inputs.gamma));
  OuterRound round;
  round.kind = settings.kind;
  round.draws = inputs.draws;
  round.decays = settings.weight_decay != 0.0;
  if (NeedsGamma(settings.kind)) round.gamma = Rounded(inputs.gamma);
  switch (settings.kind) {
    case OuterKind::kAssign:
      break;
    case OuterKind::kSgd:
    case OuterKind::kMomentum:
    case OuterKind::kNesterov:
    case OuterKind::kLion:
      round.rate = Rounded(settings.lr);
      round.decay = Rounded(settings.weight_decay);
      round.keep1 = Rounded(settings.momentum);
      break;
    case OuterKind::kSlowMo:
      round.rate = Rounded(settings.alpha * inputs.gamma);
      round.keep1 = Rounded(settings.beta);
      round.divides = true;
      break;
    case OuterKind::kSignMomentum:
      SetSignMomentum(settings, inputs.gamma, &round);
      break;
    case OuterKind::kAdamW:
      round.adamw = AdamWOf(settings, inputs.powers);
      break;
    case OuterKind::kSignSgd:
      round.rate = Rounded(settings.lr);
      round.decay = Rounded(1.0 - settings.lr * settings.weight_decay);
      break;
  }
  return round;
}

void OuterStep(const OuterRound& round, uint64_t first_element, absl::Span<const float> g,
               const OuterState& state) {
  if (round.kind != OuterKind::kSignMomentum || round.sign == SignKind::kExact) {
    return OuterStepWithDraws(round, g, {}, state);
  }
  // In parts whose draws stay in the nearest cache. All but the first begin where draws are made
  // the fastest.
  constexpr size_t kPart = 16 * kDrawsTogether;
  float draws[kPart];
  for (size_t i = 0; i < g.size();) {
    const size_t count = std::min(kPart - (first_element + i) % kPart, g.size() - i);
    UniformDraws(round.draws, first_element + i, {draws, count});
    OuterStepWithDraws(round, g.subspan(i, count), {draws, count},
                       {state.x.subspan(i, count), state.first.subspan(i, count), {}});
    i += count;
  }
}

void DeltaOf(absl::Span<const float> start, absl::Span<const float> end, absl::Span<float> delta) {
  ISTHMUS_CHECK(start.size() == delta.size() && end.size() == delta.size());
  for (size_t i = 0; i < delta.size(); ++i) delta[i] = start[i] - end[i];
}

LionRule MakeLionRule(double beta1, double beta2) {
  return {Rounded(beta1), Rounded(1.0 - beta1), Rounded(beta2), Rounded(1.0 - beta2)};
}

}  // namespace isthmus
