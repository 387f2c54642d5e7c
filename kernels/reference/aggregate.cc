// Aggregation, a position at a time.
#include <algorithm>
#include <cfloat>
#include <vector>

#include "kernels/reference/outer.h"

namespace isthmus {
namespace reference {
namespace {

float SignOf(float v) { return v > 0.0f ? 1.0f : v < 0.0f ? -1.0f : 0.0f; }

float Finite(float v) { return std::max(std::min(v, FLT_MAX), -FLT_MAX); }

float Finished(const AggregateSettings& settings, uint32_t count, float sum) {
  switch (settings.kind) {
    case AggregateKind::kWeightedMean:
      return Finite(sum);
    case AggregateKind::kSignOfMean:
      return SignOf(sum / static_cast<float>(count));
    case AggregateKind::kMajority:
      return SignOf(sum);
    default:
      return Finite(sum / static_cast<float>(count));
  }
}

float OfSorted(const AggregateSettings& settings, const std::vector<float>& sorted) {
  const size_t count = sorted.size();
  if (settings.kind == AggregateKind::kMedian) {
    if (count % 2 == 1) return Finite(sorted[count / 2]);
    const float sum = sorted[count / 2 - 1] + sorted[count / 2];
    return Finite(sum / 2.0f);
  }
  float sum = sorted[settings.trim];
  for (size_t i = settings.trim + 1; i < count - settings.trim; ++i) sum += sorted[i];
  return Finite(sum / static_cast<float>(count - 2 * settings.trim));
}

}  // namespace

double SquaresOf(absl::Span<const float> block) {
  double s[8] = {};
  for (size_t i = 0; i < block.size(); ++i) {
    const double value = block[i];
    s[i % 8] += value * value;
  }
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

void AggregateBlock(const AggregateSettings& settings, absl::Span<const float* const> rows,
                    absl::Span<const float> factors, absl::Span<float> out) {
  const uint32_t count = static_cast<uint32_t>(rows.size());
  std::vector<float> values(rows.size());
  for (size_t i = 0; i < out.size(); ++i) {
    if (!FoldsOneAtATime(settings.kind)) {
      for (uint32_t row = 0; row < count; ++row) values[row] = rows[row][i] + 0.0f;
      std::sort(values.begin(), values.end());
      out[i] = OfSorted(settings, values);
      continue;
    }
    float sum = 0.0f;
    for (uint32_t row = 0; row < count; ++row) {
      const float value = (factors.empty() ? 1.0f : factors[row]) * rows[row][i];
      sum = row == 0 ? value : sum + value;
    }
    out[i] = Finished(settings, count, sum);
  }
}

}  // namespace reference
}  // namespace isthmus
