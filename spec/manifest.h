// The manifest: what nodes agree to train. Its SHA-256 is the model fingerprint.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "isthmus/v1/coordinator.pb.h"

namespace isthmus {

// INVALID_ARGUMENT (or RESOURCE_EXHAUSTED for counts and sizes) naming tensor, field, limit, value.
absl::Status ValidateManifest(const v1::Manifest& manifest);

// SHA-256 of the canonical form: for each tensor its name, dtype number, rank and sizes, each sized
// or as 8 bytes little endian. Independent of protobuf's coding. 32 bytes.
std::string Fingerprint(const v1::Manifest& manifest);

// A sentence about the first difference ("tensor 3 'h.0.ln_1.bias' has dtype bfloat16, the run has
// float32"); empty if there is none. `theirs` is the caller's.
std::string ManifestDifference(const v1::Manifest& ours, const v1::Manifest& theirs);

}  // namespace isthmus
