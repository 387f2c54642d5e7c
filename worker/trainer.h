// The training loop of one rank. Everything that decides numbers comes from the RunSpec; the
// options here say where data and files lie.
//
// A round as it happens (Trainer::Run):
//   agree with the node's other ranks on the round that is open
//   this rank's rows of the step -> loss, gradient (mean over the ranks)
//   clip by the node's gradient norm; nothing finite: the node abstains and names the tensor
//   momentum, DCT, top-k -> pieces -> agent
//   the committed update comes back -> settle -> the same step on every node -> acknowledge
//   now and then: a checkpoint
// With overlap d the update that is waited for is that of d rounds before, and the gradient is
// computed where the node's own contributions under way would lead (RunSpec.look). What came of the
// last d rounds is waited for at the end.
// With local steps (stages.proto, SOURCE_PARAM_DELTA; trainer_local.cc) the node takes the round's
// steps with its inner optimizer and sends how far they brought it from x; x after the update
// replaces its parameters, the inner optimizer's state stays. A round that closes meanwhile is
// applied at the next step boundary, and what was not submitted goes into the next contribution
// (design rule 11), which is sent when it has the steps of a round: so that a node which is slower
// than rounds close takes part in some of them, and not in none.
//
// Recovery (design rule 12). From a checkpoint of round r the ranks join with r, and the updates
// after it come on the watch.
//   replay   deterministic mode, where no round goes on without this node: each update's
//            contribution is computed anew, and settled if its digest is the one that was merged
//   fresh    else: the residual is set to zero, unless nothing was missed
// With overlap a checkpoint of round r also has what was sent for the d rounds after it. With
// replay that is sent again as it was, with fresh it is given up with the residual.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "worker/process_group.h"
#include "worker/progress.h"
#include "worker/rank_client.h"
#include "worker/rank_data.h"
#include "worker/replica.h"
#include "worker/skipped_steps.h"
#include "worker/train_checkpoints.h"

namespace isthmus {

struct TrainerOptions {
  ProcessGroup* group = nullptr;  // both outlive the trainer
  RankClient* client = nullptr;
  std::string data;          // files and patterns, comma-separated (TokenDataOptions::files)
  std::string heldout_data;  // of held-out tokens, the same on all nodes; empty: the end of `data`
  std::string start_file;    // a checkpoint; empty: start state from the RunSpec's seed
  // Written by rank 0; empty: not at all.
  std::string save_file;
  std::string summary_file;
  std::string metrics_file;
  // Folder for checkpoints to start again from, one a rank or one for all; empty: none.
  std::string checkpoint_dir;
  uint64_t checkpoint_every = 0;  // rounds; with a folder at least 1
  int sample_bytes = 0;
  std::string sample_prompt = "The ";
  int threads = 1;
  // Of forward and backward.
  at::Device device = at::kCPU;
  int64_t micro_batch = 0;  // sequences computed at a time; 0: all of a rank's
  bool quiet = false;       // nothing on stdout
  // For tests of what heals a node whose state differs: after this round a bit of it is flipped,
  // once. 0: never.
  uint64_t test_flip_round = 0;
  std::function<bool()> stop;  // asked between steps; true ends Run with CANCELLED
};

// Whether the files named can be read, and (by rank 0) written. Needs no network, so that a wrong
// path is told before anything is waited for. An error names the file.
absl::Status CheckTrainerFiles(const TrainerOptions& options, int rank);

class Trainer {
 public:
  // Fetches the spec, opens the data, builds model and start state. Nothing is joined yet.
  static absl::StatusOr<std::unique_ptr<Trainer>> Make(const TrainerOptions& options);

  // Joins, trains until the run is finished, writes what was asked for, leaves. The caller leaves
  // for it when it fails. Errors are those of the parts, with a sentence for the operator;
  // CANCELLED after `stop`.
  absl::Status Run();

  const TrainSummary& summary() const { return summary_; }
  Replica& replica() { return *replica_; }

 private:
  explicit Trainer(const TrainerOptions& options) : options_(options) {}
  static void UseDeterministicKernels();

