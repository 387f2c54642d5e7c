// The hosted model and its store: where it starts, what is written of it, and how it comes back.
#include <cstring>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/coordinator.h"
#include "server/hosted_model.h"
#include "spec/state_hash.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

// Beside the schedule a snapshot is due when what was kept since the last one is so many times as
// large as itself, or half of what may be kept, whichever is more.
constexpr uint64_t kSnapshotsWorthOfRounds = 4;

absl::Status Damaged(const std::string& what) {
  return absl::DataLossError(absl::StrCat(
      what, ". Look at the store with coordinator --check_store, and start with a copy of it"));
}

}  // namespace

// The start state is what nodes hold: all else of a hosted model begins with zero.
v1::HostedState Coordinator::HostedStart() {
  v1::HostedState state;
  state.set_sha256(Sha256Of(""));
  state.set_beta1_power_bits(absl::bit_cast<uint64_t>(1.0));
  state.set_beta2_power_bits(absl::bit_cast<uint64_t>(1.0));
  return state;
}

absl::StatusOr<std::unique_ptr<HostedModel>> Coordinator::LoadHosted(
    const v1::StoredSnapshot& snapshot, const Model& model) const {
  ISTHMUS_ASSIGN_OR_RETURN(auto hosted,
                           HostedModel::Make(spec_, model.grid, {scratch_dir_, fold_threads_}));
  const v1::SnapshotFacts& facts = snapshot.facts();
  const std::string what = absl::StrCat("the snapshot of round ", facts.round());
  const uint32_t behind = snapshot.hosted().sections();
  if (facts.sections() != 1 || (behind != 0 && behind + 1 != hosted->sections()) ||
      facts.elements() != model.grid->elements()) {
    return Damaged(absl::StrCat(what, " has ", facts.sections(), " and ", behind, " sections of ",
                                facts.elements(), " elements; the model has 1 and ",
                                hosted->sections() - 1, " of ", model.grid->elements()));
  }
  const std::vector<SectionRange> pieces = store_->Pieces(facts.round());
  const auto missing = Missing(AllRanges(behind + 1, facts.elements()), pieces, 1);
  if (!missing.empty()) return Damaged(PieceNotKept(facts.round(), missing[0]).ToString());
  for (const SectionRange& range : pieces) {
    ISTHMUS_ASSIGN_OR_RETURN(const std::string piece, store_->ReadPiece(facts.round(), range));
    if (range.section <= behind) hosted->Load(range, piece);
  }
  hosted->set_powers({absl::bit_cast<double>(snapshot.hosted().beta1_power_bits()),
                      absl::bit_cast<double>(snapshot.hosted().beta2_power_bits())});
  ISTHMUS_RETURN_IF_ERROR(hosted->Check());
  const std::string sha256 = StateSha256({hosted->SectionHash(0, facts.step())}, facts);
  if (sha256 != facts.state_sha256()) {
    return Damaged(absl::StrCat(what, " hashes to ", HexPrefix(sha256), ", its record says ",
                                HexPrefix(facts.state_sha256())));
  }
  const std::string hosted_sha256 = hosted->HashBehindX(behind, facts.step());
  if (hosted_sha256 != snapshot.hosted().sha256()) {
    return Damaged(absl::StrCat("the outer state of ", what, " hashes to ",
                                HexPrefix(hosted_sha256), ", its record says ",
                                HexPrefix(snapshot.hosted().sha256())));
  }
  return hosted;
}

// Before there are threads. From the newest snapshot by the aggregates of the rounds since: the
// same steps, which must make the updates that nodes have.
absl::Status Coordinator::ResumeHosted(const StoredState& state) {
  if (state.snapshots.empty()) {
    if (state.last_round == 0) return absl::OkStatus();
    return Damaged("rounds are committed, but there is no snapshot of the hosted model");
  }
  const v1::StoredSnapshot& newest = state.snapshots.back();
  ISTHMUS_ASSIGN_OR_RETURN(hosted_, LoadHosted(newest, *model_));
  hosted_frozen_sha256_ = newest.facts().frozen_sha256();
  for (hosted_round_ = newest.facts().round(); hosted_round_ < state.last_round;) {
    ISTHMUS_RETURN_IF_ERROR(ReplayRound(hosted_round_ + 1));
    ++hosted_round_;
  }
  if (HostedSnapshotDueLocked(hosted_round_)) hosted_due_ = hosted_round_;
  LogInfo("hosted model resumed", {{"round", absl::StrCat(hosted_round_)},
                                   {"snapshot", absl::StrCat(newest.facts().round())},
                                   {"run", spec_.run()}});
  return absl::OkStatus();
}

absl::Status Coordinator::ReplayRound(uint64_t round) {
  ISTHMUS_ASSIGN_OR_RETURN(const auto updates, store_->ReadAfter(round - 1, 1));
  const v1::UpdateRecord& record = updates.at(0)->record;
  if (record.is_void()) return absl::OkStatus();
  const auto aggregate = store_->ReadAggregate(round, model_->grid->elements());
  if (absl::IsNotFound(aggregate.status())) {
    return Damaged(absl::StrCat(aggregate.status().message(), ", and should be"));
  }
  ISTHMUS_RETURN_IF_ERROR(aggregate.status());
  const auto gamma = absl::bit_cast<float>(record.lr_bits());
  ISTHMUS_ASSIGN_OR_RETURN(
      const CodedUpdate update,
      hosted_->Step(HostedStepOf(revisions_.SpecOf(round), round, gamma), *aggregate));
  if (update.sha256 == record.payload_sha256()) return absl::OkStatus();
  return Damaged(absl::StrCat(
      "the update of round ", round, ", made again from its aggregate, has SHA-256 ",
      HexPrefix(update.sha256), ", its record says ", HexPrefix(record.payload_sha256())));
}

