// GPT-2 (Radford et al. 2019) with the names and shapes of Hugging Face's checkpoints:
// "transformer.wte.weight" [vocab, width], "transformer.h.0.attn.c_attn.weight" [width, 3 width]
// (used as x W + b), ..., the output layer tied to wte. Float32, no dropout.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "isthmus/v1/run_spec.pb.h"
#include "worker/model.h"

namespace isthmus {

// Stages: embedding, one a block, head. With targets the head returns the mean cross-entropy in
// nats a token, without them logits [sequences, length, vocab]. Sequences are at most `context`
// long. INVALID_ARGUMENT: heads does not divide width, or a pattern in `frozen` that matches no
// tensor.
absl::StatusOr<Model> MakeGpt2(const v1::ModelSpec& spec);

// Start values of elements [first_element, ...) of a tensor: weights normal with standard deviation
// s = sqrt(2 / (5 width)) (c_proj: s / sqrt(2 layers)), biases 0, layer norms 1. A function of
// (seed, name, element) alone, with exact arithmetic up to one rounding: equal on all machines and
// for all shards.
void InitializeGpt2(const v1::ModelSpec& spec, uint64_t seed, absl::string_view tensor,
                    uint64_t first_element, absl::Span<float> values);

}  // namespace isthmus
