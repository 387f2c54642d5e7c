// What a run must not lose: its committed rounds. One interface, so that a store on disk can take
// the place of the one in memory.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "isthmus/v1/coordinator.pb.h"
#include "transport/watch_queue.h"

namespace isthmus {

// A committed round: its record, and its pieces as the events that carry them, so that what is kept
// and what every watcher is sent are the same bytes in one place. Never changes.
struct StoredUpdate {
  v1::UpdateRecord record;
  std::vector<WatchEvent> pieces;                     // each an UpdatePiece, ascending
  std::vector<std::pair<uint64_t, uint64_t>> ranges;  // chunks of each piece, half-open
  uint64_t bytes() const { return record.payload_bytes(); }
};
using StoredUpdatePtr = std::shared_ptr<const StoredUpdate>;

// Thread-safe.
class Store {
 public:
  virtual ~Store() = default;

  // Makes the update durable before it returns OK. Rounds come in order without gaps, from 1.
  virtual absl::Status Commit(StoredUpdatePtr update) = 0;

  // Updates after `last_round`, ascending; none when it is the last one.
  // OUT_OF_RANGE: some of them are no longer kept; says which are.
  virtual absl::StatusOr<std::vector<StoredUpdatePtr>> ReadAfter(uint64_t last_round) const = 0;

  // The last committed round; 0: none.
  virtual uint64_t last_round() const = 0;
  // SHA-256 of a round's record; empty for round 0. OUT_OF_RANGE: no longer known.
  virtual absl::StatusOr<std::string> RecordSha256(uint64_t round) const = 0;
};

// Keeps the newest updates up to `bytes_max` (and always the last one), and loses all of them with
// the process.
std::unique_ptr<Store> MakeMemoryStore(size_t bytes_max);

}  // namespace isthmus
