#include "worker/sharded_unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

// A view of the same memory with a version counter of its own: writing through it does not count
// as a change of what autograd saved. Right here, since a Gather brings the saved values back.
at::Tensor Unwatched(const at::Tensor& tensor) { return at::Tensor(tensor.variable_data()); }

}  // namespace

ShardedUnit::ShardedUnit(UnitPlan plan, const std::vector<ModelTensor>& tensors,
                         ProcessGroup* group, const UnitPlacement& placement)
    : plan_(std::move(plan)),
      group_(group),
      there_(at::TensorOptions(at::kFloat).device(placement.device)),
      views_own_(group->ranks() == 1 && !placement.apart && placement.device.is_cpu()) {
  at::NoGradGuard no_grad;
  const int64_t padded = static_cast<int64_t>(plan_.padded_elements);
  own_ = at::zeros({padded}, at::kFloat);
  own_gradient_ = at::zeros({padded}, at::kFloat);
  flat_ = views_own_ ? own_ : at::empty({static_cast<int64_t>(plan_.elements)}, there_);

  ISTHMUS_CHECK(std::is_sorted(plan_.tensors.begin(), plan_.tensors.end()));
  local_.resize(plan_.tensors.back() - plan_.tensors.front() + 1);
  int64_t offset = 0;
  for (size_t i = 0; i < plan_.tensors.size(); ++i) {
    const ModelTensor& tensor = tensors[plan_.tensors[i]];
    local_[plan_.tensors[i] - plan_.tensors.front()] = i;
    int64_t elements = 1;
    for (int64_t size : tensor.shape) elements *= size;
    at::Tensor piece = flat_.narrow(0, offset, elements);
    full_write_.push_back(Unwatched(piece));
    full_.push_back(Unwatched(piece.view(tensor.shape)).requires_grad_(!tensor.frozen));
    offset += elements;
  }
  ISTHMUS_CHECK(offset == static_cast<int64_t>(plan_.elements));
  state_ = State::kGathered;
  Free();
}

float* ShardedUnit::own() { return own_.mutable_data_ptr<float>(); }

const float* ShardedUnit::own_gradient() const { return own_gradient_.const_data_ptr<float>(); }

void ShardedUnit::StartGather() {
  if (state_ != State::kFreed) return;
  const int64_t padded = static_cast<int64_t>(plan_.padded_elements);
  sent_ = own_.to(there_);  // itself, where that is the CPU
  gathered_ = at::empty({padded * group_->ranks()}, there_);
  gathering_ = group_->AllGather(sent_, gathered_);
  state_ = State::kGathering;
}

absl::Status ShardedUnit::FinishGather() {
  StartGather();
  if (state_ == State::kGathered) return absl::OkStatus();
  ISTHMUS_RETURN_IF_ERROR(std::exchange(gathering_, nullptr)->Wait());
  at::NoGradGuard no_grad;
  const at::Storage& storage = flat_.storage();
  const size_t bytes = plan_.elements * sizeof(float);
  storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes));
  storage.set_nbytes(bytes);
  for (int rank = 0; rank < group_->ranks(); ++rank) {
    const int64_t begin = rank * static_cast<int64_t>(plan_.padded_elements);
    for (const ShardSlice& slice : plan_.slices[rank]) {
      const int64_t elements = static_cast<int64_t>(slice.elements);
      full_write_[Local(slice.tensor)]
          .narrow(0, static_cast<int64_t>(slice.first_element), elements)
          .copy_(gathered_.narrow(0, begin + static_cast<int64_t>(slice.offset), elements));
    }
  }
  sent_ = gathered_ = at::Tensor();
  state_ = State::kGathered;
  return absl::OkStatus();
}

void ShardedUnit::Free() {
  if (views_own_ || state_ != State::kGathered) return;
  const at::Storage& storage = flat_.storage();
  storage.set_data_ptr_noswap(storage.allocator()->allocate(0));
  storage.set_nbytes(0);
  state_ = State::kFreed;
}

void ShardedUnit::ZeroGradient() {
  at::NoGradGuard no_grad;
  own_gradient_.zero_();
}

void ShardedUnit::ScaleGradient(float scale) {
  at::NoGradGuard no_grad;
  own_gradient_.mul_(scale);
}

absl::Status ShardedUnit::StartAddGradients(const std::vector<at::Tensor>& gradients) {
  ISTHMUS_RETURN_IF_ERROR(FinishAddGradients());
  at::NoGradGuard no_grad;
  const bool alone = views_own_;
  const int64_t padded = static_cast<int64_t>(plan_.padded_elements);
  at::Tensor target = own_gradient_;
  if (!alone) target = scattering_full_ = at::empty({padded * group_->ranks()}, there_);
  for (int rank = 0; rank < group_->ranks(); ++rank) {
    for (const ShardSlice& slice : plan_.slices[rank]) {
      const int64_t elements = static_cast<int64_t>(slice.elements);
      at::Tensor place =
          target.narrow(0, rank * padded + static_cast<int64_t>(slice.offset), elements);
      const at::Tensor& gradient = gradients[Local(slice.tensor)];
      if (!gradient.defined()) {
        if (!alone) place.zero_();
        continue;
      }
      const at::Tensor values =
          gradient.reshape({-1}).narrow(0, static_cast<int64_t>(slice.first_element), elements);
      if (alone) {
        place.add_(values);
      } else {
        place.copy_(values);
      }
    }
    const int64_t held = static_cast<int64_t>(plan_.rank_elements[rank]);
    if (!alone) target.narrow(0, rank * padded + held, padded - held).zero_();
  }
  if (alone || padded == 0) return absl::OkStatus();
  scattering_part_ = at::empty({padded}, there_);
  scattering_ = group_->ReduceScatterMean(scattering_full_, scattering_part_);
  return absl::OkStatus();
}

absl::Status ShardedUnit::FinishAddGradients() {
  if (scattering_ == nullptr) return absl::OkStatus();
  ISTHMUS_RETURN_IF_ERROR(std::exchange(scattering_, nullptr)->Wait());
  at::NoGradGuard no_grad;
  own_gradient_.add_(scattering_part_.to(at::kCPU));
  scattering_full_ = scattering_part_ = at::Tensor();
  return absl::OkStatus();
}

}  // namespace isthmus
