// The worker half of a run with an outer optimizer (stages.proto): what a node sends of its local
// steps, and how an update reaches x, which the run shares, and the node's own parameters.
//
//   d = x - local                                (SOURCE_PARAM_DELTA; docs/method.md)
//   Encode   without feedback: what travels is C(d)
//            with:  e <- decay * e + d;  C(e) travels;  e <- e - gain * deq(C(e)), pending as sent
//   Settle   included: the pending entry is dropped
//            left out, with feedback:  e <- e + (product of the decays since * gain) * deq(sent)
//   Apply    x <- x', in the form of UpdateFormOf;  local <- x'
//            left out, without feedback, or work that was not sent:  local <- x' + (local - x),
//            so that the next delta, measured from x', holds it; at most carry_rounds in a row,
//            then local <- x' and it is counted as dropped
//
// SOURCE_UPDATE_SIGN sends the sign of c = beta1 * m + (1 - beta1) * g of the gradient g instead,
// and keeps m <- beta2 * m + (1 - beta2) * g to itself; `local` is x throughout.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/outer.h"
#include "spec/stages.h"
#include "worker/methods/method.h"

namespace isthmus {

class OuterShard : public Method {
 public:
  // `options.outer` holds the run's spec. See MakeMethod. `parts` hold x of round 0.
  static absl::StatusOr<OuterShard> Make(const MethodOptions& options,
                                         const std::vector<TensorPart<const float>>& parts);

  // SOURCE_PARAM_DELTA: `values` are the local parameters, all parts; else gradients, as Method
  // says. INVALID_ARGUMENT, before anything changes: a value that is not finite, or a delta beyond
  // kNumberMax (names tensor and element).
  absl::StatusOr<std::vector<std::string>> Encode(
      uint64_t round, float lr, const std::vector<TensorPart<const float>>& values) override;
  void Settle(uint64_t round, bool included) override;
  // `parameters` hold the local ones, and then the new local ones.
  absl::Status Apply(const UpdateRates& rates, absl::Span<const std::string* const> update,
                     const std::vector<TensorPart<float>>& parameters) override;

  MethodState State() const override;
  absl::Status SetState(MethodState state) override;
  absl::Status StartAt(const std::vector<TensorPart<const float>>& parameters) override;
  Sections StateSections(const std::vector<TensorPart<const float>>& parameters) const override;
  StepState step_state() const override;
  bool keeps_own() const override { return true; }
  double ResidualSquares() const override;
  void DropResidual() override;
  OuterShard* outer() override { return this; }
  void TakeSpec(const v1::RunSpec& spec) override;

  // Local steps were made: what the next contribution, or what is carried, stands for.
  void AddWork(const LocalWork& work);
  // Of the delta that the parameters hold now: what a contribution's header says.
  const LocalWork& work() const { return work_; }
  // local <- x: what the parameters hold beyond it is dropped, and counted if it was work.
  absl::Status DropWork(const std::vector<TensorPart<float>>& parameters);
  // Rounds in a row that left this node's work out.
  uint32_t carried_rounds() const { return carried_rounds_; }
  // Work that was dropped since Make, and in how many deltas.
  const LocalWork& dropped() const { return dropped_; }
  uint64_t dropped_deltas() const { return dropped_deltas_; }

 private:
  using Values = std::vector<std::vector<float>>;  // [part]

  struct Pending {
    std::vector<std::string> pieces;  // as sent
    float decay = 1.0f;               // product of the decays applied to the residual since
  };
  // What becomes of the work that the parameters hold when an update comes.
  enum class Fate { kDone, kCarried, kIntoResidual };

  using Method::Method;
  bool has_feedback() const { return options_.outer->codec().has_feedback(); }
  bool sends_delta() const { return options_.outer->source() == v1::SOURCE_PARAM_DELTA; }
  absl::Status CheckDelta(const std::vector<absl::Span<const float>>& data) const;
  // What of one block is to be coded, as it lies in the part, in `block`.
  void Source(const HeldBlock& held, absl::Span<const float> values, absl::Span<float> block);
  // Codes one block's values, with feedback or without; `coded` has a place for each chunk held.
  void EncodeBlock(const HeldBlock& held, absl::Span<const float> values,
                   std::vector<std::vector<char>>* coded);
  void EncodeTiles(const HeldBlock& held, absl::Span<float> block,
                   std::vector<std::vector<char>>* coded);
  void GiveBack(const Pending& pending);
  Fate FateOf(uint64_t round);
  void Count(Fate fate);
  void ApplyBlock(const HeldBlock& held, const OuterRound& rule, Fate fate,
                  const std::vector<Components>& components, absl::Span<float> local);
  // One row of a chunk: `first` counts in the part.
  void StepRow(const HeldBlock& held, const OuterRound& rule, uint64_t first,
               absl::Span<const float> values);

  Values x_;          // what the run shares
  Values arrays_[2];  // of the outer step; none where the coordinator hosts it
  OuterPowers powers_;
  Values residual_;                      // e, or m of SOURCE_UPDATE_SIGN; none without either
  std::map<uint64_t, Pending> pending_;  // by round; at most kPendingRoundsMax
  uint64_t settled_round_ = 0;           // the last one that Settle was told of, and how
  bool settled_included_ = false;
  LocalWork work_, dropped_;
  uint64_t dropped_deltas_ = 0;
  uint32_t carried_rounds_ = 0;
};

}  // namespace isthmus
