#include "worker/trainer.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/whole_file.h"
#include "spec/manifest.h"
#include "spec/rounds.h"
#include "spec/run_spec.h"
#include "transport/errors.h"
#include "worker/checkpoint.h"
#include "worker/contribution_digest.h"

namespace isthmus {
namespace {

// A node that is too slow for every round need not say so at every round.
constexpr int64_t kTellSkippedEveryMs = 10000;

void AddSetting(v1::RankInfo* info, const char* name, std::string value) {
  v1::Setting* setting = info->add_settings();
  setting->set_name(name);
  setting->set_value(std::move(value));
}

// What a terminal can show of it: other bytes as '?'.
std::string Printable(std::string text) {
  for (char& c : text) {
    if (c != '\n' && (c < ' ' || c > '~')) c = '?';
  }
  return text;
}

}  // namespace

absl::Status CheckTrainerFiles(const TrainerOptions& options, int rank) {
  ISTHMUS_RETURN_IF_ERROR(CheckDataFiles(options.data, "--data"));
  if (!options.heldout_data.empty()) {
    ISTHMUS_RETURN_IF_ERROR(CheckDataFiles(options.heldout_data, "--heldout_data"));
  }
  if (!options.start_file.empty()) {
    ISTHMUS_RETURN_IF_ERROR(Checkpoint::Open(options.start_file).status());
  }
  if (!options.checkpoint_dir.empty()) {
    ISTHMUS_RETURN_IF_ERROR(CheckCheckpointFolder(options.checkpoint_dir));
  }
  if (rank != 0) return absl::OkStatus();
  if (!options.save_file.empty()) ISTHMUS_RETURN_IF_ERROR(CheckCanSave(options.save_file));
  std::vector<std::string> files = {options.summary_file};
  // Opened in place, so it may be a pipe or device that is there.
  if (access(options.metrics_file.c_str(), W_OK) != 0) files.push_back(options.metrics_file);
  for (const std::string& file : files) {
    if (!file.empty()) ISTHMUS_RETURN_IF_ERROR(CheckCanWrite(file));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Make(const TrainerOptions& options) {
  auto trainer = std::unique_ptr<Trainer>(new Trainer(options));
  ISTHMUS_ASSIGN_OR_RETURN(const v1::JoinRunResponse known, options.client->FetchSpec());
  trainer->spec_ = known.spec();
  trainer->node_ = known.node();
  if (options.sample_bytes > 0 && trainer->spec_.data().format() != v1::TOKEN_FORMAT_BYTES) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sample is ", options.sample_bytes, ", but data.format of the run is ",
                     v1::TokenFormat_Name(trainer->spec_.data().format()),
                     "; text can be made only where tokens are bytes"));
  }
  RankDataOptions files;
  files.spec = trainer->spec_;
  files.node = trainer->node_;
  files.rank = options.group->rank();
  files.ranks = options.group->ranks();
  files.files = options.data;
  files.heldout_files = options.heldout_data;
  ISTHMUS_ASSIGN_OR_RETURN(RankData data, RankData::Open(files));
  trainer->data_ = std::make_unique<RankData>(std::move(data));
  if (options.group->rank() == 0) {
    ISTHMUS_ASSIGN_OR_RETURN(trainer->progress_,
                             Progress::Start({trainer->spec_.steps(), Rounds(trainer->spec_),
                                              options.quiet, options.metrics_file}));
  }
  ReplicaOptions replica;
  replica.spec = trainer->spec_;
  replica.group = options.group;
  replica.start_file = options.start_file;
  replica.threads = options.threads;
  replica.device = options.device;
  replica.micro_batch = options.micro_batch;
  ISTHMUS_ASSIGN_OR_RETURN(trainer->replica_, Replica::Make(replica));
  trainer->summary_.dense_bytes_per_round =
      trainer->replica_->model().grid().elements() * sizeof(float);
  return trainer;
}

