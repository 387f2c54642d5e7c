#include "worker/skipped_steps.h"

#include <utility>

namespace isthmus {

void SkippedSteps::Applied(uint64_t step, uint64_t skipped) {
  if (skipped == 0) return;
  steps_ += skipped;
  if (gap_.steps == 0) gap_.first = step - skipped + 1;
  gap_.last = step;
  gap_.steps += skipped;
}

std::optional<SkippedSteps::Gap> SkippedSteps::TakeGap() {
  const Gap gap = std::exchange(gap_, Gap());
  if (gap.steps == 0) return std::nullopt;
  return gap;
}

}  // namespace isthmus
