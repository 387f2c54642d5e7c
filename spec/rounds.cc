#include "spec/rounds.h"

#include <algorithm>

#include "base/check.h"
#include "spec/run_spec.h"

namespace isthmus {
namespace {

uint64_t CeilDivide(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

uint64_t LocalSteps(const v1::RunSpec& spec) {
  return std::max<uint64_t>(1, spec.schedule().local_steps());
}

// Steps and rounds before the switch; with none, all of them.
uint64_t StepsBefore(const v1::RunSpec& spec) {
  const uint64_t at = spec.schedule().switch_step();
  return at == 0 ? spec.steps() : std::min(at, spec.steps());
}

uint64_t RoundsBefore(const v1::RunSpec& spec) {
  return CeilDivide(StepsBefore(spec), LocalSteps(spec));
}

}  // namespace

bool IsOuter(const v1::RunSpec& spec) { return spec.has_outer(); }

uint64_t NextStep(const v1::RunSpec& spec, uint64_t step_before) {
  ISTHMUS_CHECK(step_before < spec.steps());
  const uint64_t before = StepsBefore(spec);
  if (step_before < before) return std::min(before, step_before + LocalSteps(spec));
  return std::min<uint64_t>(spec.steps(), step_before + spec.schedule().local_steps_after());
}

uint64_t Rounds(const v1::RunSpec& spec) {
  const uint64_t rest = spec.steps() - StepsBefore(spec);
  if (rest == 0) return RoundsBefore(spec);
  return RoundsBefore(spec) + CeilDivide(rest, spec.schedule().local_steps_after());
}

uint64_t StepAfterRound(const v1::RunSpec& spec, uint64_t round) {
  const uint64_t rounds_before = RoundsBefore(spec), steps_before = StepsBefore(spec);
  if (round <= rounds_before) return std::min(steps_before, round * LocalSteps(spec));
  return std::min<uint64_t>(
      spec.steps(), steps_before + (round - rounds_before) * spec.schedule().local_steps_after());
}

uint64_t StepsOfRoundMax(const v1::RunSpec& spec) {
  return std::max<uint64_t>(LocalSteps(spec), spec.schedule().local_steps_after());
}

float RoundLearningRate(const v1::RunSpec& spec, uint64_t round) {
  return LearningRate(spec, StepAfterRound(spec, round));
}

}  // namespace isthmus