absl::Status Trainer::Run() {
  started_ms_ = clock_.NowMs();
  replays_ = spec_.deterministic() && replica_->method().keeps_own();
  if (spec_.deterministic()) UseDeterministicKernels();
  ISTHMUS_RETURN_IF_ERROR(OpenCheckpoints());
  ISTHMUS_ASSIGN_OR_RETURN(summary_.start_loss, replica_->HeldOutLoss(*data_));
  if (progress_ != nullptr) progress_->StartLoss(summary_.start_loss, applied_round_);
  ISTHMUS_RETURN_IF_ERROR(JoinRun());
  for (;;) {
    const int64_t asked_ms = clock_.NowMs();
    const absl::StatusOr<std::optional<RankClient::Next>> found =
        replays_ ? NextToReplay() : NextRound();
    if (contributed_ > 0) waited_ms_ += static_cast<double>(clock_.NowMs() - asked_ms);
    if (AsksForSnapshot(found.status())) {
      ISTHMUS_RETURN_IF_ERROR(StartFromSnapshot(found.status()));
      ISTHMUS_RETURN_IF_ERROR(JoinRun());
      continue;
    }
    ISTHMUS_ASSIGN_OR_RETURN(const std::optional<RankClient::Next> next, found);
    if (!next.has_value()) break;
    uint64_t take = applied_round_ + 1;
    if (next->opened.round() != 0) {
      ISTHMUS_RETURN_IF_ERROR(Contribute(*next));
      take = LastToTake(next->opened);
    }
    ISTHMUS_RETURN_IF_ERROR(TakeUpdates(take));
  }
  return Finish();
}

// After the last round's contribution nothing is left to compute.
uint64_t Trainer::LastToTake(const v1::RoundOpened& opened) const {
  if (opened.step() == spec_.steps()) return opened.round();
  return opened.round() - std::min<uint64_t>(opened.round(), spec_.overlap());
}

absl::Status Trainer::TakeUpdates(uint64_t round) {
  bool behind = false;
  while (applied_round_ < round && !behind) {
    const int64_t began_ms = clock_.NowMs();
    ISTHMUS_RETURN_IF_ERROR(UnlessBehind(ApplyContributed()));
    waited_ms_ += static_cast<double>(clock_.NowMs() - began_ms);
    ISTHMUS_RETURN_IF_ERROR(AfterUpdate(&behind));  // else NextRound says so again
  }
  return absl::OkStatus();
}

absl::Status Trainer::AfterUpdate(bool* behind) {
  report_.wait_ms = std::exchange(waited_ms_, 0);
  UnderWay of_round;
  if (const auto found = under_way_.find(applied_round_); found != under_way_.end()) {
    of_round = found->second;
  }
  under_way_.erase(under_way_.begin(), under_way_.upper_bound(applied_round_));
  if (!TakesLocalSteps(spec_)) {
    report_.loss = of_round.loss;
    report_.tokens = of_round.tokens;
  }
  ISTHMUS_ASSIGN_OR_RETURN(const Agreement agreed, CountBytes(of_round.duty, &report_));
  *behind = agreed.behind;
  if (agreed.behind) return absl::OkStatus();
  ISTHMUS_RETURN_IF_ERROR(DoSnapshotDuty(agreed.duty));
  ISTHMUS_RETURN_IF_ERROR(Checkpoint());
  ISTHMUS_RETURN_IF_ERROR(Evaluate(&report_));
  if (progress_ != nullptr) progress_->Round(report_);
  return absl::OkStatus();
}

