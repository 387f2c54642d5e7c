// The optimizer of a node's local steps, on one rank's part of the model: SGD, AdamW or Lion. Its
// state belongs to the node alone and is kept over rounds; what a round's update does to the
// parameters leaves it as it is. Works on spans; knows no trainer and no network.
//
//   ISTHMUS_ASSIGN_OR_RETURN(InnerOptimizer inner, InnerOptimizer::Make(options, parts));
//   inner.Step(LearningRate(spec, step), gradients, parameters);    // for each local step
//
// Per element, with lambda the weight decay times the tensor's scale (spec: decay_groups):
//   SGD     p <- p * (1 - lr * lambda);  p <- p - lr * g
//   AdamW   kernels/demo.h AdamWStep (arXiv 1711.05101); its bias corrections are running products
//           over the steps taken
//   Lion    c, m by kernels/outer.h LionDirection (arXiv 2302.06675);
//           p <- p * (1 - lr * lambda);  p <- p - lr * sign(c)
// Elements do not meet, so ranks and threads change no bit.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "isthmus/v1/run_spec.pb.h"
#include "kernels/outer.h"
#include "spec/grid.h"
#include "worker/held_part.h"
#include "worker/methods/update_step.h"

namespace isthmus {

struct InnerOptimizerOptions {
  const Grid* grid = nullptr;   // names the tensors; read by Make only
  v1::OptimizerSpec optimizer;  // complete (CompleteRunSpec)
  int threads = 1;
};

class InnerOptimizer {
 public:
  // `parts` names what is held (tensor, data.size()); the data is not kept. None at all is well.
  // INVALID_ARGUMENT: a decay group that matches no tensor, a tensor that the grid has not.
  static absl::StatusOr<InnerOptimizer> Make(const InnerOptimizerOptions& options,
                                             const std::vector<TensorPart<const float>>& parts);

  // One step with finite gradients. Both lists name the parts of Make, in its order.
  // INVALID_ARGUMENT, before anything changes: other parts, a rate that is not finite or below 0.
  absl::Status Step(float lr, const std::vector<TensorPart<const float>>& gradients,
                    const std::vector<TensorPart<float>>& parameters);

  // Other rates from the next step on; base and decay groups are the same.
  void TakeRates(const v1::OptimizerSpec& optimizer);

  // Moments (Lion: m is the first one) by part and powers, for a checkpoint, and the way back.
  // INVALID_ARGUMENT: moments of other parts.
  const StepState& state() const { return state_; }
  absl::Status SetState(StepState state);
  // As Make left it.
  void Reset();

 private:
  // Elements [begin, end) of a part, what one thread takes at a time.
  struct Piece {
    size_t part = 0;
    size_t begin = 0;
    size_t end = 0;
  };
  struct Part {
    uint32_t tensor = 0;
    size_t elements = 0;
    float decay_scale = 1;
  };

  InnerOptimizer() = default;
  absl::Status CheckStep(float lr, const std::vector<TensorPart<const float>>& gradients,
                         const std::vector<TensorPart<float>>& parameters) const;
  void StepPiece(const AdamWRule& rule, const Piece& piece, absl::Span<const float> g,
                 absl::Span<float> p);

  v1::OptimizerSpec optimizer_;
  LionRule lion_;
  std::vector<Part> parts_;
  std::vector<Piece> pieces_;
  int threads_ = 1;
  StepState state_;
};

}  // namespace isthmus
