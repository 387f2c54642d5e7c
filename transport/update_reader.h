// What arrives on the watches of a session, one after the other, put together and in order: updates
// whole, each round once, the chain of hashes checked, whatever a new watch repeats left out. No
// threads, no time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "isthmus/v1/coordinator.pb.h"
#include "transport/session.h"

namespace isthmus {

// A round and the hash of its record; the start state is round 0 with no hash.
struct RoundHash {
  uint64_t round = 0;
  std::string sha256;
};

class UpdateReader {
 public:
  // `held`: what the caller holds when the session starts.
  explicit UpdateReader(RoundHash held);

  // A new watch, which asked for what follows `after`; what was half read is dropped. A coordinator
  // sends every piece and is never behind its callers; an agent sends a rank what it wants, and may
  // have to catch up after a restart.
  void StartWatch(RoundHash after, bool from_coordinator);

  // At most one of them is set.
  struct News {
    std::optional<v1::WatchStart> start;
    std::optional<v1::RoundOpened> opened;
    std::optional<v1::SpecRevised> revised;
    std::shared_ptr<const CommittedUpdate> update;
    std::optional<uint64_t> finished;
  };
  // Takes one event, which it moves from. DATA_LOSS: a gap, or a record that does not continue the
  // chain. INTERNAL: the server does not keep to the protocol.
  absl::StatusOr<News> Take(v1::WatchUpdatesResponse* event);

  uint64_t bytes() const { return bytes_; }  // of pieces, over all watches

 private:
  absl::StatusOr<News> TakeStart(v1::WatchStart* start);
  absl::Status CheckRecord(const v1::WatchUpdatesResponse& event) const;
  absl::StatusOr<News> TakeRecord(v1::WatchUpdatesResponse* event);
  absl::StatusOr<News> TakePiece(v1::UpdatePiece* piece);
  absl::StatusOr<News> Finished(uint64_t round) const;
  // The update that is complete now, unless it was delivered before.
  absl::StatusOr<News> Complete();

  RoundHash delivered_;        // over all watches
  std::set<uint64_t> opened_;  // that were told, and are not delivered
  uint64_t revision_ = 0;      // the same
  RoundHash read_;             // on this watch
  bool from_coordinator_ = false;
  bool started_ = false;  // this watch had its first event
  std::shared_ptr<CommittedUpdate> partial_;
  uint32_t missing_pieces_ = 0;
  uint64_t partial_bytes_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace isthmus
