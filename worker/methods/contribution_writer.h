// What the methods share in making contributions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/chunk.h"
#include "worker/methods/held_blocks.h"
#include "worker/methods/method.h"

namespace isthmus {

// Options with defaults filled in, the blocks held and the step: what every method is made of.
struct MethodParts {
  MethodOptions options;
  std::shared_ptr<const HeldBlocks> held;
  UpdateStep step;
};
absl::StatusOr<MethodParts> MakeMethodParts(const MethodOptions& options,
                                            const std::vector<TensorPart<const float>>& parts);

// FAILED_PRECONDITION or RESOURCE_EXHAUSTED as Method::Encode says.
absl::Status CheckMayEncode(uint64_t round, bool pending_already, size_t pending_rounds);

// INVALID_ARGUMENT: a piece of a restored contribution that cannot be given back, since it cannot
// be read or is of blocks that are not held.
absl::Status CheckPendingPieces(const HeldBlocks& held, const std::vector<std::string>& pieces);

// INVALID_ARGUMENT: the sentence about a value that is not finite.
absl::Status NonFiniteGradient(absl::string_view tensor, uint64_t element, float value);

// Pieces of that layout: `components` of every chunk held, by slot.
std::vector<std::string> WriteComponents(const HeldBlocks& held, v1::PayloadCodec layout,
                                         size_t piece_bytes_max,
                                         const std::vector<Components>& components);

}  // namespace isthmus