bool Coordinator::HostedSnapshotDueLocked(uint64_t round) const {
  const uint64_t newest = snapshots_.back().facts().round();
  if (round <= newest) return false;
  if (round == revisions_.rounds() || round >= newest + snapshot_every_) return true;
  if (hosted_wanted_.has_value() && round >= *hosted_wanted_) return true;
  const uint64_t section = model_->grid->elements() * sizeof(float);
  const uint64_t kept = store_->BytesAfter(newest) + (round - newest) * section;
  return kept > std::max(store_->limits().bytes_max / 2,
                         kSnapshotsWorthOfRounds * hosted_->sections() * section);
}

absl::Status Coordinator::TendHosted() {
  const DeliverAfter deliver(this);
  std::lock_guard<std::mutex> hosted_lock(hosted_mutex_);
  if (hosted_ != nullptr) return WriteHostedSnapshot();
  std::unique_lock<std::mutex> lock(mutex_);
  if (snapshots_.empty() || stopping_ || !halted_.ok()) return absl::OkStatus();
  const v1::StoredSnapshot start = snapshots_.back();
  const ModelPtr model = model_;
  lock.unlock();
  auto loaded = LoadHosted(start, *model);
  lock.lock();
  if (!loaded.ok()) {
    LogError("cannot host the model",
             {{"error", loaded.status().ToString()}, {"run", spec_.run()}});
    if (!absl::IsResourceExhausted(loaded.status())) HaltLocked(loaded.status());
    return loaded.status();
  }
  hosted_ = *std::move(loaded);
  hosted_round_ = start.facts().round();
  hosted_frozen_sha256_ = start.facts().frozen_sha256();
  StepLocked(StartStateHeld{});
  return absl::OkStatus();
}

// Under hosted_mutex_: while it is being written the next step waits. Nodes compute meanwhile, so
// that it seldom costs a round anything.
absl::Status Coordinator::WriteHostedSnapshot() {
  v1::StoredSnapshot snapshot;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (hosted_due_ != hosted_round_ || stopping_ || !halted_.ok()) return absl::OkStatus();
  }
  const absl::Status written = WriteHostedPieces(&snapshot);
  if (absl::IsCancelled(written)) return written;
  StoreBatch batch;
  batch.snapshot = snapshot;
  const absl::Status stored = written.ok() ? WriteStore(batch) : written;
  if (!stored.ok()) return CannotStore(stored);
  std::lock_guard<std::mutex> lock(mutex_);
  hosted_due_.reset();
  hosted_wanted_.reset();
  KeepSnapshotLocked(snapshot);
  return absl::OkStatus();
}

absl::Status Coordinator::WriteHostedPieces(v1::StoredSnapshot* snapshot) {
  constexpr uint64_t kPieceElements = kSnapshotPieceBytesMax / sizeof(float);
  ISTHMUS_ASSIGN_OR_RETURN(const std::string record, store_->RecordSha256(hosted_round_));
  uint64_t bytes = 0;
  for (const SectionRange& all : AllRanges(hosted_->sections(), model_->grid->elements())) {
    for (uint64_t begin = all.begin; begin < all.end; begin += kPieceElements) {
      const SectionRange range = {all.section, begin, std::min(all.end, begin + kPieceElements)};
      ISTHMUS_RETURN_IF_ERROR(store_->WritePiece(hosted_round_, range, hosted_->Read(range)));
      bytes += PieceBytes(range);
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return absl::CancelledError("the coordinator is shutting down");
    }
  }
  const uint64_t step = revisions_.StepAfter(hosted_round_);
  v1::SnapshotFacts& facts = *snapshot->mutable_facts();
  facts.set_run(spec_.run());
  facts.set_round(hosted_round_);
  facts.set_update_sha256(record);
  facts.set_step(step);
  facts.set_sections(1);
  facts.set_elements(model_->grid->elements());
  facts.set_beta1_power_bits(absl::bit_cast<uint64_t>(1.0));
  facts.set_beta2_power_bits(absl::bit_cast<uint64_t>(1.0));
  facts.set_frozen_sha256(hosted_frozen_sha256_);
  facts.set_fingerprint(model_->fingerprint);
  facts.set_state_sha256(StateSha256({hosted_->SectionHash(0, step)}, facts));
  snapshot->set_payload_bytes(bytes);
  v1::HostedState& hosted = *snapshot->mutable_hosted();
  hosted.set_sections(hosted_->sections() - 1);
  hosted.set_sha256(hosted_->HashBehindX(hosted_->sections() - 1, step));
  hosted.set_beta1_power_bits(absl::bit_cast<uint64_t>(hosted_->powers().beta1));
  hosted.set_beta2_power_bits(absl::bit_cast<uint64_t>(hosted_->powers().beta2));
  return absl::OkStatus();
}

}  // namespace isthmus
