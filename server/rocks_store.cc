#include "server/rocks_store.h"

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "server/rocks_folder.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

// The newest updates stay in memory too, for nodes that watch and are hardly behind: so many bytes,
// and of small ones so many rounds.
constexpr uint64_t kRecentBytesMax = kKeptUpdateBytesMax / 8;
constexpr size_t kRecentRoundsMax = 256;

class RocksStore final : public Store {
 public:
  explicit RocksStore(const RocksStoreOptions& options) : options_(options) {}

  absl::Status Load() {
    ISTHMUS_ASSIGN_OR_RETURN(folder_, RocksFolder::Open(options_, RocksFolder::Mode::kWrite));
    ISTHMUS_ASSIGN_OR_RETURN(StoredState state, folder_->ReadState());
    ISTHMUS_ASSIGN_OR_RETURN(const v1::StoredSpan span, folder_->ReadSpan());
    v1::StoredSettlement last;
    if (span.last_round() != 0) {
      ISTHMUS_RETURN_IF_ERROR(
          folder_->Read(folder_->settled(), SettledKey(span.last_round()), &last));
    }
    std::lock_guard<std::mutex> lock(mutex_);
    state_ = std::move(state);
    span_ = span;
    last_sha256_ = last.sha256();
    recent_.clear();
    recent_bytes_ = 0;
    return absl::OkStatus();
  }

  absl::Status Write(const StoreBatch& batch) override;

  StoredState State() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return state_;
  }

  bool durable() const override { return true; }

  absl::StatusOr<std::vector<StoredUpdatePtr>> ReadAfter(uint64_t last_round,
                                                         uint64_t bytes_max) const override;

  uint64_t last_round() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return span_.last_round();
  }

  uint64_t first_round() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return span_.first_round();
  }

  uint64_t BytesAfter(uint64_t last_round) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return AverageBytesAfter(last_round, span_.first_round(), span_.last_round(),
                             span_.payload_bytes());
  }
  const StoreLimits& limits() const override { return options_.limits; }
  absl::StatusOr<std::string> RecordSha256(uint64_t round) const override;
  absl::Status WritePiece(uint64_t round, const SectionRange& range,
                          absl::string_view data) override;
  std::vector<SectionRange> Pieces(uint64_t round) const override;
  absl::StatusOr<std::string> ReadPiece(uint64_t round, const SectionRange& range) const override;
  absl::StatusOr<std::vector<float>> ReadAggregate(uint64_t round,
                                                   uint64_t elements) const override;

 private:
  absl::Status OpenAgainIfFull();
  absl::Status WriteToFolder(rocksdb::WriteBatch* writes, bool sync);
  bool WroteBefore(const StoreBatch& batch) const;
  absl::Status WriteAggregate(uint64_t round, const std::vector<float>& values);
  absl::Status AppendSnapshot(const StoreBatch& batch, rocksdb::WriteBatch* writes) const;
  absl::Status AppendCommit(const StoreBatch& batch, rocksdb::WriteBatch* writes,
                            v1::StoredSpan* span) const;
  absl::Status DropOld(const StoreBatch& batch, rocksdb::WriteBatch* writes,
                       v1::StoredSpan* span) const;
  void Remember(const StoreBatch& batch, const v1::StoredSpan& span);
  StoredUpdatePtr Recent(uint64_t round) const;

  const RocksStoreOptions options_;
  std::mutex write_mutex_;  // one write at a time; taken first
  bool full_ = false;       // the last write found no room: the database is opened again
  absl::Status failed_;     // the disk failed: nothing is ever written again
  // Shared by readers, alone where the database is opened again.
  mutable std::shared_mutex folder_mutex_;
  std::unique_ptr<RocksFolder> folder_;
  mutable std::mutex mutex_;  // of what follows; taken last
  StoredState state_;
  v1::StoredSpan span_;
  std::string last_sha256_;             // of the record of the last round
  std::deque<StoredUpdatePtr> recent_;  // the newest without gaps
  uint64_t recent_bytes_ = 0;
};

uint64_t Cost(const v1::UpdateRecord& record) { return record.payload_bytes() + kStoredRoundBytes; }

rocksdb::Slice SliceOf(const std::string& bytes) { return {bytes.data(), bytes.size()}; }

