// What an aggregation rule needs to know before it reads a value: names, checks, weights.
#include "kernels/aggregate.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

absl::Status CheckCount(absl::string_view name, uint64_t value, uint64_t limit) {
  if (value >= 1 && value <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the contribution says that ", value, " ", name,
                                                 " made it; it must be at least 1 and at most ",
                                                 limit));
}

// Shares that sum to 1, none above `cap`; 1 / W <= cap.
std::vector<double> CappedShares(absl::Span<const double> weights, double cap) {
  std::vector<double> shares(weights.size(), 0.0);
  std::vector<bool> cut(weights.size(), false);
  for (bool again = true; again;) {
    again = false;
    double left = 1.0, total = 0.0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (cut[i]) left -= cap;
      if (!cut[i]) total += weights[i];
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      shares[i] = cut[i] ? cap : weights[i] / total * std::max(left, 0.0);
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      if (cut[i] || shares[i] <= cap) continue;
      cut[i] = again = true;
      shares[i] = cap;
    }
  }
  return shares;
}

}  // namespace

absl::string_view AggregateName(AggregateKind kind) {
  switch (kind) {
    case AggregateKind::kMean:
      return "mean";
    case AggregateKind::kWeightedMean:
      return "weighted_mean";
    case AggregateKind::kSignOfMean:
      return "sign_of_mean";
    case AggregateKind::kMajority:
      return "majority";
    case AggregateKind::kTrimmedMean:
      return "trimmed_mean";
    case AggregateKind::kMedian:
      return "median";
    case AggregateKind::kNormClippedMean:
      return "norm_clipped_mean";
  }
  return "unknown";
}

bool FoldsOneAtATime(AggregateKind kind) {
  return kind != AggregateKind::kTrimmedMean && kind != AggregateKind::kMedian;
}

absl::Status CheckAggregate(const AggregateSettings& settings, uint32_t contributors_min) {
  if (AggregateName(settings.kind) == "unknown") {
    return absl::InvalidArgumentError(absl::StrCat(
        "aggregate.kind is ", static_cast<int>(settings.kind), "; there is no such rule"));
  }
  if (settings.kind == AggregateKind::kTrimmedMean &&
      2 * uint64_t{settings.trim} >= contributors_min) {
    return absl::InvalidArgumentError(absl::StrCat(
        "aggregate.trim is ", settings.trim, ": it drops ", 2 * uint64_t{settings.trim}, " of the ",
        contributors_min, " contributors that a round may have; lower it or raise the quorum"));
  }
  if (settings.kind == AggregateKind::kWeightedMean &&
      !(settings.weight_max_share > 0.0 && settings.weight_max_share <= 1.0)) {
    return absl::InvalidArgumentError(absl::StrCat("aggregate.weight_max_share is ",
                                                   settings.weight_max_share,
                                                   "; it must be above 0 and at most 1"));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> ContributionWeight(WeightKind kind, const ContributionSize& size,
                                          const ContributionSize& limits) {
  if (kind == WeightKind::kTokens || kind == WeightKind::kTokensTimesTokensPerStep) {
    ISTHMUS_RETURN_IF_ERROR(CheckCount("tokens", size.tokens, limits.tokens));
  }
  if (kind == WeightKind::kSteps || kind == WeightKind::kTokensTimesTokensPerStep) {
    ISTHMUS_RETURN_IF_ERROR(CheckCount("steps", size.steps, limits.steps));
  }
  const double tokens = static_cast<double>(size.tokens);
  const double steps = static_cast<double>(size.steps);
  switch (kind) {
    case WeightKind::kOne:
      return 1.0;
    case WeightKind::kTokens:
      return tokens;
    case WeightKind::kSteps:
      return steps;
    case WeightKind::kTokensTimesTokensPerStep:
      return tokens * (tokens / steps);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("aggregate.weight is ", static_cast<int>(kind), "; there is no such weight"));
}

absl::StatusOr<std::vector<float>> MeanFactors(absl::Span<const double> weights,
                                               double weight_max_share) {
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0.0 && std::isfinite(weights[i])) continue;
    return absl::InvalidArgumentError(absl::StrCat("the weight of contributor ", i, " of ",
                                                   weights.size(), " is ", weights[i],
                                                   "; it must be a finite number above 0"));
  }
  if (weights.empty()) return std::vector<float>();
  const double equal = 1.0 / static_cast<double>(weights.size());
  const std::vector<double> shares = CappedShares(weights, std::max(weight_max_share, equal));
  return std::vector<float>(shares.begin(), shares.end());
}

std::vector<float> ClipFactors(absl::Span<const double> squares) {
  std::vector<float> factors(squares.size(), 1.0f);
  if (squares.empty()) return factors;
  std::vector<double> sorted;
  for (const double square : squares) sorted.push_back(std::sqrt(square));
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  const double median =
      sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2.0;
  for (size_t i = 0; i < squares.size(); ++i) {
    const double norm = std::sqrt(squares[i]);
    if (norm > median) factors[i] = static_cast<float>(median / norm);
  }
  return factors;
}

bool AllWithin(float largest, absl::Span<const float> values, size_t* at) {
  // By parts, so that the compiler's vectors do the common case and the position is looked for
  // once.
  constexpr size_t kPart = 1024;
  for (size_t first = 0; first < values.size(); first += kPart) {
    const size_t end = std::min(first + kPart, values.size());
    uint32_t wrong = 0;
    for (size_t i = first; i < end; ++i) wrong |= !(std::fabs(values[i]) <= largest);
    if (wrong == 0) continue;
    for (*at = first; std::fabs(values[*at]) <= largest;) ++*at;
    return false;
  }
  return true;
}

}  // namespace isthmus
