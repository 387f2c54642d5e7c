// Rows of tokens as tensors.
#pragma once

#include "worker/model.h"
#include "worker/rank_data.h"

namespace isthmus {

// Tokens and targets of `rows`.
Batch ToBatch(const TokenRows& rows);

}  // namespace isthmus
