// The stages of a run with an outer optimizer (stages.proto), as the kernels take them, and what an
// update of a run holds. Specs are complete.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "isthmus/v1/run_spec.pb.h"
#include "kernels/aggregate.h"
#include "kernels/draws.h"
#include "kernels/number_format.h"
#include "kernels/outer.h"

namespace isthmus {

NumberSettings NumberSettingsOf(const v1::NumbersSpec& numbers);
AggregateSettings AggregateSettingsOf(const v1::AggregateSpec& aggregate);
WeightKind WeightKindOf(const v1::AggregateSpec& aggregate);
// gamma: the round's learning rate, by which LION and SIGN_SGD step.
OuterSettings OuterSettingsOf(const v1::OuterSpec& outer, float gamma);

// The values of an update: what a node does with them.
enum class UpdateForm {
  kMerged,      // every-step methods: merged components, and the base step
  kAggregate,   // g: the outer step, on every node
  kParameters,  // x' itself
  kDifference,  // q = deq(Q(u + e)), u = x' - x by the outer step: x <- x + q
  kDirection,   // S(c), a sign or a vote: a step of DirectionSettings
};
UpdateForm UpdateFormOf(const v1::RunSpec& spec);

// What a node does with kDirection: a step without state, with the bits of the outer step.
OuterSettings DirectionSettingsOf(const v1::OuterSpec& outer, float gamma);

// The draws of random signs in a round. Elements count through the tensors of the manifest.
DrawKey DrawKeyOf(const v1::RunSpec& spec, uint64_t round);

// Arrays that the base step of every-step methods keeps: the moments of AdamW, the momentum of SGD.
uint32_t BaseStateArrays(const v1::OptimizerSpec& optimizer);

// Sections of float32 values of the state that all nodes hold: x, with every-step methods those,
// with a replicated outer step that one's arrays.
uint32_t StateSections(const v1::RunSpec& spec);
// Sections behind x that the coordinator alone holds: the error of lossy replies (kDifference),
// then the outer step's arrays. 0 unless hosted.
uint32_t HostedSections(const v1::RunSpec& spec);
bool IsHosted(const v1::RunSpec& spec);

// Of CompleteCodecSpec.
void FillNumbers(v1::NumbersSpec* numbers);
absl::Status CheckStageCodec(const v1::CodecSpec& codec);
// Of CompleteRunSpec, for specs with `outer`: fills defaults, and checks.
void FillStages(v1::RunSpec* spec);
// INVALID_ARGUMENT naming fields and values: out of range, or stages that contradict each other.
absl::Status CheckStages(const v1::RunSpec& spec);

}  // namespace isthmus
