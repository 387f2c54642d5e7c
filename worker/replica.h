// What one rank holds of a run: its part of the model, and the run's method on that part. Built
// from the RunSpec alone (and a start file), so that all nodes begin alike.
//
// Calls that say "all ranks" are collective: every rank of the node makes them in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "isthmus/v1/coordinator.pb.h"
#include "isthmus/v1/run_spec.pb.h"
#include "worker/inner_optimizer.h"
#include "worker/methods/method.h"
#include "worker/process_group.h"
#include "worker/rank_client.h"
#include "worker/rank_data.h"
#include "worker/sharded_model.h"
#include "worker/state_copy.h"
#include "worker/train_state.h"

namespace isthmus {

struct ReplicaOptions {
  v1::RunSpec spec;               // complete
  ProcessGroup* group = nullptr;  // outlives the replica
  // Checkpoint (worker/checkpoint.h) with the start state; empty: from the spec's seed.
  std::string start_file;
  int threads = 1;
  // Of forward and backward.
  at::Device device = at::kCPU;
  // Sequences that a rank computes at a time; their gradients are added up. 0: all of its rows.
  int64_t micro_batch = 0;
};

// Whether nodes take local steps with an inner optimizer, and send how far they brought them.
bool TakesLocalSteps(const v1::RunSpec& spec);

class Replica {
 public:
  // INVALID_ARGUMENT naming file, tensor, shape: a start file whose tensors are not the model's.
  static absl::StatusOr<std::unique_ptr<Replica>> Make(const ReplicaOptions& options);

  ShardedModel& model() { return *model_; }
  // Another spec holds from the next round on (Method::TakeSpec). INVALID_ARGUMENT: its codec cuts
  // the model in another way.
  absl::Status TakeSpec(const v1::RunSpec& spec);
  // The chunks this rank holds, ascending, disjoint.
  const std::vector<std::pair<uint64_t, uint64_t>>& ranges() const { return method_->ranges(); }

  // All ranks: what the replicated state at `step` is (spec/state_hash.h); run, round and update
  // are the caller's to fill in. And its hash alone.
  absl::StatusOr<v1::SnapshotFacts> StateFacts(uint64_t step);
  absl::StatusOr<std::string> StateSha256(uint64_t step);
  // The parts of tensors that this rank holds and trains.
  std::vector<StatePart> StateParts();
  // A copy of parameters and method, with facts left empty; and the way back, with parts in the
  // order of StateParts. INVALID_ARGUMENT: of other parts.
  TrainState State();
  absl::Status SetState(TrainState state);

  // A copy of what this rank holds of the replicated state at `step`, to be hashed; its round is
  // the caller's to fill in. Not of all ranks, but after a StateFacts.
  absl::StatusOr<StateCopy> CopyForCheck(uint64_t step);
  // For tests: a bit of the first value that this rank holds of the replicated state becomes
  // another one.
  void FlipBit(int bit);
  // A copy of what this rank holds of the replicated state; its facts are the caller's to fill in.
  SnapshotParts CopyState();
  // Takes this rank's part of a snapshot in place of its own: parameters and the base optimizer's
  // state. What of the method is the node's own stays as it is. FAILED_PRECONDITION: it is of
  // another model. After any other error the replica holds parts of both.
  absl::Status FetchState(RankClient* client, uint64_t round, v1::SnapshotFacts* facts);

  // All ranks; rank 0 writes a checkpoint with every tensor, frozen ones too, to `path`.
  absl::Status Save(const std::string& path);

  // All ranks: mean loss of this rank's rows; the gradient is kept, its mean over the ranks. With
  // overlap both are those at the parameters as they look ahead (RunSpec.look).
  absl::StatusOr<double> ForwardBackward(const TokenRows& rows);
  // Of this rank's gradient: sum of squares in double, not finite when an element is not.
  double GradientSquares() const;
  // Number in the manifest of the first tensor with an element that is not finite, or -1.
  int NonFiniteTensor() const;
  // Scales the gradient by `scale` and encodes it: the pieces to send.
  absl::StatusOr<std::vector<std::string>> Encode(uint64_t round, float lr, double scale);
  void Settle(uint64_t round, bool included) { method_->Settle(round, included); }
  // What the round's contribution leaves behind (Method::keeps_own and the rest).
  const Method& method() const { return *method_; }
  // And local steps that have not come to x.
  void DropResidual();
  // Applies a committed update; none: a void one.
  absl::Status Apply(const UpdateRates& rates, const std::vector<std::string>& pieces);

  // A step between two exchanges with `scale` times the gradient, which is finite
  // (Method::StepAlone).
  absl::Status StepAlone(const UpdateRates& rates, double scale);

  // --- With local steps: the model's parameters are the node's own then. Replicated state, loss of
  // held-out data, text and what is saved are of x, which the method keeps.

  // One step of the inner optimizer with `scale` times the gradient, which is finite.
  absl::Status LocalStep(float lr, double scale);
  // Number in the manifest of the first tensor that is not finite after local steps, or not at a
  // finite distance from x; or -1.
  int NonFiniteDelta();
  absl::StatusOr<std::vector<std::string>> EncodeLocal(uint64_t round, float lr);
  // The node's parameters go back to x, and the inner optimizer begins anew.
  absl::Status DropWork();
  // Null: a method of every step.
  OuterShard* outer() { return method_->outer(); }

  // All ranks: mean loss of the held-out sequences, in nats a token.
  absl::StatusOr<double> HeldOutLoss(const RankData& data);
  // All ranks: `bytes` bytes of text that the model writes after `prompt`. Every rank computes the
  // same; temperature 0.8.
  absl::StatusOr<std::string> Sample(const std::string& prompt, int bytes);

 private:
  Replica(const ReplicaOptions& options) : options_(options) {}
  absl::Status FillStartState();
  absl::Status MakeMethods();
  absl::StatusOr<double> LossOfHeldOut(const RankData& data);
  absl::StatusOr<std::string> SampleText(const std::string& prompt, int bytes);
  absl::Status SaveTensors(const std::string& path);
  // Copies x to the model's parameters.
  void TakeShared();
  // All ranks: calls `body` with x in the place of the node's own parameters.
  absl::Status OnShared(const std::function<absl::Status()>& body);
  // All ranks: SHA-256 of a section, values that lie as the parameters do.
  absl::StatusOr<std::string> SectionOf(const std::vector<TensorPart<const float>>& parts,
                                        uint64_t step);
  absl::StatusOr<std::string> FrozenSha256();
  absl::Status CheckFacts(const v1::SnapshotFacts& facts);
  // Where each part that is held begins among the elements of a section.
  std::vector<uint64_t> PartBegins();

  ReplicaOptions options_;
  std::unique_ptr<ShardedModel> model_;
  std::unique_ptr<Method> method_;
  std::optional<InnerOptimizer> inner_;  // with local steps
  std::string frozen_sha256_;
  std::vector<std::vector<float>> settled_;  // the parameters, while others look ahead
};

}  // namespace isthmus
