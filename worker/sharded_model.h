// A model sharded over the ranks of a node (design section 7): each rank keeps its part of every
// unit; forward and backward gather one unit at a time, the next one on its way while the present
// one computes, and gradients leave as a mean, scattered to their owners.
//
// All calls that compute or gather are made by all ranks in the same order. One thread. Errors are
// ProcessGroup's, or INTERNAL with LibTorch's message.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "spec/grid.h"
#include "worker/held_part.h"
#include "worker/model.h"
#include "worker/process_group.h"
#include "worker/sharded_unit.h"

namespace isthmus {

struct ShardedModelOptions {
  ProcessGroup* group = nullptr;  // outlives the model
  v1::CodecSpec codec;            // complete; decides where shards may be cut
  // Free a unit's full tensors between its forward and its backward. Off, they stay until the
  // parameters change: one gather a step instead of two, for models that fit.
  bool reshard_after_forward = true;
  // Where full tensors are, and forward and backward run.
  UnitPlacement placement = UnitPlacement();
};

class ShardedModel {
 public:
  // INVALID_ARGUMENT: a tensor that no stage names, tensors not in the order of their stages, or
  // what Grid::Make refuses.
  static absl::StatusOr<std::unique_ptr<ShardedModel>> Make(Model model,
                                                            const ShardedModelOptions& options);

  // The trainable tensors, which travel; numbers in parts are positions in it.
  const v1::Manifest& manifest() const { return manifest_; }
  const Grid& grid() const { return grid_; }
  // Grid::TakeCodec; references to the grid see the new one.
  absl::Status TakeCodec(const v1::CodecSpec& codec) { return grid_.TakeCodec(codec); }
  // Every tensor, frozen ones too.
  const std::vector<ModelTensor>& tensors() const { return model_.tensors; }

  // Calls fill(tensor, first_element, values) for each slice that this rank holds.
  using FillFunction =
      std::function<absl::Status(const ModelTensor&, uint64_t first_element, absl::Span<float>)>;
  absl::Status Fill(const FillFunction& fill);

  // The trainable parts of this rank. Call ParametersChanged after writing to them.
  std::vector<TensorPart<float>> parameters();
  void ParametersChanged();
  // Of the last ForwardBackward, the same parts. A tensor that took no part in the step has zeros.
  std::vector<TensorPart<const float>> gradients() const;
  void ScaleGradients(float scale);

  // Mean loss of this rank's batch; gradients() is the mean over the ranks' batches. With
  // `micro_batch` > 0 so many sequences are computed at a time, and their gradients added up in
  // order: the same mean, with less memory.
  absl::StatusOr<double> ForwardBackward(const Batch& batch, int64_t micro_batch = 0);
  // The last stage's output, without gradients.
  absl::StatusOr<at::Tensor> Forward(const Batch& batch);

  // Calls visit(tensor, full values) for every tensor, in the order of tensors(), with one unit
  // gathered at a time.
  absl::Status VisitFullTensors(
      const std::function<absl::Status(const ModelTensor&, absl::Span<const float>)>& visit);

 private:
  struct StageInput {  // where a stage finds one of its tensors
    uint32_t unit = 0;
    uint32_t index = 0;
  };
  // What forward keeps of a stage for backward.
  struct Kept {
    at::Tensor input, output;
  };

  ShardedModel(Model model, const ShardedModelOptions& options, v1::Manifest manifest, Grid grid);

  bool StageUses(size_t stage, uint32_t unit) const;
  void StartGather(size_t stage);
  absl::Status FinishGather(size_t stage);
  // Frees what stage `stage` used and stage `next` does not.
  void FreeAfter(size_t stage, size_t next);
  std::vector<at::Tensor> StageTensors(size_t stage) const;
  absl::StatusOr<at::Tensor> RunForward(const Batch& batch, std::vector<Kept>* kept);
  // Adds `share` times the gradient of what forward kept.
  absl::Status RunBackward(std::vector<Kept> kept, double share);
  absl::StatusOr<at::Tensor> StageBackward(size_t stage, const Kept& kept,
                                           const at::Tensor& grad_output);

  Model model_;
  ShardedModelOptions options_;
  v1::Manifest manifest_;
  Grid grid_;
  std::vector<int> manifest_number_;  // [tensor of the model], -1: frozen
  std::vector<std::unique_ptr<ShardedUnit>> units_;
  std::vector<std::vector<StageInput>> inputs_;  // [stage][position in Stage::tensors]
  std::vector<std::vector<uint32_t>> uses_;      // [stage] units, ascending
};

}  // namespace isthmus
