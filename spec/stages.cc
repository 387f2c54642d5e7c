#include "spec/stages.h"

#include "base/check.h"
#include "spec/rounds.h"

namespace isthmus {
namespace {

NumberFormat FormatOf(v1::NumberFormat format) {
  switch (format) {
    case v1::NUMBER_FORMAT_BF16:
      return NumberFormat::kBf16;
    case v1::NUMBER_FORMAT_F16:
      return NumberFormat::kF16;
    case v1::NUMBER_FORMAT_INT8:
      return NumberFormat::kInt8;
    case v1::NUMBER_FORMAT_INT4:
      return NumberFormat::kInt4;
    case v1::NUMBER_FORMAT_SIGN1:
      return NumberFormat::kSign1;
    case v1::NUMBER_FORMAT_TERNARY:
      return NumberFormat::kTernary;
    default:
      return NumberFormat::kF32;
  }
}

AggregateKind KindOf(v1::AggregateKind kind) {
  switch (kind) {
    case v1::AGGREGATE_KIND_WEIGHTED_MEAN:
      return AggregateKind::kWeightedMean;
    case v1::AGGREGATE_KIND_SIGN_OF_MEAN:
      return AggregateKind::kSignOfMean;
    case v1::AGGREGATE_KIND_MAJORITY:
      return AggregateKind::kMajority;
    case v1::AGGREGATE_KIND_TRIMMED_MEAN:
      return AggregateKind::kTrimmedMean;
    case v1::AGGREGATE_KIND_MEDIAN:
      return AggregateKind::kMedian;
    case v1::AGGREGATE_KIND_NORM_CLIPPED_MEAN:
      return AggregateKind::kNormClippedMean;
    default:
      return AggregateKind::kMean;
  }
}

OuterKind KindOf(v1::OuterKind kind) {
  switch (kind) {
    case v1::OUTER_KIND_SGD:
      return OuterKind::kSgd;
    case v1::OUTER_KIND_MOMENTUM:
      return OuterKind::kMomentum;
    case v1::OUTER_KIND_NESTEROV:
      return OuterKind::kNesterov;
    case v1::OUTER_KIND_SLOWMO:
      return OuterKind::kSlowMo;
    case v1::OUTER_KIND_SIGN_MOMENTUM:
      return OuterKind::kSignMomentum;
    case v1::OUTER_KIND_ADAMW:
      return OuterKind::kAdamW;
    case v1::OUTER_KIND_LION:
      return OuterKind::kLion;
    case v1::OUTER_KIND_SIGN_SGD:
      return OuterKind::kSignSgd;
    default:
      return OuterKind::kAssign;
  }
}

SignKind KindOf(v1::OuterSign sign) {
  switch (sign) {
    case v1::OUTER_SIGN_RANDOM_TWO_POINT:
      return SignKind::kRandomTwoPoint;
    case v1::OUTER_SIGN_RANDOM_THREE_POINT:
      return SignKind::kRandomThreePoint;
    default:
      return SignKind::kExact;
  }
}

}  // namespace

NumberSettings NumberSettingsOf(const v1::NumbersSpec& numbers) {
  NumberSettings settings;
  settings.format = FormatOf(numbers.format());
  if (numbers.group() > 0) settings.group = numbers.group();
  settings.hadamard = numbers.hadamard();
  return settings;
}

AggregateSettings AggregateSettingsOf(const v1::AggregateSpec& aggregate) {
  AggregateSettings settings;
  settings.kind = KindOf(aggregate.kind());
  if (settings.kind == AggregateKind::kTrimmedMean) settings.trim = aggregate.trim();
  if (aggregate.has_weight_max_share()) settings.weight_max_share = aggregate.weight_max_share();
  return settings;
}

WeightKind WeightKindOf(const v1::AggregateSpec& aggregate) {
  if (aggregate.kind() != v1::AGGREGATE_KIND_WEIGHTED_MEAN) return WeightKind::kOne;
  switch (aggregate.weight()) {
    case v1::CONTRIBUTION_WEIGHT_STEPS:
      return WeightKind::kSteps;
    case v1::CONTRIBUTION_WEIGHT_TOKENS_TOKENS_PER_STEP:
      return WeightKind::kTokensTimesTokensPerStep;
    default:
      return WeightKind::kTokens;
  }
}

OuterSettings OuterSettingsOf(const v1::OuterSpec& outer, float gamma) {
  OuterSettings settings = DefaultOuterSettings(KindOf(outer.kind()));
  if (outer.has_lr()) settings.lr = outer.lr();
  if (outer.has_momentum()) settings.momentum = outer.momentum();
  if (outer.has_alpha()) settings.alpha = outer.alpha();
  if (outer.has_beta()) settings.beta = outer.beta();
  if (outer.has_beta1()) settings.beta1 = outer.beta1();
  if (outer.has_beta2()) settings.beta2 = outer.beta2();
  if (outer.has_eta()) settings.eta = outer.eta();
  if (outer.has_eps()) settings.eps = outer.eps();
  if (outer.has_weight_decay()) settings.weight_decay = outer.weight_decay();
  if (outer.has_divide_by_gamma()) settings.divide_by_gamma = outer.divide_by_gamma();
  settings.sign = KindOf(outer.sign());
  settings.bound = outer.bound();
  settings.bound_kind = outer.bound() > 0 ? BoundKind::kFixed : BoundKind::kLargest;
  if (settings.kind == OuterKind::kLion || settings.kind == OuterKind::kSignSgd) {
    settings.lr = static_cast<double>(gamma);
  }
  return settings;
}

OuterSettings DirectionSettingsOf(const v1::OuterSpec& outer, float gamma) {
  OuterSettings settings = OuterSettingsOf(outer, gamma);
  if (settings.kind != OuterKind::kSignMomentum) return settings;
  // x <- x * (1 - lambda * s), x <- x - s * S with s = eta * gamma.
  settings.kind = OuterKind::kSignSgd;
  settings.lr = settings.eta * static_cast<double>(gamma);
  return settings;
}

UpdateForm UpdateFormOf(const v1::RunSpec& spec) {
  if (!IsOuter(spec)) return UpdateForm::kMerged;
  if (spec.placement() == v1::PLACEMENT_REPLICATED) return UpdateForm::kAggregate;
  switch (spec.codec().reply().format()) {
    case v1::NUMBER_FORMAT_F32:
      return UpdateForm::kParameters;
    case v1::NUMBER_FORMAT_TERNARY:
      return UpdateForm::kDirection;
    default:
      return UpdateForm::kDifference;
  }
}

DrawKey DrawKeyOf(const v1::RunSpec& spec, uint64_t round) {
  return {spec.seed(), /*fragment=*/0, static_cast<uint32_t>(round)};
}

bool IsHosted(const v1::RunSpec& spec) {
  return IsOuter(spec) && spec.placement() == v1::PLACEMENT_HOSTED;
}

uint32_t BaseStateArrays(const v1::OptimizerSpec& optimizer) {
  if (optimizer.base() == v1::BASE_OPTIMIZER_ADAMW) return 2;
  return optimizer.base() == v1::BASE_OPTIMIZER_SGD && optimizer.momentum() > 0 ? 1 : 0;
}

uint32_t StateSections(const v1::RunSpec& spec) {
  if (!IsOuter(spec)) return 1 + BaseStateArrays(spec.optimizer());
  if (IsHosted(spec)) return 1;
  return 1 + static_cast<uint32_t>(OuterStateArrays(KindOf(spec.outer().kind())));
}

uint32_t HostedSections(const v1::RunSpec& spec) {
  if (!IsHosted(spec)) return 0;
  const uint32_t error = UpdateFormOf(spec) == UpdateForm::kDifference ? 1 : 0;
  return error + static_cast<uint32_t>(OuterStateArrays(KindOf(spec.outer().kind())));
}

}  // namespace isthmus
