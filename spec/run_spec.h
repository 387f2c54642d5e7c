// Reading, completing and checking a RunSpec, and the functions of the global step it defines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "isthmus/v1/run_spec.pb.h"

namespace isthmus {

// Parses text format, fills defaults and preset values in, checks every field.
// INVALID_ARGUMENT: with line and column for text that does not parse, else field, limit and value.
absl::StatusOr<v1::RunSpec> ParseRunSpec(absl::string_view text);

// NOT_FOUND / INVALID_ARGUMENT naming the file.
absl::StatusOr<v1::RunSpec> ReadRunSpecFile(const std::string& path);

// Fills what is left out, then checks. Idempotent.
absl::Status CompleteRunSpec(v1::RunSpec* spec);

// The same for the codec alone, whose fields the grid and the methods use. CheckCodecSpec wants a
// complete one: every default filled in.
absl::Status CompleteCodecSpec(v1::CodecSpec* codec);

absl::Status CheckCodecSpec(const v1::CodecSpec& codec);

// A run that a release before codec.numbers made has no such field, and keeps its layouts: takes
// the default for it out of `given`, a complete spec for the run whose spec is `kept`.
void KeepLayouts(const v1::RunSpec& kept, v1::RunSpec* given);

// The check of CompleteRunSpec, for a spec whose defaults are filled in.
absl::Status CheckRunSpec(const v1::RunSpec& spec);

// What an operator should know of a spec that holds: a sentence each. Complete specs.
std::vector<std::string> SpecWarnings(const v1::RunSpec& spec);

// Whether something reads every value of a complete spec. INVALID_ARGUMENT: one that has no effect.
absl::Status CheckAllCounts(const v1::RunSpec& complete);

// The quorum with 0 resolved to the number of nodes.
uint32_t EffectiveQuorum(const v1::RunSpec& spec);

// Index of a node in the spec, or -1.
int NodeIndex(const v1::RunSpec& spec, absl::string_view name);

// Learning rate of step 1..steps. With w = warmup_steps: lr * step / w for step <= w, then cosine
// from lr to lr * lr_final_ratio at the last step. Evaluated in double, rounded once to float32;
// the coordinator puts the bits in the round record and nodes use those.
float LearningRate(const v1::RunSpec& spec, uint64_t step);

// For each tensor of a manifest the factor of its weight decay: the scale of the first decay group
// with a pattern that matches its name, else 1. INVALID_ARGUMENT: a pattern that matches no tensor.
absl::StatusOr<std::vector<float>> DecayScales(const v1::OptimizerSpec& optimizer,
                                               const std::vector<std::string>& tensors);

}  // namespace isthmus
