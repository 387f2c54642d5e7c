// What the first rank of a node shows: one line a second at most on the terminal, one JSON object a
// round in a file for plots, and one JSON object at the end. No torch.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"

namespace isthmus {

// A committed round as this node saw it. Bytes are payload, summed over its ranks since the start.
struct RoundReport {
  uint64_t round = 0;
  uint64_t step = 0;
  double loss = 0;  // mean over the node's batch, nats a token
  std::optional<double> val_loss;
  uint64_t tokens = 0;       // of the node's batch, or of its batches in the round's local steps
  uint64_t local_steps = 1;  // that the node took for the round
  uint64_t bytes_up = 0;
  uint64_t bytes_down = 0;
  uint64_t applied = 0;  // updates since the start: more than rounds reported after a catch-up
  double wait_ms = 0;    // from the submission to the update
  bool included = false;
  // Since the start: steps merged without this node, and its sequences of them.
  uint64_t skipped_steps = 0;
  uint64_t skipped_sequences = 0;
  // With local steps: rounds whose work is carried into the next contribution now, and since the
  // start those whose work was dropped.
  uint64_t carried_rounds = 0;
  uint64_t dropped_deltas = 0;
};

struct TrainSummary {
  double start_loss = 0;       // over the held-out part, before the first step
  double val_loss = 0;         // at the end
  uint64_t tokens = 0;         // that this node's merged contributions were computed from
  uint64_t rounds = 0;         // that this node applied
  uint64_t steps = 0;          // global step at the end
  uint64_t skipped_steps = 0;  // merged without this node
  uint64_t skipped_sequences = 0;
  // With local steps: rounds after which this node's work was carried on, rounds whose work was
  // dropped, and steps that were not taken because their gradient was not finite.
  uint64_t carried_rounds = 0;
  uint64_t dropped_deltas = 0;
  uint64_t dropped_steps = 0;  // that made them
  uint64_t non_finite_steps = 0;
  uint64_t bytes_up = 0;
  uint64_t bytes_down = 0;
  uint64_t dense_bytes_per_round = 0;
  uint64_t resumed_round = 0;    // of the checkpoint that it started from; 0: the start state
  uint64_t snapshot_round = 0;   // of the last snapshot that it started from
  uint64_t replayed_rounds = 0;  // computed again for what they left in the residual
  // The residual was set to zero so often, and its 2-norms over the ranks, summed.
  uint64_t fresh_residuals = 0;
  double fresh_residual_norm = 0;
  uint64_t checkpoints = 0;      // begun
  double checkpoint_ms_max = 0;  // the longest time that one kept a round waiting
  double check_ms_max = 0;       // the same of the state's comparison with others (check_every)
  std::string state_sha256;      // 32 bytes
  double seconds = 0;
  std::string sample;  // text the model wrote; empty: none was asked for
};

struct ProgressOptions {
  uint64_t steps = 0;        // of the run
  uint64_t rounds = 0;       // of the run; 0: as many
  bool quiet = false;        // nothing on the terminal
  std::string metrics_file;  // empty: none
};

class Progress {
 public:
  // An error names the file.
  static absl::StatusOr<std::unique_ptr<Progress>> Start(const ProgressOptions& options);
  ~Progress();

  // Before the first step, or of the checkpoint of `round`.
  void StartLoss(double val_loss, uint64_t round);
  void Round(const RoundReport& report);

 private:
  explicit Progress(const ProgressOptions& options) : options_(options) {}
  // Rounds are not steps.
  bool has_local_steps() const { return options_.rounds != 0 && options_.rounds != options_.steps; }
  void Print(const RoundReport& report, int64_t now_ms);

  const ProgressOptions options_;
  MonotonicClock clock_;
  std::FILE* metrics_ = nullptr;
  int64_t started_ms_ = 0;
  // Since the last line on the terminal.
  int64_t printed_ms_ = 0;
  bool printed_ = false;
  uint64_t tokens_ = 0, rounds_ = 0;
  double wait_ms_ = 0, loss_sum_ = 0;
  uint64_t printed_up_ = 0, printed_down_ = 0, printed_applied_ = 0;
  std::optional<double> val_loss_;  // not shown yet
};

// {"val_loss": ..., "start_loss": ..., "up_bytes_per_round": ..., ...} on one line.
std::string SummaryJson(const TrainSummary& summary);

}  // namespace isthmus