  // Of all ranks: takes up the newest checkpoint, if there is one.
  absl::Status OpenCheckpoints();
  absl::Status Resume();
  TrainFacts Facts() const;
  absl::Status Join();
  // trainer_snapshot.cc
  absl::Status JoinRun();
  absl::Status UnlessBehind(const absl::Status& status);
  absl::Status StartFromSnapshot(const absl::Status& why);
  absl::Status TakeFetched();
  absl::Status DoSnapshotDuty(v1::SnapshotDuty duty);
  absl::Status CheckState();
  // The next round that all ranks of the node contribute to; nullopt: finished. With replay every
  // round is one, also those that have closed. Round 0: there is none yet, but the update of one
  // that was contributed to is here (overlap).
  absl::StatusOr<std::optional<RankClient::Next>> NextRound();
  absl::StatusOr<std::optional<RankClient::Next>> NextToReplay();
  // The node's gradient of a step, kept in the model. Of all ranks.
  struct NodeGradient {
    double loss = 0;         // mean over the ranks
    double scale = 1;        // what clips it
    std::string non_finite;  // a tensor of it that is not finite; empty: none
    bool closed = false;     // some rank has the update of the round that is open, or lost it
    bool stopped = false;
  };
  // `merged`: an exchange of the round; else a step of the node's own, which clips here always.
  absl::StatusOr<NodeGradient> ComputeGradient(uint64_t step, bool merged);
  absl::Status Contribute(const RankClient::Next& next);
  // The same for a round whose contribution came with a checkpoint.
  void SendAgain(const RankClient::Next& next);
  // Of all ranks: waits for the updates up to `round`, and does after each what is due then. Those
  // of a node that is to fetch a snapshot are left.
  absl::Status TakeUpdates(uint64_t round);
  // The last round whose update is waited for after a contribution to this one.
  uint64_t LastToTake(const v1::RoundOpened& opened) const;
  absl::Status AfterUpdate(bool* behind);
  // The spec that holds in a round, where an operator has given the run another one.
  absl::Status TakeRevised(uint64_t round);
  void Send(const RankClient::Next& next, absl::StatusOr<std::vector<std::string>> pieces);
  // trainer_local.cc
  absl::Status ContributeLocal(const RankClient::Next& next);
  // The steps before an exchange at `step` (schedule.every, skip), each with its own gradient.
  absl::Status StepAlone(const v1::RoundOpened& opened);
  absl::Status TakeLocalStep(uint64_t step, const NodeGradient& gradient);
  absl::Status SendLocal(const RankClient::Next& next, const std::string& non_finite);
  void TellNonFinite(uint64_t step, const std::string& tensor);
  // Counts what became of local steps when the update of a round was applied.
  void CountLocal(const v1::UpdateRecord& record);
  // Applies updates, in order, up to the one of `round`.
  absl::Status ApplyThrough(uint64_t round);
  // The same for the next round, which was contributed to.
  absl::Status ApplyContributed();
  absl::Status Apply(const RankClient::Update& update);
  // Whether what this node computed for the round was merged. Of all ranks.
  absl::StatusOr<bool> WasMerged(const RankClient::Update& update);
  // What a checkpoint's residual is worth when the first update after it has come.
  void JudgeRestoredResidual(const RankClient::Update& update);
  // The digest of this node's contribution that the record lists; empty: none.
  std::string MergedDigest(const v1::UpdateRecord& record) const;
  void DropResidual(const std::string& why);
  // Counts and logs it, by rank 0, with the squares of all ranks; 0: nothing was dropped.
  void TellDropped(double squares);
  // Of all ranks, when all have applied the same round: begins a checkpoint when one is due.
  absl::Status Checkpoint();
  // Tells the agent of the newest that is on disk.
  void TellCheckpoint();
  // Logs, by rank 0, what was skipped since it last did; now and then only unless `at_once`.
  void TellSkipped(bool at_once);
  // Of all ranks, after a round's update.
  struct Agreement {
    bool behind = false;      // some rank lost the round: it is to fetch a snapshot
    v1::SnapshotDuty duty{};  // of all of them
  };
  // The bytes of all ranks so far, after the update: what was sent for it is counted.
  absl::StatusOr<Agreement> CountBytes(v1::SnapshotDuty duty, RoundReport* report);
  absl::Status Evaluate(RoundReport* report);
  absl::Status Finish();

  TrainerOptions options_;
  MonotonicClock clock_;
  v1::RunSpec spec_;
  std::string node_;
  std::unique_ptr<RankData> data_;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<Progress> progress_;  // of rank 0
  uint64_t update_bytes_ = 0;  // of updates; they cross the WAN once for all ranks of a node
  uint64_t applied_round_ = 0;
  std::string applied_sha256_;  // of that round's record
  uint64_t step_ = 0;
  uint64_t local_round_ = 0;    // the last one that local steps were taken for
  uint64_t local_steps_ = 0;    // of that round, so far
  uint64_t unsent_steps_ = 0;   // of rounds that closed before they were all taken
  uint64_t round_began_ = 0;    // step before the last update
  Work sent_;                   // what the last contribution was made from
  uint64_t contributed_ = 0;    // the last round that was contributed to
  uint64_t sent_through_ = 0;   // rounds up to it were, before a restart (replay)
  uint64_t encoded_round_ = 0;  // the last one that Encode was called for
  // Hashes of this rank's blocks of contributions that are not settled (replay), by round.
  std::map<uint64_t, std::string> encoded_blocks_;
  bool replays_ = false;            // computes for every round, exactly
  bool residual_restored_ = false;  // from a checkpoint, and no update has come since
  double dropped_squares_ = 0;      // of this rank's residual, since it was last told

  std::unique_ptr<TrainCheckpoints> checkpoints_;
  std::string start_state_sha256_, group_id_;
  uint64_t attempt_ = 0;
  uint64_t checkpoint_round_ = 0;   // the last that was begun
  uint64_t told_checkpoint_ = 0;    // to the agent
  absl::Status behind_;             // why this rank is to fetch a snapshot
  v1::SnapshotFacts start_facts_;   // of the snapshot that was fetched last
  v1::SnapshotDuty joined_duty_{};  // with the state joined with
  SkippedSteps skipped_;
  std::optional<int64_t> told_skipped_ms_;
  RoundReport report_;  // of the update that was applied last
  // Of rounds that were contributed to, until their update is applied.
  struct UnderWay {
    double loss = 0;
    uint64_t tokens = 0;
    v1::SnapshotDuty duty{};
  };
  std::map<uint64_t, UnderWay> under_way_;
  double waited_ms_ = 0;  // since the last update
  TrainSummary summary_;
  int64_t started_ms_ = 0;
  bool test_flipped_ = false;
  // The last member: its thread ends before what it tells goes.
  StateHashing state_hashing_{
      [this](std::vector<v1::StatePart> parts) { options_.client->ReportParts(std::move(parts)); }};
};

// Threads that LibTorch computes one operation with, in the whole process.
void SetTorchThreads(int threads);

}  // namespace isthmus
