#include "worker/sharded_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "worker/shard_plan.h"
#include "worker/torch_status.h"

namespace isthmus {
namespace {

v1::Manifest ManifestOf(const std::vector<ModelTensor>& tensors, bool with_frozen) {
  v1::Manifest manifest;
  for (const ModelTensor& tensor : tensors) {
    if (tensor.frozen && !with_frozen) continue;
    v1::TensorSpec* spec = manifest.add_tensors();
    spec->set_name(tensor.name);
    spec->set_dtype(v1::DTYPE_FLOAT32);
    for (int64_t size : tensor.shape) spec->add_shape(static_cast<uint64_t>(size));
  }
  return manifest;
}

// Itself where it is there already, or undefined.
at::Tensor OnDevice(const at::Tensor& tensor, at::Device device) {
  return tensor.defined() ? tensor.to(device) : tensor;
}

// One unit for each stage that is the first to name some tensor; (*owner)[tensor] is its unit.
absl::StatusOr<std::vector<UnitTensors>> UnitsOf(const Model& model, std::vector<int>* owner) {
  std::vector<UnitTensors> units;
  owner->assign(model.tensors.size(), -1);
  for (const Stage& stage : model.stages) {
    UnitTensors unit;
    unit.name = stage.name;
    for (uint32_t tensor : stage.tensors) {
      ISTHMUS_CHECK(tensor < model.tensors.size());
      if ((*owner)[tensor] >= 0) continue;
      (*owner)[tensor] = static_cast<int>(units.size());
      unit.tensors.push_back(tensor);
    }
    std::sort(unit.tensors.begin(), unit.tensors.end());
    if (!unit.tensors.empty()) units.push_back(std::move(unit));
  }
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    if ((*owner)[i] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", model.tensors[i].name, "' belongs to no stage of the model"));
    }
    if (i > 0 && (*owner)[i] < (*owner)[i - 1]) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", model.tensors[i].name, "' comes after a later stage's tensors"));
    }
  }
  return units;
}

}  // namespace

ShardedModel::ShardedModel(Model model, const ShardedModelOptions& options, v1::Manifest manifest,
                           Grid grid)
    : model_(std::move(model)),
      options_(options),
      manifest_(std::move(manifest)),
      grid_(std::move(grid)) {}

absl::StatusOr<std::unique_ptr<ShardedModel>> ShardedModel::Make(
    Model model, const ShardedModelOptions& options) {
  v1::Manifest manifest = ManifestOf(model.tensors, false);
  ISTHMUS_ASSIGN_OR_RETURN(Grid grid, Grid::Make(manifest, options.codec));
  // Frozen tensors are cut like the others, on a grid that no other node needs to know.
  ISTHMUS_ASSIGN_OR_RETURN(Grid all, Grid::Make(ManifestOf(model.tensors, true), options.codec));
  std::vector<int> owner;
  ISTHMUS_ASSIGN_OR_RETURN(std::vector<UnitTensors> units, UnitsOf(model, &owner));
  ISTHMUS_ASSIGN_OR_RETURN(
      std::vector<UnitPlan> plan,
      MakeShardPlan(all, units, static_cast<uint32_t>(options.group->ranks())));

  auto made = std::unique_ptr<ShardedModel>(
      new ShardedModel(std::move(model), options, std::move(manifest), std::move(grid)));
  int number = 0;
  for (const ModelTensor& tensor : made->model_.tensors) {
    made->manifest_number_.push_back(tensor.frozen ? -1 : number++);
  }
  for (UnitPlan& unit : plan) {
    made->units_.push_back(std::make_unique<ShardedUnit>(std::move(unit), made->model_.tensors,
                                                         options.group, options.placement));
  }
  for (const Stage& stage : made->model_.stages) {
    std::vector<StageInput> inputs;
    std::vector<uint32_t> uses;
    for (uint32_t tensor : stage.tensors) {
      const uint32_t unit = static_cast<uint32_t>(owner[tensor]);
      const std::vector<uint32_t>& list = made->units_[unit]->plan().tensors;
      const auto place = std::find(list.begin(), list.end(), tensor);
      inputs.push_back({unit, static_cast<uint32_t>(place - list.begin())});
      if (std::find(uses.begin(), uses.end(), unit) == uses.end()) uses.push_back(unit);
    }
    std::sort(uses.begin(), uses.end());
    made->inputs_.push_back(std::move(inputs));
    made->uses_.push_back(std::move(uses));
  }
  return made;
}

