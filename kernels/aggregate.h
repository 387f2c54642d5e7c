// How the pseudo-gradients of a round's contributors become one g. Contributors are in ascending
// node name wherever they are listed; those that are not included are left out, and W counts those
// that are there. All inputs are finite.
//
// Rules that fold take one contributor at a time and keep one array, so a round needs no more
// memory for more nodes:
//   for each contributor, ascending: Fold(i == 0, factor of i, values, sum)
//   FinishFold(settings, W, sum)
// Others need all values of a position: AggregateBlock, which does all rules. A call is for a span
// of the fragment, of any length; threads take spans of their own.
//
// Bit-equal everywhere: each operation is rounded by itself to float32, in the order written, and
// positions do not meet, except in SquaresOf, which states its own. A result beyond float32's range
// is the largest finite number of its sign.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/chunk.h"

namespace isthmus {

// Sums begin with the first contributor's value and go on in ascending order.
enum class AggregateKind {
  kMean,             // sum / W
  kWeightedMean,     // sum of factor_i * d_i, with MeanFactors
  kSignOfMean,       // sign(sum / W)
  kMajority,         // sign(sum), of values -1, 0 and +1: 0 on a tie
  kTrimmedMean,      // without the `trim` smallest and largest: sum of the others, ascending by
                     // value, / (W - 2 * trim)
  kMedian,           // the middle value; of an even number (lower + upper) / 2
  kNormClippedMean,  // (sum of factor_i * d_i) / W, with ClipFactors
};

struct AggregateSettings {
  AggregateKind kind = AggregateKind::kMean;
  uint32_t trim = 1;  // trimmed_mean: dropped at each end
  // weighted_mean: no contributor counts for more than this share of the mean, (0, 1].
  double weight_max_share = 1.0;
};

// The name in RunSpecs and sentences ("trimmed_mean").
absl::string_view AggregateName(AggregateKind kind);
// Whether Fold and FinishFold do the rule.
bool FoldsOneAtATime(AggregateKind kind);

// Whether a run may use this, where a round may commit with `contributors_min` contributors (its
// quorum). INVALID_ARGUMENT naming field and value: a trim that drops all of them, a share outside
// (0, 1].
absl::Status CheckAggregate(const AggregateSettings& settings, uint32_t contributors_min);

// What weighted_mean weighs a contribution by.
enum class WeightKind { kOne, kTokens, kSteps, kTokensTimesTokensPerStep };

// What a contribution says went into it, and what a RunSpec allows one at most.
struct ContributionSize {
  uint64_t tokens = 0;
  uint64_t steps = 0;
};
// INVALID_ARGUMENT, naming value and limit, where one that the rule reads is 0 or above its limit.
absl::StatusOr<double> ContributionWeight(WeightKind kind, const ContributionSize& size,
                                          const ContributionSize& limits);

// Factors of weighted_mean: weight / (sum of the weights, ascending), in double, rounded once. A
// share above weight_max_share (or above 1/W, where that is more) is cut to it and the others are
// scaled up to a sum of 1. INVALID_ARGUMENT: a weight that is not a finite number above 0.
absl::StatusOr<std::vector<float>> MeanFactors(absl::Span<const double> weights,
                                               double weight_max_share);

// Factors of norm_clipped_mean, from each contributor's sum of squares over the whole fragment:
// min(1, M / norm), M being the median of the norms; 1 for a norm of 0.
std::vector<float> ClipFactors(absl::Span<const double> squares);

// The sum of squares of a block, in double: value i goes to partial sum i mod 8, ascending, and
// then ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7)). A fragment's is the sum over its blocks
// of the grid in block order, starting at +0: not over any other cut.
double SquaresOf(absl::Span<const float> block);

// sum <- factor * values where `first`, else sum <- sum + factor * values. The factor is 1 for all
// rules but weighted_mean and norm_clipped_mean.
void Fold(bool first, float factor, absl::Span<const float> values, absl::Span<float> sum);

// sum[index] <- sum[index] + factor * value, for a contribution that holds some positions of a
// chunk and means 0 at the others. The sum starts at +0. Indices below sum.size().
void FoldComponents(float factor, const Components& components, absl::Span<float> sum);

// From the sum of `count` >= 1 contributors to g, for rules that fold.
void FinishFold(const AggregateSettings& settings, uint32_t count, absl::Span<float> sum);

// Any rule over W >= 1 contributors, W at most kNodesMax; rows[i] points at contributor i's
// out.size() values. `factors` holds W where the rule has them, else nothing. trimmed_mean wants
// W > 2 * trim, else CHECKs. In trimmed_mean and median -0 counts as +0.
void AggregateBlock(const AggregateSettings& settings, absl::Span<const float* const> rows,
                    absl::Span<const float> factors, absl::Span<float> out);

// Whether all values are finite and of a magnitude up to `largest`; if not, *at is the first that
// is not. For what comes from others, before it is folded.
bool AllWithin(float largest, absl::Span<const float> values, size_t* at);

}  // namespace isthmus
