// The worker half of a method on one rank's part of the model: what it sends of a gradient, and how
// an update reaches the parameters. Works on spans handed to it; knows no trainer, no network, so
// that any training loop can use it.
//
// A round as its user calls it:
//   Encode(round, lr, gradient)    -> the pieces to send
//   ... the update of the round comes back, with whether one's own contribution is in it ...
//   Settle(round, included)
//   Apply(rates, pieces, parameters)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "isthmus/v1/run_spec.pb.h"
#include "spec/grid.h"
#include "worker/held_part.h"
#include "worker/methods/update_step.h"

namespace isthmus {

struct MethodOptions {
  const Grid* grid = nullptr;   // outlives the method
  v1::CodecSpec codec;          // complete (CompleteRunSpec); its kind chooses the method
  v1::OptimizerSpec optimizer;  // complete
  uint64_t seed = 0;            // of the run: rows that travel may be drawn from it
  // The nodes drift apart (allow_drift): what a node does alone is part of what it holds.
  bool drifts = false;
  // The complete spec of a run with an outer optimizer, which is then all that counts.
  absl::optional<v1::RunSpec> outer;
  size_t piece_bytes_max = 0;  // 0: kPieceBytesMax
  int threads = 1;
};

// A contribution that was sent and is not settled yet.
struct PendingContribution {
  uint64_t round = 0;
  float decay = 1.0f;               // product of the betas applied to the residual since
  std::vector<std::string> pieces;  // as sent
  float lr = 0.0f;                  // of its round
  std::vector<std::string> taken;   // what left the residual, where `pieces` do not tell (SIGN1)
};

// Local steps behind a delta, and the tokens they read on this rank.
struct LocalWork {
  uint64_t steps = 0;
  uint64_t tokens = 0;
};

// What a checkpoint holds of a method. Vectors over parts are in the order of MakeMethod.
struct MethodState {
  std::vector<std::vector<float>> residual;  // none where the method keeps none
  std::vector<PendingContribution> pending;  // ascending by round
  StepState step;                            // of an outer step: its arrays and powers
  // With an outer optimizer, where the parameters hold work that is carried: x and that work.
  std::vector<std::vector<float>> x;
  LocalWork work;
  uint32_t carried_rounds = 0;
};

// The replicated state: x, then what the step carries from round to round. [section][part]
using Sections = std::vector<std::vector<absl::Span<const float>>>;

class OuterShard;

class Method {
 public:
  virtual ~Method() = default;

  // `gradients`: the parts held, or a subset of them: a part that is missing counts as a zero
  // gradient (a parameter that took no part in this step). INVALID_ARGUMENT, before anything
  // changes: a part of other shape, a value that is not finite (names tensor and element).
  // FAILED_PRECONDITION: `round` is pending already. RESOURCE_EXHAUSTED: kPendingRoundsMax rounds
  // are.
  virtual absl::StatusOr<std::vector<std::string>> Encode(
      uint64_t round, float lr, const std::vector<TensorPart<const float>>& gradients) = 0;

  // Whether what Encode(round) made was merged. Unknown rounds are ignored (abstained).
  virtual void Settle(uint64_t round, bool included) = 0;

  // Applies a committed update to all parts held. `update` is empty for a void one: then only the
  // step passes and nothing changes. INVALID_ARGUMENT, before anything changes: a damaged piece, a
  // chunk that is missing or there twice, other parts.
  virtual absl::Status Apply(const UpdateRates& rates, absl::Span<const std::string* const> update,
                             const std::vector<TensorPart<float>>& parameters) = 0;

  // A step between two exchanges (schedule.every, skip): u is the node's own gradient, finite and
  // clipped already, and what Encode keeps stays as it is. Parts as in Encode and Apply.
  absl::Status StepAlone(const UpdateRates& rates,
                         const std::vector<TensorPart<const float>>& gradients,
                         const std::vector<TensorPart<float>>& parameters);

  // A copy of all that a later process needs to go on as this one would, and the way back.
  // Gradients that `none` holds between Encode and Apply are left out: a step begins with Encode.
  // INVALID_ARGUMENT: a state of other parts.
  virtual MethodState State() const;
  virtual absl::Status SetState(MethodState state) { return step_.SetState(std::move(state.step)); }

  // The parameters are those of a committed round, from wherever they came: the run's x.
  // INVALID_ARGUMENT: other parts.
  virtual absl::Status StartAt(const std::vector<TensorPart<const float>>&) {
    return absl::OkStatus();
  }
  // Views of the replicated state, valid until the next call that changes it. `parameters`: all
  // parts, in the order of MakeMethod.
  virtual Sections StateSections(const std::vector<TensorPart<const float>>& parameters) const;
  // The step's own state: sections 1 and 2, and the running products.
  virtual StepState step_state() const { return step_.state(); }
  // Null: a method of every step.
  virtual OuterShard* outer() { return nullptr; }
  // Another spec holds from the next call on. What the method keeps stays as it is, so codec.kind,
  // whether there is feedback, outer.kind and placement must be the same; the grid has its codec
  // already (Grid::TakeCodec).
  virtual void TakeSpec(const v1::RunSpec& spec);

  // Moves `parameters` (all parts held) by `look` times the steps that this node's unsettled
  // contributions would make alone, oldest first, at the learning rates of their rounds: where the
  // next gradient is computed when updates come late (RunSpec.overlap). A function of what was
  // sent, so a restart repeats it. INVALID_ARGUMENT: other parts.
  virtual absl::Status LookAhead(float look,
                                 const std::vector<TensorPart<float>>& parameters) const {
    (void)look;
    (void)parameters;
    return absl::OkStatus();  // of methods that cannot know their step before the merge
  }
  // What was sent for a round that is not settled; null: nothing. Valid until it is.
  virtual const std::vector<std::string>* Sent(uint64_t round) const {
    (void)round;
    return nullptr;
  }

  // Whether it matters later what this node sent: a node that starts again from an older state must
  // then compute its lost contributions anew, or do without what they left behind.
  virtual bool keeps_own() const = 0;
  // Sum of squares of the residual; 0 where there is none.
  virtual double ResidualSquares() const { return 0; }
  // Forgets the residual and what is pending (design rule 12, "fresh").
  virtual void DropResidual() {}

  // Chunks held, ascending, disjoint, merged.
  const std::vector<std::pair<uint64_t, uint64_t>>& ranges() const { return held_->ranges(); }
  // The step's own state, which is replicated state as the parameters are.
  const UpdateStep& update_step() const { return step_; }

 protected:
  Method(MethodOptions options, std::shared_ptr<const HeldBlocks> held, UpdateStep step)
      : options_(std::move(options)), held_(std::move(held)), step_(std::move(step)) {}

  const Grid& grid() const { return *options_.grid; }
  int threads() const { return options_.threads; }

  MethodOptions options_;
  std::shared_ptr<const HeldBlocks> held_;
  UpdateStep step_;
};

// The method of a codec. `parts` names what is held (tensor, first_element, data.size()); the data
// is not kept. No parts at all (more ranks than blocks) is well: then there are no pieces and Apply
// does nothing. INVALID_ARGUMENT: a part that is not whole blocks, parts that overlap, a decay
// group that matches no tensor.
absl::StatusOr<std::unique_ptr<Method>> MakeMethod(
    const MethodOptions& options, const std::vector<TensorPart<const float>>& parts);

}  // namespace isthmus
