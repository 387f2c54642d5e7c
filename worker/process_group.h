// Collectives between the ranks of one node, as sharding needs them, behind c10d's Backend: Gloo on
// the host, and NCCL for tensors on a GPU (worker/process_group_nccl.h). Every rank makes the same
// calls in the same order, from one thread. A node of one rank gets an implementation that copies.
//
//   auto group = StartProcessGroup({.rank = 0, .ranks = 2, .master_addr = "127.0.0.1",
//                                   .master_port = 29500});
//   auto pending = (*group)->AllGather(part, full);
//   ... compute ...
//   ISTHMUS_RETURN_IF_ERROR(pending->Wait());
//
// Errors: UNAVAILABLE when a rank is gone or does not answer in time; the sentence says what to do.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace isthmus {

// A collective under way. Its tensors are not to be touched before Wait returns.
class PendingCollective {
 public:
  virtual ~PendingCollective() = default;
  virtual absl::Status Wait() = 0;
};

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // full[ranks * n] <- the part[n] of each rank, in rank order. Both contiguous, of one type.
  virtual std::unique_ptr<PendingCollective> AllGather(at::Tensor part, at::Tensor full) = 0;
  // part[n] <- mean over the ranks of their full[rank * n ...].
  virtual std::unique_ptr<PendingCollective> ReduceScatterMean(at::Tensor full,
                                                               at::Tensor part) = 0;
  // In place, a few values; all ranks get the same bits. Not finite values pass on to the result.
  virtual absl::Status AllReduceSum(absl::Span<double> values) = 0;
  virtual absl::Status AllReduceMax(absl::Span<double> values) = 0;
  // In place. Each byte is non-zero on one rank at most: joins what the ranks have.
  virtual absl::Status JoinBytes(std::string* bytes) = 0;
  // From rank 0 to all; the sizes are equal.
  virtual absl::Status Broadcast(std::string* bytes) = 0;
  virtual absl::Status Barrier() = 0;
};

// Puts another backend on top of a group that has met in `store`. Called by all ranks.
using GroupUpgrade = std::function<absl::StatusOr<std::unique_ptr<ProcessGroup>>(
    std::unique_ptr<ProcessGroup> group, c10d::Store& store)>;

struct ProcessGroupOptions {
  int rank = 0;
  int ranks = 1;
  std::string master_addr;  // host where rank 0 listens for the others; unused with one rank
  int master_port = 0;
  GroupUpgrade upgrade = nullptr;  // none; not called with one rank
};

// INVALID_ARGUMENT naming the field: rank, ranks or port out of range.
absl::Status CheckProcessGroupOptions(const ProcessGroupOptions& options);

// Checks the options, then waits until all ranks are there.
// UNAVAILABLE: address in use, or not all ranks came within kRendezvousTimeoutMs.
absl::StatusOr<std::unique_ptr<ProcessGroup>> StartProcessGroup(const ProcessGroupOptions& options);

// All ranks of a group inside this process, each to be used by a thread of its own.
absl::StatusOr<std::vector<std::unique_ptr<ProcessGroup>>> StartThreadProcessGroups(int ranks);

}  // namespace isthmus
