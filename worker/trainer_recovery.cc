// The trainer's checkpoints, and how it goes on from one: replay and fresh (worker/trainer.h).
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "spec/manifest.h"
#include "spec/rounds.h"
#include "worker/contribution_digest.h"
#include "worker/resume.h"
#include "worker/trainer.h"

namespace isthmus {

absl::Status Trainer::OpenCheckpoints() {
  group_id_ = RandomBytes(kGroupIdBytes);
  ISTHMUS_RETURN_IF_ERROR(options_.group->Broadcast(&group_id_));
  ISTHMUS_ASSIGN_OR_RETURN(start_state_sha256_, replica_->StateSha256(0));
  const double every =
      options_.checkpoint_dir.empty() ? 0 : static_cast<double>(options_.checkpoint_every);
  std::array<double, 2> most = {every, -every};
  ISTHMUS_RETURN_IF_ERROR(options_.group->AllReduceMax(absl::MakeSpan(most)));
  if (most[0] != -most[1]) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the ranks of this node make checkpoints every ", -most[1], " and every ", most[0],
        " rounds (0: without --checkpoint_dir); give all of them the same --checkpoint_every"));
  }
  if (every == 0) return absl::OkStatus();
  auto opened =
      TrainCheckpoints::Open(options_.checkpoint_dir, static_cast<uint32_t>(options_.group->rank()),
                             static_cast<uint32_t>(options_.group->ranks()));
  ISTHMUS_RETURN_IF_ERROR(AgreeOn(options_.group, opened.status()));
  checkpoints_ = *std::move(opened);
  return Resume();
}

TrainFacts Trainer::Facts() const {
  TrainFacts facts;
  facts.run = spec_.run();
  facts.node = node_;
  facts.rank = static_cast<uint32_t>(options_.group->rank());
  facts.ranks = static_cast<uint32_t>(options_.group->ranks());
  facts.group_id = group_id_;
  facts.fingerprint = Fingerprint(replica_->model().manifest());
  facts.start_state_sha256 = start_state_sha256_;
  facts.round = applied_round_;
  facts.step = step_;
  facts.update_sha256 = applied_sha256_;
  facts.attempt = attempt_;
  return facts;
}

absl::Status Trainer::Resume() {
  ISTHMUS_ASSIGN_OR_RETURN(
      std::optional<TrainState> state,
      ResumeFromNewest(options_.group, checkpoints_.get(), Facts(), replica_->StateParts()));
  if (!state.has_value()) return absl::OkStatus();
  const TrainFacts facts = state->facts;
  ISTHMUS_RETURN_IF_ERROR(replica_->SetState(*std::move(state)));
  applied_round_ = checkpoint_round_ = told_checkpoint_ = summary_.resumed_round = facts.round;
  applied_sha256_ = facts.update_sha256;
  step_ = facts.step;
  residual_restored_ = !replays_;
  contributed_ = applied_round_;
  if (const uint64_t overlap = spec_.overlap(); overlap > 0 && replays_) {
    sent_through_ = std::min(applied_round_ + overlap, Rounds(spec_));
  } else if (overlap > 0) {
    DropResidual("what was under way at the checkpoint is of an earlier life of the trainers");
    residual_restored_ = false;
  }
  if (options_.group->rank() == 0) {
    LogInfo("goes on from a checkpoint", {{"round", absl::StrCat(facts.round)},
                                          {"step", absl::StrCat(facts.step)},
                                          {"folder", checkpoints_->folder()}});
  }
  return absl::OkStatus();
}

absl::Status Trainer::Checkpoint() {
  if (checkpoints_ == nullptr) return absl::OkStatus();
  const bool last = step_ == spec_.steps();
  if (last) checkpoints_->Wait();
  TellCheckpoint();
  if (!last && applied_round_ < checkpoint_round_ + options_.checkpoint_every) {
    return absl::OkStatus();
  }
  const int64_t begun_ms = clock_.NowMs();
  std::array<double, 2> most = {checkpoints_->writing() ? 1.0 : 0.0,
                                -static_cast<double>(checkpoints_->newest())};
  ISTHMUS_RETURN_IF_ERROR(options_.group->AllReduceMax(absl::MakeSpan(most)));
  checkpoints_->KeepFrom(static_cast<uint64_t>(-most[1]));
  // The disk is slower than --checkpoint_every wants: the next round asks again.
  if (most[0] > 0) return absl::OkStatus();
  TrainState state = replica_->State();
  state.facts = Facts();
  checkpoints_->Write(std::move(state));
  checkpoint_round_ = applied_round_;
  ++summary_.checkpoints;
  const auto took_ms = static_cast<double>(clock_.NowMs() - begun_ms);
  summary_.checkpoint_ms_max = std::max(summary_.checkpoint_ms_max, took_ms);
  LogDebug("checkpoint begun",
           {{"round", absl::StrCat(applied_round_)}, {"ms", absl::StrCat(took_ms)}});
  return absl::OkStatus();
}

