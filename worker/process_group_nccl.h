// NCCL beside Gloo: large tensors on a GPU travel by NCCL, the few values and bytes that live on
// the host by the group that was there before. For files that are built with CUDA only.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/process_group.h"

namespace isthmus {

// A group that hands CUDA tensors to NCCL and everything else to `host`. `store` is the one that
// `host` met in; `device` the GPU of this rank. All ranks call it.
// UNAVAILABLE, with NCCL's words: the ranks do not meet on their GPUs.
absl::StatusOr<std::unique_ptr<ProcessGroup>> WithNccl(std::unique_ptr<ProcessGroup> host,
                                                       c10d::Store& store, int device);

}  // namespace isthmus
