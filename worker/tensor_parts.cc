#include "worker/tensor_parts.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

absl::Status Check(const Grid& grid, uint32_t tensor, uint64_t first_element,
                   const at::Tensor& values) {
  if (tensor >= grid.tensors()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor number ", tensor, " is not below ", grid.tensors()));
  }
  const std::string& name = grid.tensor_name(tensor);
  if (!values.defined()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", name, "' is undefined; leave it out if it has no gradient in this step"));
  }
  if (values.layout() != at::kStrided) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", name, "' is sparse or packed; only strided tensors are taken"));
  }
  if (values.scalar_type() != at::kFloat) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", name, "' has dtype ",
                                                   c10::toString(values.scalar_type()),
                                                   "; only float32 is taken"));
  }
  if (!values.device().is_cpu()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", name, "' is on device ", values.device().str(), "; copy it to the CPU first"));
  }
  const uint64_t elements = static_cast<uint64_t>(values.numel());
  const uint64_t whole = grid.tensor_elements(tensor);
  if (first_element > whole || elements > whole - first_element) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", name, "' has ", whole, " elements; ",
                                                   elements, " from element ", first_element,
                                                   " on do not fit"));
  }
  return absl::OkStatus();
}

// Whether each element has memory of its own: with dimensions by ascending stride, every step goes
// beyond all that the smaller dimensions reach. True for all slices and permutations of a
// contiguous tensor; LibTorch's own check gives up on slices.
bool ElementsAreDistinct(const at::Tensor& values) {
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
  for (int64_t i = 0; i < values.dim(); ++i) {
    if (values.size(i) == 0) return true;
    if (values.size(i) > 1) dimensions.push_back({values.stride(i), values.size(i)});
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t reach = 0;
  for (const auto& [stride, size] : dimensions) {
    if (stride <= reach) return false;
    reach += stride * (size - 1);
  }
  return true;
}

}  // namespace

TensorPart<const float> ReadableTensor::part() const {
  return {tensor_, first_element_,
          absl::MakeConstSpan(values_.const_data_ptr<float>(), values_.numel())};
}

TensorPart<float> UpdatableTensor::part() {
  return {tensor_, first_element_,
          absl::MakeSpan(values_.mutable_data_ptr<float>(), values_.numel())};
}

void UpdatableTensor::WriteBack() {
  if (values_.is_alias_of(target_)) return;
  at::NoGradGuard no_grad;
  target_.copy_(values_.view(target_.sizes()));
}

absl::StatusOr<ReadableTensor> TensorForReading(const Grid& grid, uint32_t tensor,
                                                uint64_t first_element, const at::Tensor& values) {
  ISTHMUS_RETURN_IF_ERROR(Check(grid, tensor, first_element, values));
  ReadableTensor readable;
  readable.tensor_ = tensor;
  readable.first_element_ = first_element;
  readable.values_ = values.detach().contiguous();
  return readable;
}

absl::StatusOr<UpdatableTensor> TensorForUpdate(const Grid& grid, uint32_t tensor,
                                                uint64_t first_element, const at::Tensor& values) {
  ISTHMUS_RETURN_IF_ERROR(Check(grid, tensor, first_element, values));
  if (!ElementsAreDistinct(values)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", grid.tensor_name(tensor),
        "' has elements that share memory (expanded); make it contiguous before it is updated"));
  }
  UpdatableTensor updatable;
  updatable.tensor_ = tensor;
  updatable.first_element_ = first_element;
  updatable.target_ = values.detach();
  updatable.values_ = updatable.target_.contiguous();
  return updatable;
}

}  // namespace isthmus
