// Small models and runs for the tests of the trainer, and threads as ranks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/v1/run_spec.pb.h"
#include "worker/model.h"
#include "worker/process_group.h"
#include "worker/rank_data.h"

namespace isthmus {

// A complete spec of a model that trains in a moment: 2 layers, width 24, 2 heads, context 16.
v1::RunSpec SmallSpec();

// A file of `bytes` bytes of made-up English in the test's temporary folder; the path.
std::string WriteText(const std::string& name, size_t bytes, uint64_t seed);

// Calls body(group) on one thread for each rank of a node, over Gloo, and joins them.
void RunRanks(int ranks, const std::function<void(ProcessGroup* group)>& body);

// Random rows of tokens below 256.
TokenRows RandomRows(int64_t sequences, int64_t length, uint64_t seed);

// Rows [rank * n, (rank + 1) * n) with n = sequences / ranks.
TokenRows RowsOfRank(const TokenRows& rows, int rank, int ranks);

}  // namespace isthmus
