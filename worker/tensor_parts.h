// From a user's at::Tensor to the parts that codec and methods work on, and back. Any strided
// float32 tensor on the CPU is right, transposed, sliced and channels-last ones included: what is
// not contiguous is copied, and written back after a change. What cannot be right is refused.
//
//   ISTHMUS_ASSIGN_OR_RETURN(auto gradient, TensorForReading(grid, 3, 0, grad));
//   shard.Encode(round, eta, {gradient.part()});
//   ISTHMUS_ASSIGN_OR_RETURN(auto parameter, TensorForUpdate(grid, 3, 0, p));
//   shard.Apply(eta, decay, update, {parameter.part()});
//   parameter.WriteBack();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "spec/grid.h"
#include "worker/held_part.h"

namespace isthmus {

// A tensor's values in row-major order, to be read. Valid as long as the object.
class ReadableTensor {
 public:
  TensorPart<const float> part() const;

 private:
  friend absl::StatusOr<ReadableTensor> TensorForReading(const Grid&, uint32_t, uint64_t,
                                                         const at::Tensor&);
  uint32_t tensor_ = 0;
  uint64_t first_element_ = 0;
  at::Tensor values_;
};

// A tensor to be changed. What part() points at is the tensor itself or a copy of it; WriteBack
// makes the tensor equal to it.
class UpdatableTensor {
 public:
  TensorPart<float> part();
  void WriteBack();

 private:
  friend absl::StatusOr<UpdatableTensor> TensorForUpdate(const Grid&, uint32_t, uint64_t,
                                                         const at::Tensor&);
  uint32_t tensor_ = 0;
  uint64_t first_element_ = 0;
  at::Tensor target_, values_;
};

// `values` in row-major order are elements [first_element, first_element + numel) of tensor
// `tensor` of the grid. INVALID_ARGUMENT naming tensor, field and value: undefined, not float32,
// not on the CPU, not strided, outside of the tensor.
absl::StatusOr<ReadableTensor> TensorForReading(const Grid& grid, uint32_t tensor,
                                                uint64_t first_element, const at::Tensor& values);

// Also INVALID_ARGUMENT: elements that share memory (an expanded tensor), since writing to one
// would change others.
absl::StatusOr<UpdatableTensor> TensorForUpdate(const Grid& grid, uint32_t tensor,
                                                uint64_t first_element, const at::Tensor& values);

}  // namespace isthmus
