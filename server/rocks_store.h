// The store on disk: a RocksDB database in a folder of its own.
//
// One synced write a commit holds the record, the pieces, the settlement, the span of what is kept,
// the opening of the next round, and the removal of what is too old. After a crash the folder holds
// every write that was answered, and perhaps the one that was not. A torn end of the log is what a
// crash leaves and is cut off; damage before the end is refused, and the file named.
//
//   run, kept, open, plan, node/NAME   family "default"; see storage.proto
//   ROUND PART      family "rounds": part 0 is the record, part i + 1 its piece i, as 64 and 32
//                   bits big endian. Pieces lie in blob files, so they are written to the log and
//                   to one file, and never again
//   ROUND           family "settled"
//   ROUND           family "snapshots": what makes the pieces of its state count; synced, and with
//                   it all that was written before
//   ROUND 0 RANGE   the same family: that there is this piece. RANGE is section, begin, end, as 32,
//                   64 and 64 bits big endian
//   ROUND 1 RANGE   the same family: the piece, in a blob file
//   ROUND PART      family "merged": a part of the aggregate that a hosted round's outer step took,
//                   float32, in a blob file. Written before the commit that makes it count
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store.h"

namespace rocksdb {
class Env;
}  // namespace rocksdb

namespace isthmus {

struct RocksStoreOptions {
  std::string dir;  // made where it is not there; one process at a time has it
  StoreLimits limits;
  // Collected in memory before it becomes a file; the log is at most twice as long, and is what a
  // start reads. Small rounds fill it in a minute, so that memory soon is what it will be; of large
  // ones each becomes a file of its own.
  size_t write_buffer_bytes = size_t{8} << 20;
  rocksdb::Env* env = nullptr;  // null: the system's; else outlives the store
};

//   FAILED_PRECONDITION  another process has the folder, or it is none, or may not be written
//   DATA_LOSS            it is damaged; names the file
//   RESOURCE_EXHAUSTED   no room to open it
absl::StatusOr<std::unique_ptr<Store>> OpenRocksStore(const RocksStoreOptions& options);

// What was found in a state folder.
struct StoreReport {
  std::vector<std::string> lines;  // for people, what is there
  absl::Status status;             // DATA_LOSS at the first thing that does not hold
};

// Reads all that the folder holds and verifies it: checksums of files, the chain of records, the
// hash of every payload, sizes, settlements, the state of every snapshot, and that the parts fit
// together. Reads a piece at a time. Changes nothing.
// FAILED_PRECONDITION: it is no state folder, or a coordinator is using it.
absl::StatusOr<StoreReport> CheckRocksStore(const RocksStoreOptions& options);

}  // namespace isthmus
