// config.json of a GPT-2 checkpoint, as Hugging Face Transformers writes and reads it. No torch.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "isthmus/v1/run_spec.pb.h"

namespace isthmus {

// With it beside the tensors, GPT2LMHeadModel.from_pretrained(FOLDER) loads what we train: no
// dropout, epsilon 1e-5, GELU by its tanh form, the output layer tied to the embedding.
std::string Gpt2ConfigJson(const v1::ModelSpec& spec);

// The model that `text`, the contents of `path`, describes. INVALID_ARGUMENT naming path, field and
// value: no JSON object, not GPT-2, a size that is missing or out of the RunSpec's limits, or a
// variant of GPT-2 that MakeGpt2 does not compute.
absl::StatusOr<v1::ModelSpec> ParseGpt2Config(const std::string& text, const std::string& path);

// INVALID_ARGUMENT, naming the first field in which the model of `path` differs from the run's.
absl::Status CheckSameModel(const v1::ModelSpec& run, const v1::ModelSpec& found,
                            const std::string& path);

}  // namespace isthmus
