#include "worker/skipped_steps.h"

#include <utility>

namespace isthmus {

void SkippedSteps::Applied(uint64_t step, bool included) {
  if (included) return;
  ++steps_;
  if (gap_.steps == 0) gap_.first = step;
  gap_.last = step;
  ++gap_.steps;
}

std::optional<SkippedSteps::Gap> SkippedSteps::TakeGap() {
  const Gap gap = std::exchange(gap_, Gap());
  if (gap.steps == 0) return std::nullopt;
  return gap;
}

}  // namespace isthmus