absl::Status RocksStore::Write(const StoreBatch& batch) {
  std::lock_guard<std::mutex> write_lock(write_mutex_);
  ISTHMUS_RETURN_IF_ERROR(OpenAgainIfFull());
  if (WroteBefore(batch)) return absl::OkStatus();

  if (batch.aggregate != nullptr) {
    ISTHMUS_RETURN_IF_ERROR(WriteAggregate(batch.update->record.round(), *batch.aggregate));
  }
  rocksdb::WriteBatch writes;
  v1::StoredSpan span;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    span = span_;
  }
  if (batch.run.has_value()) {
    writes.Put(folder_->main(), kRunKey, batch.run->SerializeAsString());
  }
  if (batch.node.has_value()) {
    writes.Put(folder_->main(), absl::StrCat(kNodePrefix, batch.node->node()),
               batch.node->SerializeAsString());
  }
  if (batch.update != nullptr) ISTHMUS_RETURN_IF_ERROR(AppendCommit(batch, &writes, &span));
  ISTHMUS_RETURN_IF_ERROR(AppendSnapshot(batch, &writes));
  ISTHMUS_RETURN_IF_ERROR(WriteToFolder(&writes, /*sync=*/true));
  Remember(batch, span);
  return absl::OkStatus();
}

// Under write_mutex_. In parts, so that none is as large as a model. The commit is synced, and with
// it all that the log had before; without it they are parts of nothing.
absl::Status RocksStore::WriteAggregate(uint64_t round, const std::vector<float>& values) {
  constexpr size_t kPartValues = kPieceBytesMax / sizeof(float);
  for (size_t part = 0; part == 0 || part * kPartValues < values.size(); ++part) {
    const size_t count = std::min(kPartValues, values.size() - part * kPartValues);
    rocksdb::WriteBatch writes;
    writes.Put(
        folder_->merged(), RoundKey(round, static_cast<uint32_t>(part)),
        {reinterpret_cast<const char*>(values.data() + part * kPartValues), count * sizeof(float)});
    ISTHMUS_RETURN_IF_ERROR(WriteToFolder(&writes, /*sync=*/false));
  }
  return absl::OkStatus();
}

// Under write_mutex_.
absl::Status RocksStore::WriteToFolder(rocksdb::WriteBatch* writes, bool sync) {
  rocksdb::WriteOptions options;
  options.sync = sync;
  const absl::Status written = folder_->Explain(folder_->db()->Write(options, writes));
  if (absl::IsResourceExhausted(written)) {
    full_ = true;
  } else if (!written.ok()) {
    failed_ = written;
  }
  return written;
}

// Under write_mutex_. A database that has met a full disk takes no more writes. Opened again, its
// log is read and what was torn is cut off.
absl::Status RocksStore::OpenAgainIfFull() {
  if (!failed_.ok()) return failed_;
  if (!full_) return absl::OkStatus();
  std::unique_lock<std::shared_mutex> folder_lock(folder_mutex_);
  folder_ = nullptr;
  const absl::Status opened = Load();
  if (!opened.ok()) {
    if (!absl::IsResourceExhausted(opened)) failed_ = opened;
    return opened;
  }
  full_ = false;
  LogInfo("the state folder is open again", {{"dir", options_.dir}});
  return absl::OkStatus();
}

absl::Status RocksStore::AppendSnapshot(const StoreBatch& batch,
                                        rocksdb::WriteBatch* writes) const {
  if (!batch.plan.has_value() && !batch.snapshot.has_value()) return absl::OkStatus();
  if (batch.plan.has_value()) {
    writes->Put(folder_->main(), kPlanKey, batch.plan->SerializeAsString());
  }
  if (batch.snapshot.has_value()) {
    writes->Put(folder_->snapshots(), SnapshotKey(batch.snapshot->facts().round()),
                batch.snapshot->SerializeAsString());
  }
  StoredState state = State();
  ApplyBatch(batch, &state);
  const std::set<uint64_t> stay = RoundsToKeep(batch, state);
  ISTHMUS_ASSIGN_OR_RETURN(std::vector<uint64_t> rounds, folder_->SnapshotRounds());
  if (batch.snapshot.has_value()) rounds.push_back(batch.snapshot->facts().round());
  for (uint64_t round : rounds) {
    if (stay.count(round) == 0) folder_->DropSnapshot(round, writes);
  }
  if (batch.snapshot.has_value()) {
    folder_->DropAggregates(state.snapshots.back().facts().round(), writes);
  }
  return absl::OkStatus();
}

