// One unit of the model on one rank: its own part, kept always, and the full tensors, which exist
// only between Gather and Free.
//
//   own [padded]  --all-gather-->  full tensors (views of one flat storage)
//   full gradients  --reduce-scatter, mean-->  own gradient [padded]
//
// Free gives the flat storage's memory back but keeps the storage itself, as fully sharded training
// in PyTorch does: what autograd saved in forward still points into it, and sees the same values
// again after the next Gather. With one rank on the CPU the full tensors are views of the own part,
// and nothing is moved. The own parts are on the host, the full tensors on the unit's device.
// Errors and threads: as ProcessGroup.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/model.h"
#include "worker/process_group.h"
#include "worker/shard_plan.h"

namespace isthmus {

// Where full tensors are.
struct UnitPlacement {
  at::Device device = at::kCPU;
  // They have memory of their own with one rank too. Always so on another device than the CPU;
  // tests of that path set it.
  bool apart = false;
};

class ShardedUnit {
 public:
  // `tensors` are those of the model, that the plan's numbers mean. `group` outlives the unit.
  ShardedUnit(UnitPlan plan, const std::vector<ModelTensor>& tensors, ProcessGroup* group,
              const UnitPlacement& placement = UnitPlacement());

  const UnitPlan& plan() const { return plan_; }
  // The slices of this rank, in order; their offsets point into own() and own_gradient().
  const std::vector<ShardSlice>& slices() const { return plan_.slices[group_->rank()]; }
  float* own();
  const float* own_gradient() const;

  // Starts to gather unless the full tensors are there or on their way.
  void StartGather();
  // The full tensors are there when it returns OK.
  absl::Status FinishGather();
  void Free();
  // Full tensor `index` of the unit, a leaf that requires grad unless it is frozen. Its values are
  // there between FinishGather and Free.
  const at::Tensor& full(size_t index) const { return full_[index]; }

  void ZeroGradient();
  void ScaleGradient(float scale);
  // Starts to add the mean over the ranks of `gradients` (one a tensor of the unit; undefined
  // counts as zeros) to the own gradient. Sums are added in the order of the calls.
  absl::Status StartAddGradients(const std::vector<at::Tensor>& gradients);
  absl::Status FinishAddGradients();

 private:
  enum class State { kFreed, kGathering, kGathered };

  UnitPlan plan_;
  ProcessGroup* group_;
  const at::TensorOptions there_;  // float32 on the device of the full tensors
  const bool views_own_;           // the full tensors are views of the own part
  State state_ = State::kFreed;
  at::Tensor own_;
  at::Tensor own_gradient_;
  at::Tensor flat_;                     // whose storage is filled and emptied
  std::vector<at::Tensor> full_;        // what stages get
  std::vector<at::Tensor> full_write_;  // the same memory, flat, unseen by autograd
  std::vector<size_t> local_;           // [tensor number - lowest of the unit] index in the unit
  at::Tensor sent_, gathered_;          // own part, padded parts of all ranks, while gathering
  std::unique_ptr<PendingCollective> gathering_;
  at::Tensor scattering_full_, scattering_part_;
  std::unique_ptr<PendingCollective> scattering_;

  size_t Local(uint32_t tensor) const { return local_[tensor - plan_.tensors.front()]; }
};

}  // namespace isthmus
