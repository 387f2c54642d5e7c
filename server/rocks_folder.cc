#include "server/rocks_folder.h"

#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "server/rocks_log.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

// Smaller values stay in the table files beside their keys.
constexpr uint64_t kBlobBytesMin = 4096;
constexpr uint64_t kBlobFileBytes = uint64_t{64} << 20;
constexpr size_t kBlockCacheBytes = size_t{8} << 20;
// Reads go to the newest tables, or on from one to the next. With few of them open a coordinator
// has the same number of descriptors, however many rounds it keeps. (RocksDB takes 10 off.)
constexpr int kOpenFilesMax = 24;
// What was written goes to the disk in parts of this size, before anybody waits for it: else a
// commit's sync would wait for all the pieces of a snapshot that the log has before it.
constexpr uint64_t kWriteBackBytes = uint64_t{1} << 20;
// Parts of a snapshot's keys after the round, in this order.
constexpr char kHeldPart = 0;
constexpr char kPiecePart = 1;
constexpr size_t kRangeKeyBytes = 8 + 1 + 4 + 8 + 8;
// Where an update's piece says which chunks it has (spec/piece.h): the first, and how many.
constexpr size_t kFirstChunkAt = 8;
constexpr size_t kChunkCountAt = 12;

void AppendBigEndian(uint64_t value, int bytes, std::string* key) {
  for (int i = bytes - 1; i >= 0; --i) key->push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t ReadBigEndian(absl::string_view bytes) {
  uint64_t value = 0;
  for (char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

uint64_t LittleEndian32(const std::string& bytes, size_t at) {
  uint64_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  }
  return value;
}

std::string RangeKey(uint64_t round, char part, const SectionRange& range) {
  std::string key = SnapshotKey(round);
  key.push_back(part);
  AppendBigEndian(range.section, 4, &key);
  AppendBigEndian(range.begin, 8, &key);
  AppendBigEndian(range.end, 8, &key);
  return key;
}

SectionRange RangeOfKey(absl::string_view key) {
  return {static_cast<uint32_t>(ReadBigEndian(key.substr(9, 4))), ReadBigEndian(key.substr(13, 8)),
          ReadBigEndian(key.substr(21, 8))};
}

rocksdb::DBOptions DbOptions(const RocksStoreOptions& options) {
  rocksdb::DBOptions db;
  if (options.env != nullptr) db.env = options.env;
  db.create_if_missing = true;
  db.create_missing_column_families = true;
  // A crash tears the last write, which nobody was answered; anything else is damage.
  db.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  db.track_and_verify_wals_in_manifest = true;
  // The families are one state, so they go to files together.
  db.atomic_flush = true;
  // What failed is not tried again on the same file.
  db.max_bgerror_resume_count = 0;
  db.max_total_wal_size = 2 * options.write_buffer_bytes;
  db.max_open_files = kOpenFilesMax;
  // A folder has few tables: threads to open them, 15 a family, take longer than that.
  db.max_file_opening_threads = 1;
  // Nobody reads these, and they have a thread of their own.
  db.stats_dump_period_sec = 0;
  db.stats_persist_period_sec = 0;
  db.wal_bytes_per_sync = kWriteBackBytes;
  db.bytes_per_sync = kWriteBackBytes;
  db.info_log = std::make_shared<RocksLog>();
  return db;
}

rocksdb::ColumnFamilyOptions FamilyOptions(const RocksStoreOptions& options,
                                           const std::shared_ptr<rocksdb::Cache>& cache,
                                           bool blobs) {
  rocksdb::ColumnFamilyOptions family;
  family.write_buffer_size = options.write_buffer_bytes;
  family.compression = rocksdb::kNoCompression;  // payloads are packed bits already
  // Old rounds go when the tables that name them are merged: soon, so that little lies about.
  family.level0_file_num_compaction_trigger = 2;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  if (!blobs) return family;
  family.enable_blob_files = true;
  family.min_blob_size = kBlobBytesMin;
  family.blob_file_size = kBlobFileBytes;
  // Rounds go in the order in which they came, so a blob file is dropped whole when its last round
  // goes, and nothing in it is ever moved.
  family.enable_blob_garbage_collection = false;
  return family;
}

// Where the families go to files together and one finds no room, the others only quote its error.
bool IsFull(const rocksdb::Status& status) {
  return status.IsNoSpace() ||
         (status.IsIncomplete() &&
          absl::StrContains(status.ToString(), rocksdb::Status::NoSpace().ToString()));
}

bool NamesAFile(const std::string& text) {
  for (const char* part : {".log", ".sst", ".blob", "MANIFEST", "CURRENT"}) {
    if (absl::StrContains(text, part)) return true;
  }
  return false;
}

// RocksDB names every file but those of its log, and one with large values where one of them is
// damaged.
std::string FilesOf(const std::string& dir, const char* extension) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(dir, error)) {
    if (file.path().extension() == extension) names.push_back(file.path().filename());
  }
  std::sort(names.begin(), names.end());
  return absl::StrCat(" (in ", absl::StrJoin(names, " or "), ")");
}