absl::Status ShardedModel::Fill(const FillFunction& fill) {
  for (const auto& unit : units_) {
    for (const ShardSlice& slice : unit->slices()) {
      ISTHMUS_RETURN_IF_ERROR(fill(model_.tensors[slice.tensor], slice.first_element,
                                   absl::MakeSpan(unit->own() + slice.offset, slice.elements)));
    }
  }
  ParametersChanged();
  return absl::OkStatus();
}

std::vector<TensorPart<float>> ShardedModel::parameters() {
  std::vector<TensorPart<float>> parts;
  for (const auto& unit : units_) {
    for (const ShardSlice& slice : unit->slices()) {
      const int number = manifest_number_[slice.tensor];
      if (number < 0) continue;
      parts.push_back({static_cast<uint32_t>(number), slice.first_element,
                       absl::MakeSpan(unit->own() + slice.offset, slice.elements)});
    }
  }
  return parts;
}

void ShardedModel::ParametersChanged() {
  for (const auto& unit : units_) unit->Free();
}

std::vector<TensorPart<const float>> ShardedModel::gradients() const {
  std::vector<TensorPart<const float>> parts;
  for (const auto& unit : units_) {
    for (const ShardSlice& slice : unit->slices()) {
      const int number = manifest_number_[slice.tensor];
      if (number < 0) continue;
      parts.push_back({static_cast<uint32_t>(number), slice.first_element,
                       absl::MakeSpan(unit->own_gradient() + slice.offset, slice.elements)});
    }
  }
  return parts;
}

void ShardedModel::ScaleGradients(float scale) {
  for (const auto& unit : units_) unit->ScaleGradient(scale);
}

bool ShardedModel::StageUses(size_t stage, uint32_t unit) const {
  return std::binary_search(uses_[stage].begin(), uses_[stage].end(), unit);
}

void ShardedModel::StartGather(size_t stage) {
  for (uint32_t unit : uses_[stage]) units_[unit]->StartGather();
}

absl::Status ShardedModel::FinishGather(size_t stage) {
  for (uint32_t unit : uses_[stage]) ISTHMUS_RETURN_IF_ERROR(units_[unit]->FinishGather());
  return absl::OkStatus();
}

void ShardedModel::FreeAfter(size_t stage, size_t next) {
  if (!options_.reshard_after_forward) return;
  for (uint32_t unit : uses_[stage]) {
    if (!StageUses(next, unit)) units_[unit]->Free();
  }
}

std::vector<at::Tensor> ShardedModel::StageTensors(size_t stage) const {
  std::vector<at::Tensor> tensors;
  for (const StageInput& input : inputs_[stage]) {
    tensors.push_back(units_[input.unit]->full(input.index));
  }
  return tensors;
}

absl::StatusOr<at::Tensor> ShardedModel::RunForward(const Batch& batch, std::vector<Kept>* kept) {
  const size_t last = model_.stages.size() - 1;
  const Batch there = {OnDevice(batch.tokens, options_.placement.device),
                       OnDevice(batch.targets, options_.placement.device)};
  at::Tensor activation;
  for (size_t stage = 0; stage <= last; ++stage) {
    ISTHMUS_RETURN_IF_ERROR(FinishGather(stage));
    if (stage < last) StartGather(stage + 1);
    // Cut from the stage before: backward calls each stage's own piece of the graph.
    if (kept != nullptr && stage > 0) activation = activation.detach().requires_grad_(true);
    at::Tensor output = model_.stages[stage].run(activation, StageTensors(stage), there);
    if (kept != nullptr) kept->push_back({activation, output});
    activation = output;
    if (stage < last) FreeAfter(stage, stage + 1);
  }
  return activation;
}

