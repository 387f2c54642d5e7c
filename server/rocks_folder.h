// The database below rocks_store.h: opening it, its keys, and what its errors mean.
#pragma once

#include <rocksdb/db.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "server/rocks_store.h"

namespace isthmus {

inline constexpr char kRunKey[] = "run";
inline constexpr char kSpanKey[] = "kept";
inline constexpr char kOpenKey[] = "open";
inline constexpr char kNodePrefix[] = "node/";
inline constexpr char kPlanKey[] = "plan";

std::string RoundKey(uint64_t round, uint32_t part);
std::string SettledKey(uint64_t round);
// In family "snapshots", before all else of its round: what makes its pieces count.
std::string SnapshotKey(uint64_t round);
// Then which pieces there are, so that nobody reads them to know; then the pieces.
std::string HeldKey(uint64_t round, const SectionRange& range);
std::string PieceKey(uint64_t round, const SectionRange& range);

// An open database with its families. Thread-safe as RocksDB is.
class RocksFolder {
 public:
  enum class Mode { kWrite, kReadOnly };
  static absl::StatusOr<std::unique_ptr<RocksFolder>> Open(const RocksStoreOptions& options,
                                                           Mode mode);
  ~RocksFolder();

  rocksdb::DB* db() const { return db_.get(); }
  rocksdb::ColumnFamilyHandle* main() const { return families_[0]; }
  rocksdb::ColumnFamilyHandle* rounds() const { return families_[1]; }
  rocksdb::ColumnFamilyHandle* settled() const { return families_[2]; }
  // Null: the folder was made before there were snapshots, and is only read.
  rocksdb::ColumnFamilyHandle* snapshots() const {
    return families_.size() > 3 ? families_[3] : nullptr;
  }

  // Aggregates of hosted rounds. Null: as snapshots().
  rocksdb::ColumnFamilyHandle* merged() const {
    return families_.size() > 4 ? families_[4] : nullptr;
  }

  // NOT_FOUND: there is none. DATA_LOSS: it is damaged.
  absl::Status Read(rocksdb::ColumnFamilyHandle* family, const std::string& key,
                    google::protobuf::MessageLite* message) const;
  absl::StatusOr<StoredUpdatePtr> ReadUpdate(uint64_t round) const;
  absl::StatusOr<StoredState> ReadState() const;
  // The pieces of the state after that round, ascending; and one of them. NOT_FOUND: it is not
  // there.
  absl::StatusOr<std::vector<SectionRange>> Pieces(uint64_t round) const;
  absl::StatusOr<std::string> ReadPiece(uint64_t round, const SectionRange& range) const;
  // NOT_FOUND: there is none. DATA_LOSS: it is damaged, or of another size.
  absl::StatusOr<std::vector<float>> ReadAggregate(uint64_t round, uint64_t elements) const;
  // The first update is round 1 where nothing was ever committed.
  absl::StatusOr<v1::StoredSpan> ReadSpan() const;

  // The rounds that family "snapshots" has anything of, ascending.
  absl::StatusOr<std::vector<uint64_t>> SnapshotRounds() const;
  // Adds the removal of all that family "snapshots" has of a round.
  void DropSnapshot(uint64_t round, rocksdb::WriteBatch* writes) const;

  // Adds the removal of the aggregates up to a round.
  void DropAggregates(uint64_t last_round, rocksdb::WriteBatch* writes) const;

  // An error of the database as one of ours; `of` says at what, where that is known.
  absl::Status Explain(const rocksdb::Status& status, absl::string_view of = "") const;

 private:
  absl::Status ReadSnapshots(std::vector<v1::StoredSnapshot>* snapshots) const;
  explicit RocksFolder(std::string dir) : dir_(std::move(dir)) {}

  const std::string dir_;
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> families_;
};

}  // namespace isthmus