// RocksDB would make a new database where it finds no file CURRENT, over what is left of the old.
absl::Status CheckFolder(const RocksStoreOptions& options, RocksFolder::Mode mode) {
  const std::filesystem::path dir = options.dir;
  std::error_code error;
  const bool reads = mode == RocksFolder::Mode::kReadOnly;
  if (!reads) std::filesystem::create_directories(dir, error);
  if (error || !std::filesystem::is_directory(dir, error)) {
    return absl::FailedPreconditionError(
        absl::StrCat("state folder ", options.dir, ": ", error ? error.message() : "is no folder",
                     "; name a folder on a local disk that may be written"));
  }
  if (std::filesystem::exists(dir / "CURRENT", error)) return absl::OkStatus();
  if (reads) {
    return absl::FailedPreconditionError(
        absl::StrCat("folder ", options.dir, " holds no state of a coordinator (no file CURRENT)"));
  }
  std::filesystem::directory_iterator files(dir, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("state folder ", options.dir, " cannot be read: ", error.message()));
  }
  for (const auto& file : files) {
    const std::string extension = file.path().extension();
    if (extension != ".log" && extension != ".sst" && extension != ".blob") continue;
    return absl::DataLossError(absl::StrCat(
        "state folder ", options.dir, " has ", file.path().filename().string(),
        " but no file CURRENT: it is damaged. Put a copy of the folder in its place, or start "
        "on an empty one, and the trainers of all nodes anew"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string RoundKey(uint64_t round, uint32_t part) {
  std::string key;
  AppendBigEndian(round, 8, &key);
  AppendBigEndian(part, 4, &key);
  return key;
}

std::string SettledKey(uint64_t round) {
  std::string key;
  AppendBigEndian(round, 8, &key);
  return key;
}

std::string SnapshotKey(uint64_t round) {
  std::string key;
  AppendBigEndian(round, 8, &key);
  return key;
}

std::string HeldKey(uint64_t round, const SectionRange& range) {
  return RangeKey(round, kHeldPart, range);
}

std::string PieceKey(uint64_t round, const SectionRange& range) {
  return RangeKey(round, kPiecePart, range);
}

absl::StatusOr<std::unique_ptr<RocksFolder>> RocksFolder::Open(const RocksStoreOptions& options,
                                                               Mode mode) {
  ISTHMUS_RETURN_IF_ERROR(CheckFolder(options, mode));
  std::unique_ptr<RocksFolder> folder(new RocksFolder(options.dir));
  const std::shared_ptr<rocksdb::Cache> cache = rocksdb::NewLRUCache(kBlockCacheBytes);
  std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, FamilyOptions(options, cache, false)},
      {"rounds", FamilyOptions(options, cache, true)},
      {"settled", FamilyOptions(options, cache, false)},
      {"snapshots", FamilyOptions(options, cache, true)},
      {"merged", FamilyOptions(options, cache, true)}};
  // A snapshot that was dropped is large, and its tables, which name what is in the blob files, are
  // small: every one is merged at once, and with the first of the next snapshot the files go. So
  // are the aggregates that it makes needless.
  families[3].options.level0_file_num_compaction_trigger = 1;
  families[4].options.level0_file_num_compaction_trigger = 1;
  if (mode == Mode::kReadOnly) {
    // What is only read gets no new family.
    std::vector<std::string> names;
    const rocksdb::Status listed =
        rocksdb::DB::ListColumnFamilies(DbOptions(options), options.dir, &names);
    if (!listed.ok()) return folder->Explain(listed);
    while (std::find(names.begin(), names.end(), families.back().name) == names.end()) {
      families.pop_back();
    }
  }
  rocksdb::DB* db = nullptr;
  rocksdb::Status status;
  if (mode == Mode::kReadOnly) {
    status = rocksdb::DB::OpenForReadOnly(DbOptions(options), options.dir, families,
                                          &folder->families_, &db);
  } else {
    status = rocksdb::DB::Open(DbOptions(options), options.dir, families, &folder->families_, &db);
  }
  folder->db_.reset(db);
  if (!status.ok()) return folder->Explain(status);
  return folder;
}

RocksFolder::~RocksFolder() {
  if (db_ == nullptr) return;
  for (rocksdb::ColumnFamilyHandle* family : families_) {
    db_->DestroyColumnFamilyHandle(family).PermitUncheckedError();
  }
}

absl::Status RocksFolder::Explain(const rocksdb::Status& status, absl::string_view of) const {
  if (status.ok()) return absl::OkStatus();
  const std::string what =
      absl::StrCat("state folder ", dir_, ": ", of, of.empty() ? "" : ": ", status.ToString());
  if (IsFull(status)) {
    return absl::ResourceExhaustedError(absl::StrCat(what, "; make room on its disk"));
  }
  if (status.IsNotFound()) return absl::NotFoundError(what);
  if (status.IsIOError() && absl::StrContains(status.ToString(), "lock")) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            what, ". Another coordinator uses it; end that one, or name another folder")),
        kReasonFolderInUse);
  }
  if (status.IsCorruption()) {
    std::string files;
    if (!NamesAFile(what)) {
      if (absl::StrContains(what, "Blob")) {
        files = FilesOf(dir_, ".blob");
      } else if (of.empty()) {
        files = FilesOf(dir_, ".log");
      }
    }
    return absl::DataLossError(absl::StrCat(
        what, files,
        ". The folder is damaged before its end. Put a copy of it in its place (coordinator "
        "--check_store says whether one is sound), or start on an empty one, and the trainers "
        "of all nodes anew"));
  }
  return absl::InternalError(absl::StrCat(what, ". Look at the disk and its permissions"));
}

