// The coordinator's disk: what was written before a crash is there after it, and only that. Records
// what becomes durable, and when. Fails when it is told to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/store.h"
#include "tests/sim/scene.h"

namespace isthmus::sim {

class SimStore final : public Store {
 public:
  explicit SimStore(Scene* scene);

  absl::Status Write(const StoreBatch& batch) override;
  StoredState State() const override { return kept_->State(); }
  bool durable() const override { return true; }
  absl::StatusOr<std::vector<StoredUpdatePtr>> ReadAfter(uint64_t last_round,
                                                         uint64_t bytes_max) const override;
  uint64_t last_round() const override { return kept_->last_round(); }
  uint64_t first_round() const override { return kept_->first_round(); }
  absl::StatusOr<std::string> RecordSha256(uint64_t round) const override;
  uint64_t BytesAfter(uint64_t last_round) const override { return kept_->BytesAfter(last_round); }
  const StoreLimits& limits() const override { return kept_->limits(); }
  absl::Status WritePiece(uint64_t round, const SectionRange& range,
                          absl::string_view data) override;
  std::vector<SectionRange> Pieces(uint64_t round) const override { return kept_->Pieces(round); }
  absl::StatusOr<std::string> ReadPiece(uint64_t round, const SectionRange& range) const override {
    return kept_->ReadPiece(round, range);
  }
  absl::StatusOr<std::vector<float>> ReadAggregate(uint64_t round,
                                                   uint64_t elements) const override {
    return kept_->ReadAggregate(round, elements);
  }

  // The next write is the last thing the process does: `written` says whether it is on the disk
  // then.
  void CrashAtNextWrite(bool written);
  // No write goes through for so long.
  void FillFor(int64_t ms) { full_until_ms_ = scene_->world.NowMs() + ms; }
  // From now on all goes well.
  void Heal();
  // Whether the process has come to its end in a write.
  bool crashed() const { return crashed_; }
  // The process starts again. What was not written yet is gone (only a disk that lies has any).
  void Restart();

 private:
  enum class Crash { kNone, kBeforeWrite, kAfterWrite };
  absl::Status Keep(const StoreBatch& batch);

  Scene* const scene_;
  const std::unique_ptr<Store> kept_;
  Crash crash_ = Crash::kNone;
  bool crashed_ = false;
  int64_t full_until_ms_ = 0;
  uint64_t life_ = 0;
};

}  // namespace isthmus::sim