absl::Status Trainer::Join() {
  v1::JoinRunRequest request;
  request.set_run(spec_.run());
  request.set_node(node_);
  request.set_role(v1::ROLE_RANK);
  *request.mutable_manifest() = replica_->model().manifest();
  request.set_fingerprint(Fingerprint(request.manifest()));
  if (applied_round_ == 0) {
    request.set_state_sha256(start_state_sha256_);
  } else {
    ISTHMUS_ASSIGN_OR_RETURN(*request.mutable_state_sha256(), replica_->StateSha256(step_));
  }
  request.set_last_round(applied_round_);
  request.set_last_update_sha256(applied_sha256_);

  v1::RankInfo* info = request.mutable_rank();
  info->set_rank(static_cast<uint32_t>(options_.group->rank()));
  info->set_ranks(static_cast<uint32_t>(options_.group->ranks()));
  info->set_group_id(group_id_);
  for (const auto& [begin, end] : replica_->ranges()) {
    v1::ChunkRange* range = info->add_ranges();
    range->set_begin(begin);
    range->set_end(end);
  }
  AddSetting(info, "data_tokens", absl::StrCat(data_->tokens()));
  ISTHMUS_ASSIGN_OR_RETURN(const std::string fingerprint, data_->Fingerprint());
  AddSetting(info, "data_tokens_sha256", HexPrefix(fingerprint, 16));
  ISTHMUS_ASSIGN_OR_RETURN(*request.mutable_heldout_sha256(), data_->held_out().Sha256());
  ISTHMUS_ASSIGN_OR_RETURN(const v1::JoinRunResponse joined, options_.client->Join(request));
  attempt_ = joined.attempt();
  if (joined.has_spec()) {  // of the round after the one joined with
    spec_ = joined.spec();
    ISTHMUS_RETURN_IF_ERROR(replica_->TakeSpec(spec_));
  }
  joined_duty_ = joined.snapshot();
  if (applied_round_ > 0) options_.client->Checkpointed(applied_round_);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<RankClient::Next>> Trainer::NextRound() {
  // Ranks hear of rounds one by one. Where a round closed without this node, one rank may see it
  // open and another one already the next; all go on with the latest. Past the last one: finished.
  std::optional<v1::RoundOpened> opened;
  uint64_t round = 0, wanted = 1, applied = 0;
  for (uint64_t own = contributed_;; own = 0) {
    bool asks = round < wanted;
    while (behind_.ok() && asks) {
      auto waited =
          options_.client->WaitOpened([this](const auto& update) { return Apply(update); }, own);
      ISTHMUS_RETURN_IF_ERROR(UnlessBehind(waited.status()));
      if (!waited.ok()) break;
      opened = *std::move(waited);
      round = opened.has_value() ? opened->round() : applied_round_ + 1;
      asks = round < wanted && round != 0;
    }
    const bool stop = options_.stop && options_.stop();
    std::array<double, 5> most = {static_cast<double>(round), -static_cast<double>(round),
                                  stop ? 1.0 : 0.0, behind_.ok() ? 0.0 : 1.0,
                                  static_cast<double>(applied_round_)};
    ISTHMUS_RETURN_IF_ERROR(options_.group->AllReduceMax(absl::MakeSpan(most)));
    if (most[2] > 0) return absl::CancelledError("a rank of this node was stopped");
    if (most[3] > 0 && !behind_.ok()) return behind_;
    if (most[3] > 0) {
      return WithReason(absl::OutOfRangeError("another rank of this node is to fetch a snapshot"),
                        kReasonFetchSnapshot);
    }
    wanted = static_cast<uint64_t>(most[0]);
    applied = static_cast<uint64_t>(most[4]);
    if (wanted == static_cast<uint64_t>(-most[1])) break;
    const uint64_t base = wanted - std::min<uint64_t>(wanted, 1 + spec_.overlap());
    if (round < wanted) ISTHMUS_RETURN_IF_ERROR(UnlessBehind(ApplyThrough(base)));
  }
  // A rank that saw no round open may have applied more than its base.
  const uint64_t base = opened.has_value() ? opened->base_round() : wanted - 1;
  ISTHMUS_RETURN_IF_ERROR(UnlessBehind(ApplyThrough(std::max(base, applied))));
  if (!opened.has_value()) return std::optional<RankClient::Next>();
  return std::optional<RankClient::Next>({*opened, /*closed=*/false});
}

absl::StatusOr<Trainer::NodeGradient> Trainer::ComputeGradient(uint64_t step, bool merged) {
  ISTHMUS_ASSIGN_OR_RETURN(const TokenRows rows, data_->Step(step));
  ISTHMUS_ASSIGN_OR_RETURN(const double loss, replica_->ForwardBackward(rows));
  // Sums over the node: squares of the gradient, loss, squares of a residual that was dropped, and
  // how many ranks heard that the round is over, or that they are to stop.
  const bool stop = options_.stop && options_.stop();
  std::array<double, 5> sums = {replica_->GradientSquares(), loss, dropped_squares_,
                                options_.client->UpdateReady() ? 1.0 : 0.0, stop ? 1.0 : 0.0};
  ISTHMUS_RETURN_IF_ERROR(options_.group->AllReduceSum(absl::MakeSpan(sums)));
  TellDropped(sums[2]);
  NodeGradient gradient;
  gradient.loss = sums[1] / options_.group->ranks();
  gradient.closed = sums[3] > 0;
  gradient.stopped = sums[4] > 0;

  if (!std::isfinite(sums[0])) {
    std::array<double, 1> tensor = {static_cast<double>(replica_->NonFiniteTensor())};
    ISTHMUS_RETURN_IF_ERROR(options_.group->AllReduceMax(absl::MakeSpan(tensor)));
    const Grid& grid = replica_->model().grid();
    gradient.non_finite = grid.tensor_name(static_cast<uint32_t>(std::max(tensor[0], 0.0)));
    return gradient;
  }
  const double norm = std::sqrt(sums[0]);
  // The gradient of codec "dense" is clipped after the merge, by the merged norm.
  const bool clip_here = !merged || spec_.codec().kind() != v1::CODEC_KIND_DENSE;
  const double limit = clip_here ? spec_.optimizer().clip_norm() : 0;
  if (limit > 0 && norm > limit) gradient.scale = limit / norm;
  return gradient;
}

absl::Status Trainer::TakeRevised(uint64_t round) {
  std::optional<v1::SpecRevised> revised = options_.client->TakeRevised(round);
  if (!revised.has_value()) return absl::OkStatus();
  spec_ = std::move(*revised->mutable_spec());
  ISTHMUS_RETURN_IF_ERROR(replica_->TakeSpec(spec_));
  if (options_.group->rank() != 0) return absl::OkStatus();
  LogInfo("another spec holds", {{"revision", absl::StrCat(revised->revision())},
                                 {"from_round", absl::StrCat(revised->from_round())}});
  return absl::OkStatus();
}

absl::Status Trainer::Contribute(const RankClient::Next& next) {
  const v1::RoundOpened& opened = next.opened;
  ISTHMUS_RETURN_IF_ERROR(TakeRevised(opened.round()));
  report_ = RoundReport();
  TellSkipped(/*at_once=*/false);
  contributed_ = opened.round();
  UnderWay& of_round = under_way_[opened.round()];
  of_round.duty = opened.snapshot();
  if (TakesLocalSteps(spec_)) return ContributeLocal(next);
  sent_ = {data_->tokens_per_step(), 1};
  if (opened.round() <= sent_through_) {
    SendAgain(next);
    return absl::OkStatus();
  }
  if (HasStepsAlone(spec_)) ISTHMUS_RETURN_IF_ERROR(StepAlone(opened));
  ISTHMUS_ASSIGN_OR_RETURN(const NodeGradient gradient,
                           ComputeGradient(opened.step(), /*merged=*/true));
  of_round.loss = gradient.loss;
  of_round.tokens = sent_.tokens * static_cast<uint64_t>(options_.group->ranks());
  if (!gradient.non_finite.empty()) {
    Send(next, absl::InvalidArgumentError(
                   absl::StrCat("non-finite gradient in '", gradient.non_finite, "'")));
    return absl::OkStatus();
  }
  Send(next,
       replica_->Encode(opened.round(), absl::bit_cast<float>(opened.lr_bits()), gradient.scale));
  return absl::OkStatus();
}

// Or abstains, for the reason that `pieces` gives. What is replayed is not sent.
void Trainer::Send(const RankClient::Next& next, absl::StatusOr<std::vector<std::string>> pieces) {
  const std::string round = absl::StrCat(next.opened.round());
  if (!pieces.ok()) {
    const std::string reason(pieces.status().message());
    LogWarning("abstained", {{"round", round}, {"reason", reason}});
    if (!next.closed) options_.client->Abstain(next.opened, reason.substr(0, kReasonBytesMax));
    return;
  }
  encoded_round_ = next.opened.round();
  if (replays_) {
    absl::StatusOr<std::string> blocks = BlockHashes(replica_->model().grid(), *pieces);
    ISTHMUS_CHECK(blocks.ok());  // our own pieces
    encoded_blocks_[next.opened.round()] = *std::move(blocks);
  }
  if (next.closed) {
    ++summary_.replayed_rounds;
    return;
  }
  options_.client->Submit(next.opened, *std::move(pieces), sent_);
}

absl::Status Trainer::ApplyThrough(uint64_t round) {
  while (applied_round_ < round) {
    ISTHMUS_ASSIGN_OR_RETURN(const RankClient::Update update, options_.client->WaitUpdate());
    ISTHMUS_RETURN_IF_ERROR(Apply(update));
    options_.client->Acknowledge(update);
  }
  return absl::OkStatus();
}

// Without the other ranks of the node: each may hear of an update at another time.
absl::Status Trainer::Apply(const RankClient::Update& update) {
  const v1::UpdateRecord& record = update.committed->record;
  if (record.round() != applied_round_ + 1) {
    return absl::InternalError(absl::StrCat("the agent sent the update of round ", record.round(),
                                            "; the next one here is ", applied_round_ + 1));
  }
  ISTHMUS_RETURN_IF_ERROR(TakeRevised(record.round()));
  if (residual_restored_) JudgeRestoredResidual(update);
  replica_->Settle(record.round(), update.included);
  const UpdateRates rates = {absl::bit_cast<float>(record.lr_bits()),
                             absl::bit_cast<float>(record.weight_decay_bits()),
                             absl::bit_cast<float>(record.norm_bits()), record.round()};
  ISTHMUS_RETURN_IF_ERROR(replica_->Apply(rates, update.committed->pieces));
  CountLocal(record);
  report_.val_loss.reset();  // of an earlier state
  applied_round_ = record.round();
  encoded_blocks_.erase(encoded_blocks_.begin(), encoded_blocks_.upper_bound(applied_round_));
  applied_sha256_ = record.sha256();
  round_began_ = step_;
  step_ = record.step();
  ++summary_.rounds;
  update_bytes_ += record.payload_bytes();
  report_.round = record.round();
  report_.step = record.step();
  report_.included = update.included;
  summary_.skipped_steps = report_.skipped_steps = skipped_.steps();
  summary_.skipped_sequences = report_.skipped_sequences =
      skipped_.steps() * spec_.data().sequences_per_node();
  ISTHMUS_RETURN_IF_ERROR(CheckState());
  if (update.included) {
    summary_.tokens += sent_.tokens * static_cast<uint64_t>(options_.group->ranks());
  }
  return absl::OkStatus();
}

void Trainer::TellSkipped(bool at_once) {
  if (options_.group->rank() != 0) return;
  if (!at_once && told_skipped_ms_.has_value() &&
      clock_.NowMs() - *told_skipped_ms_ < kTellSkippedEveryMs) {
    return;
  }
  const std::optional<SkippedSteps::Gap> gap = skipped_.TakeGap();
  if (!gap.has_value()) return;
  told_skipped_ms_ = clock_.NowMs();
  LogWarning("steps were merged without this node; their samples are skipped",
             {{"skipped_steps", absl::StrCat(gap->steps)},
              {"skipped_sequences", absl::StrCat(gap->steps * spec_.data().sequences_per_node())},
              {"from_step", absl::StrCat(gap->first)},
              {"to_step", absl::StrCat(gap->last)}});
}

absl::StatusOr<Trainer::Agreement> Trainer::CountBytes(v1::SnapshotDuty duty, RoundReport* report) {
  std::array<double, 3> sums = {static_cast<double>(options_.client->counters().bytes_up),
                                behind_.ok() ? 0.0 : 1.0, static_cast<double>(duty)};
  ISTHMUS_RETURN_IF_ERROR(options_.group->AllReduceSum(absl::MakeSpan(sums)));
  report->bytes_up = static_cast<uint64_t>(sums[0]);
  report->bytes_down = update_bytes_;
  report->applied = summary_.rounds;
  Agreement agreed;
  agreed.behind = sums[1] > 0;
  // Ranks that heard of the round from different lives of their agent may have been told otherwise.
  if (sums[2] == static_cast<double>(duty) * options_.group->ranks()) agreed.duty = duty;
  return agreed;
}

absl::Status Trainer::Evaluate(RoundReport* report) {
  const uint32_t every = spec_.data().eval_every();
  const bool last = step_ == spec_.steps();
  if (!last && (every == 0 || step_ / every == round_began_ / every)) return absl::OkStatus();
  ISTHMUS_ASSIGN_OR_RETURN(const double loss, replica_->HeldOutLoss(*data_));
  report->val_loss = loss;
  return absl::OkStatus();
}

absl::Status Trainer::Finish() {
  TellSkipped(/*at_once=*/true);
  std::array<double, 1> dropped = {dropped_squares_};
  ISTHMUS_RETURN_IF_ERROR(options_.group->AllReduceSum(absl::MakeSpan(dropped)));
  TellDropped(dropped[0]);
  if (checkpoints_ != nullptr) {
    checkpoints_->Wait();
    TellCheckpoint();
  }
  if (report_.val_loss.has_value() && report_.step == step_) {
    summary_.val_loss = *report_.val_loss;
  } else {
    ISTHMUS_ASSIGN_OR_RETURN(summary_.val_loss, replica_->HeldOutLoss(*data_));
  }
  summary_.steps = step_;
  summary_.seconds = static_cast<double>(clock_.NowMs() - started_ms_) / 1e3;
  ISTHMUS_ASSIGN_OR_RETURN(summary_.state_sha256, replica_->StateSha256(step_));
  ISTHMUS_RETURN_IF_ERROR(CountBytes({}, &report_).status());
  summary_.bytes_up = report_.bytes_up;
  summary_.bytes_down = report_.bytes_down;
  // Who comes later starts from the last state; without an upload this returns at once.
  options_.client->FinishUpload();
  // Nothing below needs the run: others are not kept waiting for it.
  options_.client->Leave("finished");

  const bool first = options_.group->rank() == 0;
  if (!options_.save_file.empty()) ISTHMUS_RETURN_IF_ERROR(replica_->Save(options_.save_file));
  if (options_.sample_bytes > 0) {
    ISTHMUS_ASSIGN_OR_RETURN(const std::string text,
                             replica_->Sample(options_.sample_prompt, options_.sample_bytes));
    summary_.sample = options_.sample_prompt + text;
  }
  if (!first) return absl::OkStatus();
  if (!options_.quiet) {
    std::printf("summary %s\n", SummaryJson(summary_).c_str());
    if (!summary_.sample.empty()) {
      std::printf("sample:\n%s\n", Printable(summary_.sample).c_str());
    }
    std::fflush(stdout);
  }
  if (options_.summary_file.empty()) return absl::OkStatus();
  return WriteFileWhole(options_.summary_file, SummaryJson(summary_) + "\n");
}

// Those of LibTorch that would not give the same bits twice are left out (design rule 12).
void Trainer::UseDeterministicKernels() {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

void SetTorchThreads(int threads) {
  at::set_num_threads(threads);
  at::set_num_interop_threads(1);
}

}  // namespace isthmus