absl::Status RocksFolder::Read(rocksdb::ColumnFamilyHandle* family, const std::string& key,
                               google::protobuf::MessageLite* message) const {
  rocksdb::PinnableSlice value;
  ISTHMUS_RETURN_IF_ERROR(Explain(db_->Get(rocksdb::ReadOptions(), family, key, &value)));
  if (message->ParseFromArray(value.data(), static_cast<int>(value.size()))) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("state folder ", dir_, ": a ", message->GetTypeName(),
                                          " in it cannot be parsed; put a copy of the folder in "
                                          "its place"));
}

absl::StatusOr<StoredUpdatePtr> RocksFolder::ReadUpdate(uint64_t round) const {
  auto update = std::make_shared<StoredUpdate>();
  const std::unique_ptr<rocksdb::Iterator> iterator(
      db_->NewIterator(rocksdb::ReadOptions(), rounds()));
  iterator->Seek(RoundKey(round, 0));
  const auto damaged = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("state folder ", dir_, ": round ", round, ": ", what,
                                            "; put a copy of the folder in its place"));
  };
  if (iterator->Valid() && iterator->key() == RoundKey(round, 0)) {
    const rocksdb::Slice value = iterator->value();
    if (!update->record.ParseFromArray(value.data(), static_cast<int>(value.size())) ||
        update->record.round() != round) {
      return damaged("its record cannot be parsed, or is another round's");
    }
    iterator->Next();
  } else {
    ISTHMUS_RETURN_IF_ERROR(Explain(iterator->status()));
    return absl::NotFoundError(absl::StrCat("round ", round, " is not in ", dir_));
  }
  uint64_t bytes = 0;
  for (uint32_t piece = 0; piece < update->record.pieces(); ++piece, iterator->Next()) {
    if (!iterator->Valid() || iterator->key() != RoundKey(round, piece + 1)) {
      ISTHMUS_RETURN_IF_ERROR(Explain(iterator->status()));
      return damaged(absl::StrCat("piece ", piece, " is not there"));
    }
    std::string data = iterator->value().ToString();
    if (data.size() < kChunkCountAt + 4) return damaged(absl::StrCat("piece ", piece, " is short"));
    bytes += data.size();
    const uint64_t first = LittleEndian32(data, kFirstChunkAt);
    update->ranges.emplace_back(first, first + LittleEndian32(data, kChunkCountAt));
    auto event = std::make_shared<v1::WatchUpdatesResponse>();
    event->mutable_piece()->set_round(round);
    event->mutable_piece()->set_data(std::move(data));
    update->pieces.push_back(std::move(event));
  }
  if (bytes != update->record.payload_bytes()) {
    return damaged(absl::StrCat("its pieces have ", bytes, " bytes, its record says ",
                                update->record.payload_bytes()));
  }
  return update;
}

