// The worker half of method `demo` on one rank's part of the model: momentum residual, encode with
// reserve, settle, and the base step. Works on spans handed to it; knows no trainer, no network.
//
// Per round (algorithm page "One DeMo step", arXiv 2411.19870; reserve and settle are ours):
//   Encode   d <- beta*d + eta*g;  chunks -> DCT -> top-k -> pieces;  d <- d - alpha*decode(sent),
//            which stays on the pending list as sent
//   Apply    p <- decay; u <- decode(merged); sign; p <- p - eta*u        (same bits on every node)
//   Settle   included: the pending entry is dropped
//            left out:  d <- d + (product of the betas since) * alpha*decode(sent)
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "spec/grid.h"

namespace isthmus {

// A part of one tensor held here: whole blocks. `data` covers `elements` elements from
// `first_element` of the row-major unsharded tensor on; both on block boundaries of the grid.
template <typename T>
struct TensorPart {
  uint32_t tensor = 0;
  uint64_t first_element = 0;
  absl::Span<T> data;
};

struct DemoShardOptions {
  const Grid* grid = nullptr;  // outlives the shard
  v1::CodecSpec codec;         // complete (CompleteRunSpec)
  size_t piece_bytes_max = 0;  // 0: kPieceBytesMax
  int threads = 1;
};

class DemoShard {
 public:
  // `parts` names what is held (tensor, first_element, data.size()); the data is not kept.
  // INVALID_ARGUMENT when a part is not whole blocks, or parts overlap.
  static absl::StatusOr<DemoShard> Make(const DemoShardOptions& options,
                                        const std::vector<TensorPart<const float>>& parts);

  // Chunks held, ascending, disjoint, merged.
  const std::vector<std::pair<uint64_t, uint64_t>>& ranges() const;

  // Lines 3 to 7. `gradients`: the same parts as at Make, or a subset of them: a part that is
  // missing counts as a zero gradient (a parameter that took no part in this step). The result are
  // the pieces to send; the pending entry of `round` is made. INVALID_ARGUMENT, before anything
  // changes: a part of other shape, or a value that is not finite (names the tensor and element).
  // FAILED_PRECONDITION: `round` is pending already.
  absl::StatusOr<std::vector<std::string>> Encode(
      uint64_t round, float eta, const std::vector<TensorPart<const float>>& gradients);

  // Drops or gives back what Encode(round) took. Unknown rounds are ignored (abstained).
  void Settle(uint64_t round, bool included);

  // Lines 2 and 9 to 11 on the parts held. `update`: pieces that together cover ranges() (pieces
  // may cover more). Empty for a void update: then only the step passes and p stays.
  // INVALID_ARGUMENT, before p changes: damaged piece or a chunk that is missing.
  absl::Status Apply(float eta, float weight_decay, absl::Span<const std::string* const> update,
                     const std::vector<TensorPart<float>>& parameters);

  // Momentum residual of the parts, in the order of Make; for checkpoints and tests.
  absl::Span<const float> residual(size_t part) const;
  absl::Span<float> mutable_residual(size_t part);
  size_t pending_rounds() const;
  // 2-norm of the residual, for progress and for the report when it is lost.
  double ResidualNorm() const;
};

}  // namespace isthmus
