// A checkpoint's model, whole, in this process: for evaluation without a run. No agent, no ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "isthmus/v1/run_spec.pb.h"
#include "worker/model.h"

namespace isthmus {

class LoadedModel {
 public:
  // As Checkpoint::Open and Checkpoint::Check. INVALID_ARGUMENT too for a file that carries no
  // configuration: the number of heads is in no tensor's shape.
  static absl::StatusOr<std::unique_ptr<LoadedModel>> Load(const std::string& path);

  const v1::ModelSpec& spec() const { return spec_; }
  // The loss of the batch, a scalar, or without targets the logits [sequences, length, vocab].
  absl::StatusOr<at::Tensor> Forward(const Batch& batch) const;

 private:
  LoadedModel() = default;

  v1::ModelSpec spec_;
  Model model_;
  std::vector<at::Tensor> tensors_;  // in the order of model_.tensors
};

}  // namespace isthmus
