// Which steps of the nodes a round holds. With local steps a round ends after H of them, so that
// step and round are different numbers; every-step methods have a round for each step.
//
// With schedule.every or skip a round is an exchange, and the steps before it are each node's own;
// the last step of a run always exchanges, so that no step comes after the last round.
//
//   round r of every_h:  steps StepAfterRound(r - 1) + 1 .. StepAfterRound(r)
#pragma once

#include <cstdint>

#include "isthmus/v1/run_spec.pb.h"

namespace isthmus {

// Largest schedule.every and skip: rounds that far apart are no exchange any more.
inline constexpr uint32_t kExchangeEveryMax = 100000;

// Whether the run has an outer optimizer (stages.proto).
bool IsOuter(const v1::RunSpec& spec);

// Whether nodes of an every-step method step alone between exchanges (schedule.every, skip).
bool HasStepsAlone(const v1::RunSpec& spec);

// Whether nodes exchange at a step of the schedule: `every` divides it, and `skip` does not. The
// last step of a run exchanges whatever this says.
bool ExchangesAt(const v1::ScheduleSpec& schedule, uint64_t step);

// The step at which the round ends that begins after `step_before`: at most spec.steps(), and
// schedule.switch_step where that lies between. step_before < spec.steps().
uint64_t NextStep(const v1::RunSpec& spec, uint64_t step_before);

// The step that so many rounds after `step_before` end at; no further than the run.
uint64_t StepAfterRounds(const v1::RunSpec& spec, uint64_t step_before, uint64_t rounds);

// Rounds that follow after that step.
uint64_t RoundsLeft(const v1::RunSpec& spec, uint64_t step_before);

// Rounds of the run, each but the last of full length.
uint64_t Rounds(const v1::RunSpec& spec);

// The step after round 0..Rounds(spec); 0 of round 0.
uint64_t StepAfterRound(const v1::RunSpec& spec, uint64_t round);

// Most steps that a round has.
uint64_t StepsOfRoundMax(const v1::RunSpec& spec);

// Whether nodes say what their state hashes to after this round (RunSpec.check_every).
inline bool IsChecked(const v1::RunSpec& spec, uint64_t round) {
  return spec.check_every() != 0 && round != 0 && round % spec.check_every() == 0;
}

// The learning rate of the round's last step: gamma of the outer step. 1 <= round <= Rounds(spec).
float RoundLearningRate(const v1::RunSpec& spec, uint64_t round);

}  // namespace isthmus
