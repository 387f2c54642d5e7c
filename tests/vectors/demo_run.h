// A run of a method without processes: the nodes' shards and the coordinator's fold, in memory.
// Contributions and updates are the bytes that would travel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/contribution.h"
#include "spec/grid.h"
#include "tests/vectors/chunked.h"
#include "worker/methods/demo_shard.h"
#include "worker/methods/method.h"

namespace isthmus {

struct DemoRunOptions {
  std::vector<NamedShape> tensors;
  v1::RunSpec spec;  // complete; one learning rate for all steps
};

// `nodes` nodes, and the rest of what a spec must have; the learning rate is constant.
v1::RunSpec RecordedSpec(size_t nodes, double lr, uint64_t steps);

class DemoRun {
 public:
  // `start`: the elements of each tensor, the same on all nodes.
  static absl::StatusOr<std::unique_ptr<DemoRun>> Start(const DemoRunOptions& options,
                                                        std::vector<std::vector<float>> start);

  // One step, and a round in which every node takes part where the schedule says so;
  // gradients[node][tensor].
  absl::Status Step(const std::vector<std::vector<absl::Span<const float>>>& gradients);

  const Grid& grid() const { return *grid_; }
  absl::Span<const float> parameters(size_t node, size_t tensor) const {
    return nodes_[node].parameters[tensor];
  }
  // Of methods with a momentum only.
  absl::Span<const float> residual(size_t node, size_t tensor) const {
    return nodes_[node].demo == nullptr ? absl::Span<const float>()
                                        : nodes_[node].demo->residual(tensor);
  }
  // Of the last step: the merged update before sign and base step (without an exchange node 0's own
  // gradient), and what a node sent.
  absl::Span<const float> update(size_t tensor) const { return update_[tensor]; }
  const Components& sent(size_t node, uint64_t chunk) const { return nodes_[node].sent[chunk]; }
  // Of the last step: rows of a tensor that travelled, where rows do.
  std::vector<uint32_t> rows(uint32_t tensor) const;

 private:
  struct Node {
    std::unique_ptr<Method> method;
    const DemoShard* demo = nullptr;  // `method`, if it is one
    std::vector<std::vector<float>> parameters;
    std::vector<Components> sent;  // by chunk
  };

  DemoRun() = default;
  absl::StatusOr<std::vector<HeldPiece>> Contribute(
      size_t node, const std::vector<absl::Span<const float>>& gradients);
  absl::Status KeepUpdate(const std::vector<std::string>& pieces);
  absl::Status StepAlone(const std::vector<std::vector<absl::Span<const float>>>& gradients);

  DemoRunOptions options_;
  std::shared_ptr<const Grid> grid_;
  std::vector<Node> nodes_;
  std::vector<std::vector<float>> update_;
  uint64_t step_ = 0;
  uint64_t round_ = 0;
};

}  // namespace isthmus
