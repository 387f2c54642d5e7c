#include "worker/batch.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace isthmus {

Batch ToBatch(const TokenRows& rows) {
  Batch batch;
  batch.tokens = at::empty({rows.sequences, rows.length}, at::kLong);
  batch.targets = at::empty({rows.sequences, rows.length}, at::kLong);
  int64_t* tokens = batch.tokens.mutable_data_ptr<int64_t>();
  int64_t* targets = batch.targets.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < rows.sequences; ++row) {
    const uint32_t* first = rows.tokens.data() + row * (rows.length + 1);
    std::copy(first, first + rows.length, tokens + row * rows.length);
    std::copy(first + 1, first + rows.length + 1, targets + row * rows.length);
  }
  return batch;
}

}  // namespace isthmus
