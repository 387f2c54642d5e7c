// The contributions to a round with local steps become its aggregate g (kernels/aggregate.h): a
// float32 for each element of the model, in the order of the manifest.
//
// Contributions in numbers are added up value by value; where only some components travel, those
// that were not sent count as 0. Of DCT components the rules that are linear (mean, weighted_mean,
// norm_clipped_mean) are taken before the transform back, which then happens once for a tile
// however many nodes sent; sign_of_mean is the sign after it; trimmed_mean and median need each
// node's values and transform every contribution.
//
// The bits of g depend on nothing but the contributions' chunks and their order: not on how those
// were cut into pieces, not on who came first, not on `threads`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "isthmus/v1/run_spec.pb.h"
#include "kernels/aggregate.h"
#include "kernels/number_format.h"
#include "server/contribution.h"
#include "spec/grid.h"

namespace isthmus {

struct OuterFoldSettings {
  AggregateSettings aggregate;
  WeightKind weight = WeightKind::kOne;  // weighted_mean
  ContributionSize limits;               // weighted_mean
  NumberSettings numbers;                // of contributions in numbers
};

// The number of each block's first element in the model; behind them that of all elements.
std::vector<uint64_t> BlockOffsets(const Grid& grid);

// Of a spec that is complete and has an outer step.
OuterFoldSettings OuterFoldSettingsOf(const v1::RunSpec& spec);

// One node's part in a round. Its pieces were checked, ascend and cover the model.
struct OuterContribution {
  std::vector<HeldPiece> pieces;
  ContributionSize size;  // what it says went into it
};

// Makes the aggregate of a block: g has its elements. Thread-safe.
using BlockFold = std::function<void(size_t block, absl::Span<float> g)>;

// `contributions`: one for each included node in ascending name, at least one. trimmed_mean drops
// fewer at each end where so few came that none would be left. All that is given here outlives what
// is returned. INVALID_ARGUMENT: a weight out of its limits, which the check of a submission
// refuses.
absl::StatusOr<BlockFold> MakeBlockFold(const OuterFoldSettings& settings, const Grid& grid,
                                        const std::vector<OuterContribution>& contributions,
                                        int threads);

// From each block's SquaresOf: their sum in block order; the root rounded once to float32.
float NormOf(const std::vector<double>& squares);

struct OuterAggregate {
  std::vector<float> g;
  float norm = 0.0f;  // of g
};

// All blocks. Where g is not needed as a whole, block by block is cheaper.
absl::StatusOr<OuterAggregate> FoldOuter(const OuterFoldSettings& settings, const Grid& grid,
                                         const std::vector<OuterContribution>& contributions,
                                         int threads);

}  // namespace isthmus
