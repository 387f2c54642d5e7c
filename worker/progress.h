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
  uint64_t tokens = 0;  // of the node's batch
  uint64_t bytes_up = 0;
  uint64_t bytes_down = 0;
  uint64_t applied = 0;  // updates since the start: more than rounds reported after a catch-up
  double wait_ms = 0;    // from the submission to the update
  bool included = false;
  // Since the start: steps merged without this node, and its sequences of them.
  uint64_t skipped_steps = 0;
  uint64_t skipped_sequences = 0;
};

struct TrainSummary {
  double start_loss = 0;       // over the held-out part, before the first step
  double val_loss = 0;         // at the end
  uint64_t tokens = 0;         // that this node's merged contributions were computed from
  uint64_t rounds = 0;         // that this node applied
  uint64_t steps = 0;          // global step at the end
  uint64_t skipped_steps = 0;  // merged without this node
  uint64_t skipped_sequences = 0;
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
  std::string state_sha256;      // 32 bytes
  double seconds = 0;
  std::string sample;  // text the model wrote; empty: none was asked for
};

class Progress {
 public:
  // Writes nothing to a terminal when `quiet`; `metrics_file` may be empty. An error names the
  // file.
  static absl::StatusOr<std::unique_ptr<Progress>> Start(uint64_t steps, bool quiet,
                                                         const std::string& metrics_file);
  ~Progress();

  // Before the first step, or of the checkpoint of `round`.
  void StartLoss(double val_loss, uint64_t round);
  void Round(const RoundReport& report);

 private:
  Progress() = default;
  void Print(const RoundReport& report, int64_t now_ms);

  MonotonicClock clock_;
  uint64_t steps_ = 0;
  bool quiet_ = false;
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
