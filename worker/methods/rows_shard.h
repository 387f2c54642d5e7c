// FlexDeMo's replicators random, striding and slicing (arXiv 2502.06728; spec/rows.h chooses the
// rows): as DemoShard, but what travels of the momentum residual d are whole rows, as they are.
//
//   Encode   d <- beta*d + eta*g;  rows of the round -> codec.numbers -> pieces;
//            d <- d - alpha*(as sent) in those rows: 0 with float32 and alpha 1
//   Settle, Apply   as DemoShard; u is the mean over the nodes in the round's rows, else 0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spec/rows.h"
#include "worker/methods/demo_shard.h"

namespace isthmus {

class RowsShard : public DemoShard {
 public:
  // See MakeMethod; the codec is one that SendsRows.
  static absl::StatusOr<RowsShard> Make(const MethodOptions& options,
                                        const std::vector<TensorPart<const float>>& parts);

 protected:
  Pending EncodeBlocks(uint64_t round, float eta,
                       const std::vector<absl::Span<const float>>& data) override;
  Decoder DecoderOf(uint64_t round) const override;

 private:
  using DemoShard::DemoShard;
  // `coded` has a place for each chunk held.
  void EncodeRows(const HeldBlock& held, float eta, absl::Span<const float> gradient,
                  const RowChoice& rows, std::vector<std::vector<char>>* coded);
};

}  // namespace isthmus
