#include "worker/loaded_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/checkpoint.h"
#include "worker/gpt2.h"
#include "worker/torch_status.h"

namespace isthmus {

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadedModel::Load(const std::string& path) {
  ISTHMUS_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  if (!checkpoint->model().has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "' says nothing of its configuration; name the folder that holds ",
                     "it and config.json"));
  }
  auto loaded = std::unique_ptr<LoadedModel>(new LoadedModel());
  loaded->spec_ = *checkpoint->model();
  ISTHMUS_ASSIGN_OR_RETURN(loaded->model_, MakeGpt2(loaded->spec_));
  std::vector<NamedShape> shapes;
  for (const ModelTensor& tensor : loaded->model_.tensors) {
    shapes.push_back({tensor.name, tensor.shape});
  }
  ISTHMUS_RETURN_IF_ERROR(checkpoint->Check(loaded->spec_, shapes));
  for (const NamedShape& shape : shapes) {
    at::Tensor tensor = at::empty(shape.shape, at::kFloat);
    ISTHMUS_RETURN_IF_ERROR(checkpoint->Read(
        shape.name, 0,
        absl::MakeSpan(tensor.mutable_data_ptr<float>(), static_cast<size_t>(tensor.numel()))));
    loaded->tensors_.push_back(std::move(tensor));
  }
  return loaded;
}

absl::StatusOr<at::Tensor> LoadedModel::Forward(const Batch& batch) const {
  at::Tensor value;
  ISTHMUS_RETURN_IF_ERROR(CatchTorch("the forward pass", [&] {
    const at::NoGradGuard no_grad;
    for (const Stage& stage : model_.stages) {
      std::vector<at::Tensor> tensors;
      for (uint32_t tensor : stage.tensors) tensors.push_back(tensors_[tensor]);
      value = stage.run(value, tensors, batch);
    }
    return absl::OkStatus();
  }));
  return value;
}

}  // namespace isthmus
