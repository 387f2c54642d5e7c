// The worker half of method `demo` on one rank's part of the model: momentum residual, encode with
// reserve, settle, and the base step. Works on spans handed to it; knows no trainer, no network.
//
// Per round (algorithm page "One DeMo step", arXiv 2411.19870; reserve and settle are ours):
//   Encode   d <- beta*d + eta*g;  chunks -> DCT -> top-k -> pieces;  d <- d - alpha*decode(sent),
//            which stays on the pending list as sent
//   Apply    p <- decay; u <- decode(merged); sign; p <- p - eta*u        (same bits on every node)
//   Settle   included: the pending entry is dropped
//            left out:  d <- d + (product of the betas since * alpha) * decode(sent)
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "spec/grid.h"
#include "worker/held_part.h"

namespace isthmus {

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
  // No parts at all (more ranks than blocks) is well: then there are no pieces and Apply does
  // nothing.
  static absl::StatusOr<DemoShard> Make(const DemoShardOptions& options,
                                        const std::vector<TensorPart<const float>>& parts);

  // Chunks held, ascending, disjoint, merged.
  const std::vector<std::pair<uint64_t, uint64_t>>& ranges() const { return ranges_; }

  // Lines 3 to 7. `gradients`: the same parts as at Make, or a subset of them: a part that is
  // missing counts as a zero gradient (a parameter that took no part in this step). The result are
  // the pieces to send; the pending entry of `round` is made. INVALID_ARGUMENT, before anything
  // changes: a part of other shape, a value that is not finite or would bring the momentum above
  // kMomentumMax (names the tensor and element). FAILED_PRECONDITION: `round` is pending already.
  // RESOURCE_EXHAUSTED: kPendingRoundsMax rounds are.
  absl::StatusOr<std::vector<std::string>> Encode(
      uint64_t round, float eta, const std::vector<TensorPart<const float>>& gradients);

  // Drops or gives back what Encode(round) took. Unknown rounds are ignored (abstained).
  void Settle(uint64_t round, bool included);

  // Lines 2 and 9 to 11 on the parts held. `update`: pieces that together cover ranges() (pieces
  // may cover more). Empty for a void update: then only the step passes and p stays.
  // `parameters`: all parts of Make. INVALID_ARGUMENT, before p changes: a damaged piece, a chunk
  // that is missing or there twice, other parts.
  absl::Status Apply(float eta, float weight_decay, absl::Span<const std::string* const> update,
                     const std::vector<TensorPart<float>>& parameters);

  // Momentum residual of the parts, in the order of Make.
  absl::Span<const float> residual(size_t part) const { return parts_[part].residual; }
  // Rounds encoded and not settled yet.
  size_t pending_rounds() const { return pending_.size(); }

 private:
  struct Part {
    uint32_t tensor = 0;
    uint64_t first_element = 0;
    std::vector<float> residual;
  };
  // A block held here and where it lies. Chunks held are numbered through; the block's begin at
  // `first_slot`.
  struct HeldBlock {
    uint32_t block = 0;
    uint32_t part = 0;
    uint64_t offset = 0;  // of its first element in the part
    uint64_t first_slot = 0;
  };
  struct Pending {
    std::vector<std::string> pieces;  // as sent
    float decay = 1.0f;               // product of the betas applied to the residual since
  };

  DemoShard() = default;

  // The data of each part of Make, in that order; empty for one that is not given.
  template <typename T>
  absl::StatusOr<std::vector<absl::Span<T>>> MatchParts(
      const std::vector<TensorPart<T>>& given) const;
  // A chunk's first element within its part.
  uint64_t OffsetInPart(const HeldBlock& held, const ChunkPlace& place) const;
  const HeldBlock& HeldBlockOf(uint32_t block) const;

  absl::Status CheckGradients(float eta, const std::vector<absl::Span<const float>>& data) const;
  // Lines 3 to 7 for one block; `components` has a place for each chunk held.
  void EncodeBlock(const HeldBlock& held, float eta, absl::Span<const float> gradient,
                   std::vector<Components>* components);
  void GiveBack(const Pending& pending);

  // The components of every chunk held, from an update that covers them.
  absl::StatusOr<std::vector<Components>> ReadUpdate(
      absl::Span<const std::string* const> update) const;
  // Lines 2 and 9 to 11 for one block; `data` is that of its part.
  void ApplyBlock(const HeldBlock& held, float eta, float weight_decay,
                  const std::vector<Components>& components, absl::Span<float> data) const;

  DemoShardOptions options_;
  std::vector<Part> parts_;
  std::map<std::pair<uint32_t, uint64_t>, size_t> part_at_;  // (tensor, first element)
  std::vector<HeldBlock> held_;                              // ascending by block
  uint64_t slots_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> ranges_;
  std::map<uint64_t, Pending> pending_;  // by round; at most kPendingRoundsMax
};

}  // namespace isthmus