void Trainer::TellCheckpoint() {
  const uint64_t newest = checkpoints_->newest();
  if (newest <= told_checkpoint_) return;
  options_.client->Checkpointed(newest);
  told_checkpoint_ = newest;
}

absl::StatusOr<std::optional<RankClient::Next>> Trainer::NextToReplay() {
  const uint64_t round = contributed_ + 1;
  ISTHMUS_ASSIGN_OR_RETURN(const std::optional<RankClient::Next> next,
                           options_.client->WaitNext(round));
  std::array<double, 1> stop = {options_.stop && options_.stop() ? 1.0 : 0.0};
  ISTHMUS_RETURN_IF_ERROR(options_.group->AllReduceMax(absl::MakeSpan(stop)));
  if (stop[0] > 0) return absl::CancelledError("a rank of this node was stopped");
  if (!next.has_value() || next->opened.round() == round) return next;
  return absl::InternalError(absl::StrCat("the agent says that round ", next->opened.round(),
                                          " is next; here it is ", round));
}

// It is on the pending list as it was sent; where it is not, the node abstained.
void Trainer::SendAgain(const RankClient::Next& next) {
  const std::vector<std::string>* const sent = replica_->method().Sent(next.opened.round());
  if (sent != nullptr) return Send(next, *sent);
  Send(next, absl::InvalidArgumentError("the node abstained before its trainers started again"));
}

absl::Status Trainer::ApplyContributed() {
  if (!replays_) return ApplyThrough(applied_round_ + 1);
  ISTHMUS_ASSIGN_OR_RETURN(RankClient::Update update, options_.client->WaitUpdate());
  ISTHMUS_ASSIGN_OR_RETURN(update.included, WasMerged(update));
  ISTHMUS_RETURN_IF_ERROR(Apply(update));
  options_.client->Acknowledge(update);
  return absl::OkStatus();
}

// The agent knows of what these trainers sent. What earlier ones sent is ours, too, if it is the
// same, bit for bit.
absl::StatusOr<bool> Trainer::WasMerged(const RankClient::Update& update) {
  const std::string merged = MergedDigest(update.committed->record);
  std::array<double, 1> unsure = {!merged.empty() && !update.included ? 1.0 : 0.0};
  ISTHMUS_RETURN_IF_ERROR(options_.group->AllReduceMax(absl::MakeSpan(unsure)));
  if (unsure[0] == 0) return update.included;
  std::string blocks = encoded_blocks_[update.committed->record.round()];
  blocks.resize(replica_->model().grid().blocks().size() * kSha256Bytes);  // abstained: no digest
  ISTHMUS_RETURN_IF_ERROR(options_.group->JoinBytes(&blocks));
  const std::string computed = DigestOfBlocks(blocks);
  if (computed == merged) return true;
  const uint64_t round = update.committed->record.round();
  DropResidual(absl::StrCat("the contribution to round ", round, " was computed anew as ",
                            HexPrefix(computed), ", merged was ", HexPrefix(merged),
                            ": other hardware, threads, data or version than before"));
  replays_ = false;  // what comes next builds on what is not known
  return false;
}

std::string Trainer::MergedDigest(const v1::UpdateRecord& record) const {
  for (const v1::IncludedContribution& included : record.included()) {
    if (included.node() == node_) return included.digest();
  }
  return "";
}

void Trainer::JudgeRestoredResidual(const RankClient::Update& update) {
  const v1::UpdateRecord& record = update.committed->record;
  residual_restored_ = false;
  if (update.included) return;
  const bool names_node = !MergedDigest(record).empty();
  if (!names_node && encoded_round_ == record.round()) return;  // it is given back as ever
  DropResidual(absl::StrCat("round ", record.round(), " was committed ",
                            names_node ? "with a contribution of this node from before its restart"
                                       : "while this node was away"));
}

void Trainer::DropResidual(const std::string& why) {
  const double squares = replica_->method().ResidualSquares();
  replica_->DropResidual();
  dropped_squares_ += squares;
  if (squares > 0 && options_.group->rank() == 0) {
    LogWarning("the residual is set to zero", {{"why", why}});
  }
}

void Trainer::TellDropped(double squares) {
  dropped_squares_ = 0;
  if (squares == 0) return;
  ++summary_.fresh_residuals;
  summary_.fresh_residual_norm += std::sqrt(squares);
  if (options_.group->rank() != 0) return;
  LogWarning("what the residual held is lost",
             {{"norm", absl::StrFormat("%.6g", std::sqrt(squares))}});
}

}  // namespace isthmus
