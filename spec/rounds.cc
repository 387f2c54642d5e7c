#include "spec/rounds.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "spec/run_spec.h"

namespace isthmus {
namespace {

uint64_t CeilDivide(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

uint64_t LocalSteps(const v1::RunSpec& spec) {
  return std::max<uint64_t>(1, spec.schedule().local_steps());
}

// A stretch of rounds of `length` steps each, the last of which ends at `end` whatever is left.
struct Stretch {
  uint64_t length = 1;
  uint64_t end = 0;
};

// Up to the switch, and after it.
std::vector<Stretch> StretchesOf(const v1::RunSpec& spec) {
  const v1::ScheduleSpec& schedule = spec.schedule();
  if (schedule.switch_step() == 0) return {{LocalSteps(spec), spec.steps()}};
  return {{LocalSteps(spec), std::min(schedule.switch_step(), spec.steps())},
          {std::max<uint64_t>(1, schedule.local_steps_after()), spec.steps()}};
}

}  // namespace

bool IsOuter(const v1::RunSpec& spec) { return spec.has_outer(); }

uint64_t StepAfterRounds(const v1::RunSpec& spec, uint64_t step_before, uint64_t rounds) {
  for (const Stretch& stretch : StretchesOf(spec)) {
    if (step_before >= stretch.end) continue;
    const uint64_t all = CeilDivide(stretch.end - step_before, stretch.length);
    if (rounds < all) return step_before + rounds * stretch.length;
    rounds -= all;
    step_before = stretch.end;
  }
  return step_before;
}

uint64_t RoundsLeft(const v1::RunSpec& spec, uint64_t step_before) {
  uint64_t rounds = 0;
  for (const Stretch& stretch : StretchesOf(spec)) {
    if (step_before >= stretch.end) continue;
    rounds += CeilDivide(stretch.end - step_before, stretch.length);
    step_before = stretch.end;
  }
  return rounds;
}

uint64_t NextStep(const v1::RunSpec& spec, uint64_t step_before) {
  ISTHMUS_CHECK(step_before < spec.steps());
  for (const Stretch& stretch : StretchesOf(spec)) {
    if (step_before < stretch.end) return std::min(stretch.end, step_before + stretch.length);
  }
  return spec.steps();
}

uint64_t Rounds(const v1::RunSpec& spec) { return RoundsLeft(spec, 0); }

uint64_t StepAfterRound(const v1::RunSpec& spec, uint64_t round) {
  return StepAfterRounds(spec, 0, round);
}

uint64_t StepsOfRoundMax(const v1::RunSpec& spec) {
  return std::max<uint64_t>(LocalSteps(spec), spec.schedule().local_steps_after());
}

float RoundLearningRate(const v1::RunSpec& spec, uint64_t round) {
  return LearningRate(spec, StepAfterRound(spec, round));
}

}  // namespace isthmus