absl::StatusOr<v1::StoredSpan> RocksFolder::ReadSpan() const {
  v1::StoredSpan span;
  const absl::Status status = Read(main(), kSpanKey, &span);
  if (!absl::IsNotFound(status)) {
    ISTHMUS_RETURN_IF_ERROR(status);
    return span;
  }
  span.set_first_round(1);
  span.set_first_settled(1);
  return span;
}

absl::StatusOr<StoredState> RocksFolder::ReadState() const {
  StoredState state;
  ISTHMUS_ASSIGN_OR_RETURN(const v1::StoredSpan span, ReadSpan());
  state.last_round = span.last_round();
  v1::StoredRun run;
  absl::Status status = Read(main(), kRunKey, &run);
  if (status.ok()) state.run = run;
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  v1::StoredOpening open;
  status = Read(main(), kOpenKey, &open);
  if (status.ok()) state.open = open;
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  const std::unique_ptr<rocksdb::Iterator> iterator(
      db_->NewIterator(rocksdb::ReadOptions(), main()));
  for (iterator->Seek(kNodePrefix); iterator->Valid(); iterator->Next()) {
    if (!iterator->key().starts_with(kNodePrefix)) break;
    v1::StoredNode node;
    ISTHMUS_RETURN_IF_ERROR(Read(main(), iterator->key().ToString(), &node));
    state.nodes.push_back(std::move(node));
  }
  ISTHMUS_RETURN_IF_ERROR(Explain(iterator->status()));
  v1::StoredSnapshotPlan plan;
  status = Read(main(), kPlanKey, &plan);
  if (status.ok()) state.plan = plan;
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  ISTHMUS_RETURN_IF_ERROR(ReadSnapshots(&state.snapshots));
  return state;
}

absl::StatusOr<std::vector<uint64_t>> RocksFolder::SnapshotRounds() const {
  std::vector<uint64_t> rounds;
  if (snapshots() == nullptr) return rounds;
  const std::unique_ptr<rocksdb::Iterator> iterator(
      db_->NewIterator(rocksdb::ReadOptions(), snapshots()));
  iterator->SeekToFirst();
  while (iterator->Valid()) {
    const rocksdb::Slice key = iterator->key();
    rounds.push_back(ReadBigEndian({key.data(), std::min<size_t>(key.size(), 8)}));
    iterator->Seek(SnapshotKey(rounds.back() + 1));  // past its pieces
  }
  ISTHMUS_RETURN_IF_ERROR(Explain(iterator->status()));
  return rounds;
}

