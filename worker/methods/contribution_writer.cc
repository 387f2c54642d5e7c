#include "worker/methods/contribution_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "spec/piece.h"
#include "spec/run_spec.h"

namespace isthmus {

absl::StatusOr<MethodParts> MakeMethodParts(const MethodOptions& options,
                                            const std::vector<TensorPart<const float>>& parts) {
  ISTHMUS_CHECK(options.grid != nullptr);
  ISTHMUS_RETURN_IF_ERROR(CheckCodecSpec(options.codec));
  if (options.optimizer.base() == v1::BASE_OPTIMIZER_UNSPECIFIED) {
    return absl::InvalidArgumentError("optimizer.base is missing; complete the spec first");
  }
  MethodOptions complete = options;
  if (complete.piece_bytes_max == 0) complete.piece_bytes_max = kPieceBytesMax;
  if (complete.piece_bytes_max > kPieceBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("piece_bytes_max is ", options.piece_bytes_max,
                                                   "; give at most ", kPieceBytesMax));
  }
  ISTHMUS_ASSIGN_OR_RETURN(HeldBlocks held, HeldBlocks::Make(options.grid, parts));
  const auto shared = std::make_shared<const HeldBlocks>(std::move(held));
  ISTHMUS_ASSIGN_OR_RETURN(
      UpdateStep step,
      UpdateStep::Make(shared, {options.codec, options.optimizer, options.seed, options.threads}));
  return MethodParts{std::move(complete), shared, std::move(step)};
}

absl::Status CheckMayEncode(uint64_t round, bool pending_already, size_t pending_rounds) {
  if (pending_already) {
    return absl::FailedPreconditionError(
        absl::StrCat("round ", round, " is encoded already; settle it before it is encoded again"));
  }
  if (pending_rounds < kPendingRoundsMax) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(pending_rounds,
                                                   " rounds are encoded and not settled; the "
                                                   "limit is ",
                                                   kPendingRoundsMax, ", settle the oldest"));
}

absl::Status CheckPendingPieces(const HeldBlocks& held, const std::vector<std::string>& pieces) {
  const Grid& grid = held.grid();
  for (const std::string& bytes : pieces) {
    ISTHMUS_ASSIGN_OR_RETURN(const PieceView piece, OpenPiece(grid, bytes));
    ISTHMUS_RETURN_IF_ERROR(ForEachChunk(grid, piece, [&](uint64_t chunk, const Components&) {
      if (held.Find(grid.BlockOfChunk(chunk)) != nullptr) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("a pending piece has ", grid.Describe(chunk), ", which is not held"));
    }));
  }
  return absl::OkStatus();
}

absl::Status NonFiniteGradient(absl::string_view tensor, uint64_t element, float value) {
  return absl::InvalidArgumentError(
      absl::StrCat("the gradient of '", tensor, "' is ", value, " at element ", element,
                   "; only finite gradients are encoded, abstain from this round"));
}

std::vector<std::string> WriteComponents(const HeldBlocks& held, v1::PayloadCodec layout,
                                         size_t piece_bytes_max,
                                         const std::vector<Components>& components) {
  PieceWriter writer(&held.grid(), layout, piece_bytes_max);
  for (const HeldBlock& own : held.blocks()) {
    const Block& block = held.BlockOf(own);
    for (uint64_t c = 0; c < block.chunks; ++c) {
      writer.Append(block.first_chunk + c, components[own.first_slot + c]);
    }
  }
  return writer.Finish();
}

}  // namespace isthmus
