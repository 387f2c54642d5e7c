// From a committed update to the parameters: decode, clip, sign, base optimizer. A replicated state
// machine (design rule 18): the same update gives the same bits on every node, whatever it holds of
// the model, with any number of threads. All methods end in it.
//
// Per chunk, with u the merged values (CODEC_KIND_DEMO: of the DCT, decoded, here or, where only
// its signs count, by the coordinator; CODEC_KIND_DENSE: as they are; RANDOM, STRIDING, SLICING: in
// the round's rows, and 0 elsewhere):
//   u <- u * clip / norm       where CODEC_KIND_DENSE is to be clipped and norm > clip
//   u <- sign(u)               where the codec says so
//   SGD     p <- p * (1 - lr * lambda);  p <- p - lr * u
//           with momentum mu: m <- mu * m;  m <- m + u, and the step is by m
//   AdamW   kernels/demo.h AdamWStep (Loshchilov & Hutter, arXiv 1711.05101); its bias corrections
//           are running products over the updates applied
//           by METHOD_RULES_PUBLISHED the decay is in u instead: u <- u + lambda * p
// where lambda is the record's weight decay times the tensor's scale (spec: decay_groups).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "isthmus/v1/run_spec.pb.h"
#include "spec/rows.h"
#include "spec/stages.h"
#include "worker/held_part.h"
#include "worker/methods/held_blocks.h"

namespace isthmus {

// What the record of a round says beside its pieces.
struct UpdateRates {
  float lr = 0;
  float weight_decay = 0;
  float norm = 0;      // of the merged values
  uint64_t round = 0;  // random signs of an outer run and rows that travel depend on it
};

// What the step carries from update to update: replicated state, as the parameters are.
struct StepState {
  // [part]: AdamW's, or the first alone: SGD's momentum; else none.
  std::vector<std::vector<float>> first_moments, second_moments;
  double beta1_power = 1, beta2_power = 1;  // running products over the updates applied
};

// INVALID_ARGUMENT: not as many values a part as are held; `what` names them.
absl::Status CheckSameSizes(absl::string_view what, const std::vector<std::vector<float>>& held,
                            const std::vector<std::vector<float>>& given);

struct StepOptions {
  v1::CodecSpec codec;          // complete
  v1::OptimizerSpec optimizer;  // complete
  uint64_t seed = 0;            // of the run
  int threads = 1;
};

class UpdateStep {
 public:
  // INVALID_ARGUMENT: a decay group that matches no tensor.
  static absl::StatusOr<UpdateStep> Make(std::shared_ptr<const HeldBlocks> held,
                                         const StepOptions& options);

  // `update`: pieces that together cover what is held; `parameters`: all parts held.
  // INVALID_ARGUMENT, before anything changes: a damaged piece, a chunk that is missing or there
  // twice, other parts, rates that are not finite or below 0.
  absl::Status Apply(const UpdateRates& rates, absl::Span<const std::string* const> update,
                     const std::vector<TensorPart<float>>& parameters);

  // The same step with the rank's own values instead of merged ones, one span a part held.
  absl::Status ApplyOwn(const UpdateRates& rates, const std::vector<std::vector<float>>& values,
                        const std::vector<TensorPart<float>>& parameters);

  // Other rates and clipping from the next update on; base and decay groups are the same.
  void TakeSpec(const v1::CodecSpec& codec, const v1::OptimizerSpec& optimizer) {
    codec_ = codec;
    optimizer_ = optimizer;
  }

  // Arrays that belong to the replicated state (spec/stages.h): one span a part of Make each.
  uint32_t arrays() const { return BaseStateArrays(optimizer_); }
  const std::vector<std::vector<float>>& first_moments() const { return state_.first_moments; }
  const std::vector<std::vector<float>>& second_moments() const { return state_.second_moments; }

  const StepState& state() const { return state_; }
  // Goes on from a state that state() gave. INVALID_ARGUMENT: moments of other parts.
  absl::Status SetState(StepState state);

 private:
  // The constants of one step.
  struct Rule {
    float lr = 0;
    float clip_scale = 1;  // 1: none
    float bias1 = 1, bias2 = 1;
    std::vector<float> decay_factor;   // [tensor]
    std::vector<float> coupled_decay;  // [tensor]: of the published SGD; none else
  };

  UpdateStep() = default;
  absl::Status CheckRates(const UpdateRates& rates) const;
  // Counts the step and computes its constants.
  Rule Begin(const UpdateRates& rates);
  void ApplyBlock(const HeldBlock& held, const Rule& rule, const RowChoice* rows,
                  const std::vector<Components>& components, absl::Span<float> part);
  // One chunk's values `u` (rows * cols, overwritten).
  void StepValues(const HeldBlock& held, const ChunkPlace& place, const Rule& rule,
                  absl::Span<float> u, absl::Span<float> part);
  void StepRow(uint32_t part_number, uint64_t first, const Rule& rule, absl::Span<const float> u,
               absl::Span<float> part);

  std::shared_ptr<const HeldBlocks> held_;
  v1::CodecSpec codec_;
  v1::OptimizerSpec optimizer_;
  std::vector<float> decay_scale_;  // [tensor]
  uint64_t seed_ = 0;
  int threads_ = 1;
  StepState state_;
};

}  // namespace isthmus
