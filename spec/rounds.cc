#include "spec/rounds.h"

#include <algorithm>
#include <numeric>
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

uint64_t Every(const v1::ScheduleSpec& schedule) { return std::max<uint64_t>(1, schedule.every()); }

// Exchanges of the schedule at steps 1..step.
uint64_t ExchangesUntil(const v1::ScheduleSpec& schedule, uint64_t step) {
  const uint64_t every = Every(schedule);
  const uint64_t all = step / every;
  return schedule.skip() == 0 ? all : all - step / std::lcm(every, uint64_t{schedule.skip()});
}

// The step of the `rounds`-th exchange after `step_before`, the last of which is that of the run.
uint64_t StepOfExchange(const v1::RunSpec& spec, uint64_t step_before, uint64_t rounds) {
  if (rounds == 0) return step_before;
  const uint64_t wanted = ExchangesUntil(spec.schedule(), step_before) + rounds;
  uint64_t first = step_before + 1, end = spec.steps();  // it lies in [first, end]
  while (first < end) {
    const uint64_t middle = first + (end - first) / 2;
    if (ExchangesUntil(spec.schedule(), middle) >= wanted) {
      end = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

}  // namespace

bool HasStepsAlone(const v1::RunSpec& spec) {
  return !IsOuter(spec) && (spec.schedule().every() > 1 || spec.schedule().skip() > 0);
}

bool ExchangesAt(const v1::ScheduleSpec& schedule, uint64_t step) {
  return step % Every(schedule) == 0 && (schedule.skip() == 0 || step % schedule.skip() != 0);
}

bool IsOuter(const v1::RunSpec& spec) { return spec.has_outer(); }

uint64_t StepAfterRounds(const v1::RunSpec& spec, uint64_t step_before, uint64_t rounds) {
  if (HasStepsAlone(spec) && step_before < spec.steps()) {
    return StepOfExchange(spec, step_before, rounds);
  }
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
  if (HasStepsAlone(spec) && step_before < spec.steps()) {
    const v1::ScheduleSpec& schedule = spec.schedule();
    const uint64_t last = ExchangesAt(schedule, spec.steps()) ? 0 : 1;
    return ExchangesUntil(schedule, spec.steps()) - ExchangesUntil(schedule, step_before) + last;
  }
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
  if (HasStepsAlone(spec)) return StepOfExchange(spec, step_before, 1);
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
  // Two steps that `every` divides do not both fall on `skip`, or all of them would.
  if (HasStepsAlone(spec)) return Every(spec.schedule()) * (spec.schedule().skip() > 0 ? 2 : 1);
  return std::max<uint64_t>(LocalSteps(spec), spec.schedule().local_steps_after());
}

float RoundLearningRate(const v1::RunSpec& spec, uint64_t round) {
  return LearningRate(spec, StepAfterRound(spec, round));
}

}  // namespace isthmus