absl::Status RocksStore::WritePiece(uint64_t round, const SectionRange& range,
                                    absl::string_view data) {
  ISTHMUS_CHECK(data.size() == PieceBytes(range));
  std::lock_guard<std::mutex> write_lock(write_mutex_);
  ISTHMUS_RETURN_IF_ERROR(OpenAgainIfFull());
  rocksdb::WriteBatch writes;
  writes.Put(folder_->snapshots(), HeldKey(round, range), "");
  writes.Put(folder_->snapshots(), PieceKey(round, range), {data.data(), data.size()});
  // The record that makes it count is synced, and with it all that the log had before.
  return WriteToFolder(&writes, /*sync=*/false);
}

std::vector<SectionRange> RocksStore::Pieces(uint64_t round) const {
  std::shared_lock<std::shared_mutex> lock(folder_mutex_);
  if (folder_ == nullptr) return {};
  const auto pieces = folder_->Pieces(round);
  if (pieces.ok()) return *pieces;
  // Who wants one of them is told why.
  LogError("cannot read which pieces of a snapshot are there",
           {{"round", absl::StrCat(round)}, {"error", pieces.status().ToString()}});
  return {};
}

absl::StatusOr<std::string> RocksStore::ReadPiece(uint64_t round, const SectionRange& range) const {
  std::shared_lock<std::shared_mutex> lock(folder_mutex_);
  if (folder_ == nullptr) return absl::UnavailableError("the state folder is being opened");
  return folder_->ReadPiece(round, range);
}

absl::StatusOr<std::vector<float>> RocksStore::ReadAggregate(uint64_t round,
                                                             uint64_t elements) const {
  std::shared_lock<std::shared_mutex> lock(folder_mutex_);
  if (folder_ == nullptr) return absl::UnavailableError("the state folder is being opened");
  return folder_->ReadAggregate(round, elements);
}

// A write that met a full disk may have come through in spite of its answer.
bool RocksStore::WroteBefore(const StoreBatch& batch) const {
  if (batch.update == nullptr) return false;
  const v1::UpdateRecord& record = batch.update->record;
  if (last_round() != record.round()) return false;
  const absl::StatusOr<std::string> sha256 = RecordSha256(record.round());
  return sha256.ok() && *sha256 == record.sha256();
}

absl::Status RocksStore::AppendCommit(const StoreBatch& batch, rocksdb::WriteBatch* writes,
                                      v1::StoredSpan* span) const {
  const StoredUpdate& update = *batch.update;
  const uint64_t round = update.record.round();
  ISTHMUS_CHECK(round == span->last_round() + 1);
  writes->Put(folder_->rounds(), RoundKey(round, 0), update.record.SerializeAsString());
  for (size_t piece = 0; piece < update.pieces.size(); ++piece) {
    writes->Put(folder_->rounds(), RoundKey(round, static_cast<uint32_t>(piece) + 1),
                SliceOf(update.pieces[piece]->piece().data()));
  }
  v1::StoredSettlement settlement;
  settlement.set_sha256(update.record.sha256());
  *settlement.mutable_included() = update.record.included();
  writes->Put(folder_->settled(), SettledKey(round), settlement.SerializeAsString());
  if (batch.open.has_value()) {
    writes->Put(folder_->main(), kOpenKey, batch.open->SerializeAsString());
  } else {
    writes->Delete(folder_->main(), kOpenKey);
  }
  span->set_last_round(round);
  span->set_payload_bytes(span->payload_bytes() + update.record.payload_bytes());
  ISTHMUS_RETURN_IF_ERROR(DropOld(batch, writes, span));
  writes->Put(folder_->main(), kSpanKey, span->SerializeAsString());
  return absl::OkStatus();
}