absl::Status RocksFolder::ReadSnapshots(std::vector<v1::StoredSnapshot>* read) const {
  ISTHMUS_ASSIGN_OR_RETURN(const std::vector<uint64_t> rounds, SnapshotRounds());
  for (uint64_t round : rounds) {
    v1::StoredSnapshot snapshot;
    const absl::Status status = Read(snapshots(), SnapshotKey(round), &snapshot);
    if (absl::IsNotFound(status)) continue;  // it does not count
    ISTHMUS_RETURN_IF_ERROR(status);
    if (snapshot.facts().round() != round) {
      return absl::DataLossError(absl::StrCat(
          "state folder ", dir_, ": the snapshot of round ", round, " says that it is of round ",
          snapshot.facts().round(), "; put a copy of the folder in its place"));
    }
    read->push_back(std::move(snapshot));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SectionRange>> RocksFolder::Pieces(uint64_t round) const {
  std::vector<SectionRange> ranges;
  if (snapshots() == nullptr) return ranges;
  const std::string prefix = SnapshotKey(round) + kHeldPart;
  // One step further, the first piece itself would be read.
  const std::string end_key = SnapshotKey(round) + kPiecePart;
  const rocksdb::Slice end(end_key);
  rocksdb::ReadOptions options;
  options.iterate_upper_bound = &end;
  const std::unique_ptr<rocksdb::Iterator> iterator(db_->NewIterator(options, snapshots()));
  for (iterator->Seek(prefix); iterator->Valid(); iterator->Next()) {
    const rocksdb::Slice key = iterator->key();
    if (!key.starts_with(prefix) || key.size() != kRangeKeyBytes) break;
    ranges.push_back(RangeOfKey({key.data(), key.size()}));
  }
  ISTHMUS_RETURN_IF_ERROR(Explain(iterator->status()));
  return ranges;
}

absl::StatusOr<std::string> RocksFolder::ReadPiece(uint64_t round,
                                                   const SectionRange& range) const {
  if (snapshots() == nullptr) return PieceNotKept(round, range);
  std::string data;
  const rocksdb::Status status =
      db_->Get(rocksdb::ReadOptions(), snapshots(), PieceKey(round, range), &data);
  if (status.IsNotFound()) return PieceNotKept(round, range);
  const std::string piece = absl::StrCat("the state after round ", round, ", piece [", range.begin,
                                         ", ", range.end, ") of section ", range.section);
  ISTHMUS_RETURN_IF_ERROR(Explain(status, piece));
  if (data.size() == PieceBytes(range)) return data;
  return absl::DataLossError(absl::StrCat("state folder ", dir_, ": ", piece, " has ", data.size(),
                                          " bytes, not ", PieceBytes(range),
                                          "; put a copy of the folder in its place"));
}

absl::StatusOr<std::vector<float>> RocksFolder::ReadAggregate(uint64_t round,
                                                              uint64_t elements) const {
  if (merged() == nullptr) return AggregateNotKept(round);
  const std::unique_ptr<rocksdb::Iterator> parts(
      db_->NewIterator(rocksdb::ReadOptions(), merged()));
  std::vector<float> values(elements);
  uint64_t bytes = 0;
  uint32_t part = 0;
  parts->Seek(RoundKey(round, 0));
  for (; parts->Valid() && parts->key() == RoundKey(round, part); parts->Next(), ++part) {
    const rocksdb::Slice value = parts->value();
    if (bytes + value.size() <= elements * sizeof(float)) {
      std::memcpy(reinterpret_cast<char*>(values.data()) + bytes, value.data(), value.size());
    }
    bytes += value.size();
  }
  ISTHMUS_RETURN_IF_ERROR(Explain(parts->status(), absl::StrCat("the aggregate of round ", round)));
  if (part == 0) return AggregateNotKept(round);
  if (bytes == elements * sizeof(float)) return values;
  const absl::Status other = AggregateOfOtherSize(round, bytes, elements);
  return absl::DataLossError(absl::StrCat("state folder ", dir_, ": ", other.message(),
                                          "; put a copy of the folder in its place"));
}

void RocksFolder::DropAggregates(uint64_t last_round, rocksdb::WriteBatch* writes) const {
  // Most runs have none, and then the family stays untouched.
  const std::unique_ptr<rocksdb::Iterator> first(
      db_->NewIterator(rocksdb::ReadOptions(), merged()));
  first->SeekToFirst();
  if (!first->Valid()) return;
  writes->DeleteRange(merged(), RoundKey(0, 0), RoundKey(last_round + 1, 0));
}

void RocksFolder::DropSnapshot(uint64_t round, rocksdb::WriteBatch* writes) const {
  writes->DeleteRange(snapshots(), SnapshotKey(round), SnapshotKey(round + 1));
}

}  // namespace isthmus
