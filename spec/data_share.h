// Which tokens of the data a node trains on, and where each sequence of a step begins. Pure
// functions of the RunSpec and the length of the data, so that ranks, restarts and sites agree.
//
//   [0 ............ training part ............ | held out)
//   [ share of node 0 | share of node 1 | ...  |
//
// Shares are contiguous and disjoint, in the order of the spec's nodes, sized by data_parts.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "isthmus/v1/run_spec.pb.h"

namespace isthmus {

// Tokens [begin, end) of the data.
struct TokenRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t tokens() const { return end - begin; }
};

// The last heldout_permille thousandths, rounded down, of `total_tokens`.
TokenRange HeldOutRange(const v1::RunSpec& spec, uint64_t total_tokens);

// The share of node `node_index` (see NodeIndex) in the training part.
TokenRange NodeShare(const v1::RunSpec& spec, int node_index, uint64_t total_tokens);

// INVALID_ARGUMENT when the held-out part or any node's share is shorter than context + 1 tokens
// (one sequence with its last target), naming node, length and need. Call it before SampleOffset.
absl::Status CheckDataShares(const v1::RunSpec& spec, uint64_t total_tokens);

// First token of sequence `i`, 0 <= i < sequences_per_node, of node `node_index` at global step
// `step`: a hash of (seed, share, step, i), so that any rank finds any sequence without state. The
// sequence and its last target, context + 1 tokens, lie within the share.
uint64_t SampleOffset(const v1::RunSpec& spec, int node_index, uint64_t total_tokens, uint64_t step,
                      uint32_t i);

}  // namespace isthmus