absl::StatusOr<at::Tensor> ShardedModel::StageBackward(size_t stage, const Kept& kept,
                                                       const at::Tensor& grad_output) {
  // Distinct trainable tensors of the stage, and its input in front.
  torch::autograd::variable_list wanted;
  if (kept.input.defined()) wanted.push_back(kept.input);
  const size_t first_tensor = wanted.size();
  std::vector<StageInput> places;
  for (const StageInput& place : inputs_[stage]) {
    const at::Tensor& tensor = units_[place.unit]->full(place.index);
    if (!tensor.requires_grad()) continue;
    wanted.push_back(tensor);
    places.push_back(place);
  }
  torch::autograd::variable_list found(wanted.size());
  if (kept.output.requires_grad() && !wanted.empty() && grad_output.defined()) {
    found = torch::autograd::grad({kept.output}, wanted, {grad_output}, std::nullopt, false,
                                  /*allow_unused=*/true);
  }
  // Every rank scatters the same units, whatever took part on it.
  for (uint32_t unit : uses_[stage]) {
    std::vector<at::Tensor> gradients(units_[unit]->plan().tensors.size());
    bool trainable = false;
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i].unit != unit) continue;
      gradients[places[i].index] = found[first_tensor + i];
      trainable = true;
    }
    if (trainable) ISTHMUS_RETURN_IF_ERROR(units_[unit]->StartAddGradients(gradients));
  }
  return kept.input.defined() ? found.front() : at::Tensor();
}

absl::Status ShardedModel::RunBackward(std::vector<Kept> kept, double share) {
  // The last stage's output is the loss.
  at::Tensor grad_output = at::full_like(kept.back().output, share);
  for (size_t stage = model_.stages.size(); stage-- > 0;) {
    ISTHMUS_RETURN_IF_ERROR(FinishGather(stage));
    if (stage > 0) StartGather(stage - 1);
    ISTHMUS_ASSIGN_OR_RETURN(grad_output, StageBackward(stage, kept[stage], grad_output));
    kept.pop_back();
    if (stage > 0) FreeAfter(stage, stage - 1);
    // At most two stages' gradients are under way: this one's and the one's before.
    if (stage + 1 < model_.stages.size()) {
      for (uint32_t unit : uses_[stage + 1]) {
        if (StageUses(stage, unit)) continue;
        ISTHMUS_RETURN_IF_ERROR(units_[unit]->FinishAddGradients());
      }
    }
  }
  for (const auto& unit : units_) ISTHMUS_RETURN_IF_ERROR(unit->FinishAddGradients());
  return absl::OkStatus();
}

absl::StatusOr<double> ShardedModel::ForwardBackward(const Batch& batch, int64_t micro_batch) {
  double loss = 0;
  ISTHMUS_RETURN_IF_ERROR(CatchTorch("forward and backward", [&]() -> absl::Status {
    for (const auto& unit : units_) unit->ZeroGradient();
    const int64_t sequences = batch.tokens.size(0);
    const int64_t at_once = micro_batch > 0 ? std::min(micro_batch, sequences) : sequences;
    for (int64_t first = 0; first < sequences; first += at_once) {
      const int64_t count = std::min(at_once, sequences - first);
      const Batch part = {batch.tokens.narrow(0, first, count),
                          batch.targets.narrow(0, first, count)};
      const double share = static_cast<double>(count) / static_cast<double>(sequences);
      std::vector<Kept> kept;
      ISTHMUS_ASSIGN_OR_RETURN(const at::Tensor output, RunForward(part, &kept));
      loss += share * output.item<double>();
      ISTHMUS_RETURN_IF_ERROR(RunBackward(std::move(kept), share));
    }
    return absl::OkStatus();
  }));
  return loss;
}

absl::StatusOr<at::Tensor> ShardedModel::Forward(const Batch& batch) {
  at::Tensor output;
  ISTHMUS_RETURN_IF_ERROR(CatchTorch("forward", [&]() -> absl::Status {
    at::NoGradGuard no_grad;
    ISTHMUS_ASSIGN_OR_RETURN(output, RunForward(batch, nullptr));
    output = OnDevice(output, at::kCPU);
    return absl::OkStatus();
  }));
  return output;
}

absl::Status ShardedModel::VisitFullTensors(
    const std::function<absl::Status(const ModelTensor&, absl::Span<const float>)>& visit) {
  return CatchTorch("gathering the model", [&]() -> absl::Status {
    for (const auto& unit : units_) {
      ISTHMUS_RETURN_IF_ERROR(unit->FinishGather());
      for (size_t i = 0; i < unit->plan().tensors.size(); ++i) {
        const at::Tensor full = OnDevice(unit->full(i), at::kCPU);
        ISTHMUS_RETURN_IF_ERROR(
            visit(model_.tensors[unit->plan().tensors[i]],
                  absl::MakeConstSpan(full.const_data_ptr<float>(), full.numel())));
      }
      if (options_.reshard_after_forward) unit->Free();
    }
    return absl::OkStatus();
  });
}

}  // namespace isthmus
