#include "tests/sim/store.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace isthmus::sim {
namespace {

// How long the disk that lies takes to do what it said it had done.
constexpr int64_t kLateMsMax = 400;

PiecesPtr PiecesOf(const StoredUpdate& update) {
  auto pieces = std::make_shared<std::vector<std::string>>();
  for (const WatchEvent& event : update.pieces) pieces->push_back(event->piece().data());
  return pieces;
}

StoreLimits LimitsOf(const Plan& plan) {
  StoreLimits limits = {kStoredRoundsDefault, kKeptUpdateBytesMax, kStoredDigestRounds};
  if (plan.keep_rounds != 0) limits.rounds_max = plan.keep_rounds;
  return limits;
}

}  // namespace

SimStore::SimStore(Scene* scene) : scene_(scene), kept_(MakeMemoryStore(LimitsOf(scene->plan))) {}

absl::Status SimStore::WritePiece(uint64_t round, const SectionRange& range,
                                  absl::string_view data) {
  if (scene_->world.NowMs() < full_until_ms_) {
    return absl::ResourceExhaustedError("the disk is full");
  }
  return kept_->WritePiece(round, range, data);
}

absl::Status SimStore::Keep(const StoreBatch& batch) {
  const absl::Status written = kept_->Write(batch);
  if (!written.ok() || batch.update == nullptr) return written;
  Event event;
  event.kind = EventKind::kDurable;
  event.round = batch.update->record.round();
  event.record = std::make_shared<const v1::UpdateRecord>(batch.update->record);
  event.pieces = PiecesOf(*batch.update);
  scene_->Record(event);
  return absl::OkStatus();
}

absl::Status SimStore::Write(const StoreBatch& batch) {
  if (crashed_) scene_->Fail("the coordinator writes after a write had failed");
  if (scene_->world.NowMs() < full_until_ms_) {
    return absl::ResourceExhaustedError("the disk is full");
  }
  if (crash_ != Crash::kNone) {
    crashed_ = true;
    const absl::Status status = absl::UnavailableError("the process ends in this write");
    if (std::exchange(crash_, Crash::kNone) == Crash::kAfterWrite) (void)Keep(batch);
    return status;
  }
  if (scene_->plan.bug != Bug::kPublishBeforePersist || batch.update == nullptr) {
    return Keep(batch);
  }
  scene_->world.After(scene_->world.random().Between(0, kLateMsMax), [this, batch, life = life_] {
    if (life == life_) (void)Keep(batch);
  });
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StoredUpdatePtr>> SimStore::ReadAfter(uint64_t last_round,
                                                                 uint64_t bytes_max) const {
  return kept_->ReadAfter(last_round, bytes_max);
}

absl::StatusOr<std::string> SimStore::RecordSha256(uint64_t round) const {
  return kept_->RecordSha256(round);
}

void SimStore::CrashAtNextWrite(bool written) {
  crash_ = written ? Crash::kAfterWrite : Crash::kBeforeWrite;
}

void SimStore::Heal() {
  crash_ = Crash::kNone;
  full_until_ms_ = 0;
}

void SimStore::Restart() {
  crash_ = Crash::kNone;
  crashed_ = false;
  ++life_;
}

}  // namespace isthmus::sim
