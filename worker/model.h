// What a model is to the trainer: named tensors, and stages that are plain functions of their
// input and of full tensors. Sharding, gathering and gradients are not a stage's business.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace isthmus {

struct ModelTensor {
  std::string name;
  std::vector<int64_t> shape;
  bool frozen = false;  // sharded and gathered like the others, but not trained and not exchanged
};

// What one forward pass reads.
struct Batch {
  at::Tensor tokens;   // int64 [sequences, length]
  at::Tensor targets;  // the same shape; undefined: the last stage returns logits, not the loss
};

// The forward computation of one stage. `input` is the output of the stage before (undefined for
// the first one), `tensors` are full ones, in the order of Stage::tensors. The last stage returns
// the mean loss, a scalar. Must not keep or change what it is given.
using StageFunction = std::function<at::Tensor(
    const at::Tensor& input, const std::vector<at::Tensor>& tensors, const Batch& batch)>;

struct Stage {
  std::string name;
  // Numbers into Model::tensors. A tensor belongs to the first stage that names it; a later stage
  // that names it too is tied to it. What a stage owns is its unit: gathered and freed at once.
  std::vector<uint32_t> tensors;
  StageFunction run;
};

struct Model {
  std::vector<ModelTensor> tensors;  // each is named by at least one stage
  std::vector<Stage> stages;
};

}  // namespace isthmus