absl::Status RocksStore::DropOld(const StoreBatch& batch, rocksdb::WriteBatch* writes,
                                 v1::StoredSpan* span) const {
  const uint64_t first = span->first_round();
  const uint64_t rounds = span->last_round() + 1 - first;
  std::map<uint64_t, v1::UpdateRecord> records;
  absl::Status read;
  const auto bytes_of = [&](uint64_t round) {
    const absl::Status status =
        folder_->Read(folder_->rounds(), RoundKey(round, 0), &records[round]);
    if (!status.ok()) read = status;
    return Cost(records[round]);
  };
  const uint64_t keep =
      FirstRoundToKeep(options_.limits, batch, first, span->last_round(),
                       span->payload_bytes() + rounds * kStoredRoundBytes, bytes_of);
  ISTHMUS_RETURN_IF_ERROR(read);
  uint64_t dropped_bytes = 0;
  for (uint64_t round = first; round < keep; ++round) {
    const v1::UpdateRecord& record = records[round];
    dropped_bytes += record.payload_bytes();
    for (uint32_t part = 0; part <= record.pieces(); ++part) {
      writes->Delete(folder_->rounds(), RoundKey(round, part));
    }
  }
  span->set_payload_bytes(span->payload_bytes() - dropped_bytes);
  span->set_first_round(keep);
  // A settlement stays at least as long as its update.
  for (uint64_t dropped = 0; dropped < kRoundsDroppedAtOnce; ++dropped) {
    const uint64_t oldest = span->first_settled();
    const uint64_t settled = span->last_round() + 1 - oldest;
    if (settled <= options_.limits.settled_rounds_max || oldest >= span->first_round()) break;
    writes->Delete(folder_->settled(), SettledKey(oldest));
    span->set_first_settled(oldest + 1);
  }
  return absl::OkStatus();
}

void RocksStore::Remember(const StoreBatch& batch, const v1::StoredSpan& span) {
  std::lock_guard<std::mutex> lock(mutex_);
  ApplyBatch(batch, &state_);
  if (batch.update == nullptr) return;
  span_ = span;
  last_sha256_ = batch.update->record.sha256();
  recent_.push_back(batch.update);
  recent_bytes_ += batch.update->bytes() + kStoredRoundBytes;
  while (recent_.size() > 1 &&
         (recent_bytes_ > kRecentBytesMax || recent_.size() > kRecentRoundsMax ||
          recent_.front()->record.round() < span.first_round())) {
    recent_bytes_ -= recent_.front()->bytes() + kStoredRoundBytes;
    recent_.pop_front();
  }
}

// Null: it must be read from the disk.
StoredUpdatePtr RocksStore::Recent(uint64_t round) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (recent_.empty() || round < recent_.front()->record.round()) return nullptr;
  const uint64_t place = round - recent_.front()->record.round();
  return place < recent_.size() ? recent_[place] : nullptr;
}

absl::StatusOr<std::vector<StoredUpdatePtr>> RocksStore::ReadAfter(uint64_t last_round,
                                                                   uint64_t bytes_max) const {
  std::vector<StoredUpdatePtr> read;
  uint64_t bytes = 0;
  for (uint64_t round = last_round + 1;; ++round) {
    const uint64_t last = this->last_round(), first = first_round();
    if (read.empty() && (last_round > last || round < first)) {
      return UpdateNotKept(round, first, last, options_.limits);
    }
    if (round > last || (!read.empty() && bytes >= bytes_max)) return read;
    StoredUpdatePtr update = Recent(round);
    if (update == nullptr) {
      std::shared_lock<std::shared_mutex> lock(folder_mutex_);
      if (folder_ == nullptr) return absl::UnavailableError("the state folder is being opened");
      absl::StatusOr<StoredUpdatePtr> stored = folder_->ReadUpdate(round);
      // It may have been dropped since first_round() was asked.
      if (absl::IsNotFound(stored.status()) && first_round() > round) {
        return UpdateNotKept(round, first_round(), last, options_.limits);
      }
      if (absl::IsNotFound(stored.status())) {
        return absl::DataLossError(absl::StrCat(stored.status().message(),
                                                ", and should be; put a copy of the folder in its "
                                                "place"));
      }
      ISTHMUS_ASSIGN_OR_RETURN(update, std::move(stored));
    }
    bytes += update->bytes();
    read.push_back(std::move(update));
  }
}

absl::StatusOr<std::string> RocksStore::RecordSha256(uint64_t round) const {
  if (round == 0) return std::string();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (round == span_.last_round()) return last_sha256_;
  }
  v1::StoredSettlement settlement;
  absl::Status status = absl::NotFoundError("");
  {
    std::shared_lock<std::shared_mutex> lock(folder_mutex_);
    if (folder_ != nullptr) {
      status = folder_->Read(folder_->settled(), SettledKey(round), &settlement);
    }
  }
  if (absl::IsNotFound(status)) {
    return UpdateNotKept(round, first_round(), last_round(), options_.limits);
  }
  ISTHMUS_RETURN_IF_ERROR(status);
  return settlement.sha256();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenRocksStore(const RocksStoreOptions& options) {
  auto store = std::make_unique<RocksStore>(options);
  ISTHMUS_RETURN_IF_ERROR(store->Load());
  return store;
}

}  // namespace isthmus
