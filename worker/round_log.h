// What came down from the coordinator and the ranks may still want: for each round that it opened
// and its update with all pieces, as events that all watches share. Pure, not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "isthmus/v1/coordinator.pb.h"
#include "spec/piece.h"
#include "transport/session.h"
#include "transport/watch_queue.h"

namespace isthmus {

// Checks an update once for all ranks: its record and chain (spec/update_record.h), the number and
// sum of its pieces and their digest. DATA_LOSS. `previous` is the hash of the record before it;
// empty: round 1.
absl::Status CheckUpdate(const Grid& grid, const CommittedUpdate& update,
                         const std::string& previous);

class RoundLog {
 public:
  // Nothing is kept before `last_round`, which the node holds already. When more than `bytes_max`
  // bytes of pieces wait, the oldest rounds go; the newest stays.
  RoundLog(uint64_t last_round, size_t bytes_max);

  // Rounds come in order; a round that came before is ignored.
  void Opened(const v1::RoundOpened& opened);
  // The update was checked. `own_included`: see WatchUpdatesResponse.
  void Committed(std::shared_ptr<const Grid> grid, const CommittedUpdate& update,
                 bool own_included);
  void Finished(uint64_t last_round);

  uint64_t committed_round() const { return committed_round_; }
  bool finished() const { return finished_ != nullptr; }
  // Of a committed round that is still kept; else empty.
  std::string RecordSha256(uint64_t round) const;

  // What a rank that has applied `last_round` and holds `ranges` gets: all events of later rounds
  // in order. OUT_OF_RANGE if some of them are no longer kept.
  absl::StatusOr<std::vector<WatchEvent>> After(uint64_t last_round,
                                                const ChunkRanges& ranges) const;
  // The events of one update for one rank: the record, the pieces that overlap `ranges`.
  std::vector<WatchEvent> UpdateFor(uint64_t round, const ChunkRanges& ranges) const;
  WatchEvent OpenedEvent(uint64_t round) const;
  WatchEvent FinishedEvent() const { return finished_; }

  // All ranks have applied this round.
  void Forget(uint64_t through_round);

 private:
  struct KeptPiece {
    uint64_t first_chunk = 0;
    uint64_t end_chunk = 0;
    WatchEvent event;
  };
  struct Round {
    WatchEvent opened;
    bool committed = false;
    v1::WatchUpdatesResponse update;  // record and own_included
    std::vector<KeptPiece> pieces;
    size_t bytes = 0;
  };

  std::map<uint64_t, Round> rounds_;  // none at or below forgotten_round_
  uint64_t forgotten_round_;
  uint64_t committed_round_;
  size_t bytes_max_;
  size_t bytes_ = 0;
  WatchEvent finished_;
};

}  // namespace isthmus
