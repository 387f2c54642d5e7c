// What a run must not lose: what it is, who was admitted, its committed rounds, the round that is
// open, and snapshots. One interface for the store on disk (rocks_store.h) and for the one in
// memory, which lasts as long as the object.
//
//   StoreBatch batch;
//   batch.update = update;            // commits its round
//   batch.open = opening;             // and opens the next one, in the same breath
//   status = store->Write(batch);
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/limits.h"
#include "isthmus/v1/coordinator.pb.h"
#include "isthmus/v1/storage.pb.h"
#include "spec/section_ranges.h"
#include "transport/watch_queue.h"

namespace isthmus {

// Reason of the error where another process has a state folder open.
inline constexpr char kReasonFolderInUse[] = "STATE_FOLDER_IN_USE";

// A committed round: its record, and its pieces as the events that carry them, so that what is kept
// and what every watcher is sent are the same bytes in one place. Never changes.
struct StoredUpdate {
  v1::UpdateRecord record;
  std::vector<WatchEvent> pieces;                     // each an UpdatePiece, ascending
  std::vector<std::pair<uint64_t, uint64_t>> ranges;  // chunks of each piece, half-open
  uint64_t bytes() const { return record.payload_bytes(); }
};
using StoredUpdatePtr = std::shared_ptr<const StoredUpdate>;

// Everything but the updates: what a coordinator starts from.
struct StoredState {
  absl::optional<v1::StoredRun> run;            // absent: the store is empty
  std::vector<v1::StoredNode> nodes;            // ascending by name
  absl::optional<v1::StoredOpening> open;       // absent: no round is committed, or the last one is
  uint64_t last_round = 0;                      // the last committed round; 0: none
  absl::optional<v1::StoredSnapshotPlan> plan;  // the last one; absent: there was none
  std::vector<v1::StoredSnapshot> snapshots;    // those that count, ascending by round
};

// What becomes durable together or not at all. Parts that are absent stay as they were.
struct StoreBatch {
  absl::optional<v1::StoredRun> run;
  absl::optional<v1::StoredNode> node;  // in place of the one of that name
  StoredUpdatePtr update;               // commits its round; rounds come without gaps, from 1
  // The round that `update` opens. With an update an absent one means that the run is finished.
  absl::optional<v1::StoredOpening> open;
  // With an update: whatever the store's limits say, updates after this round are kept and those up
  // to it are not. Absent: the limits decide.
  absl::optional<uint64_t> keep_after;
  // With an update: whatever else is said, updates after this round stay. They are all there is
  // between the newest snapshot, or the start state, and the present. Absent: nobody needs them.
  absl::optional<uint64_t> needed_after;
  // With an update whose outer step the coordinator took: the aggregate that it took, a float32 for
  // each element of the model. It stays until a snapshot of that round or a later one counts.
  std::shared_ptr<const std::vector<float>> aggregate;
  // Whose state becomes the next snapshot. Pieces of all rounds that do not count go.
  absl::optional<v1::StoredSnapshotPlan> plan;
  // All of its pieces were written: from here on it counts. All but the kSnapshotsKept newest go.
  absl::optional<v1::StoredSnapshot> snapshot;
};

// How much is kept. A commit drops old rounds, never the one it commits.
struct StoreLimits {
  uint64_t rounds_max = kStoredRoundsDefault;
  uint64_t bytes_max = kStoredBytesDefault;  // of pieces, and of what a round costs beside them
  uint64_t settled_rounds_max = kStoredDigestRounds;
};
// A round costs this much beside its pieces, so that void updates are counted too.
inline constexpr uint64_t kStoredRoundBytes = 4096;

// Thread-safe.
class Store {
 public:
  virtual ~Store() = default;

  // Makes the batch durable before it returns OK.
  //   RESOURCE_EXHAUSTED  there is no room: it does not count yet; write the same batch again when
  //                       there is
  //   any other error     the disk cannot be trusted: it may or may not be there after a restart.
  //                       End the process and answer nobody; never write again
  virtual absl::Status Write(const StoreBatch& batch) = 0;

  virtual StoredState State() const = 0;

  // Whether what was written is still there after the process has ended.
  virtual bool durable() const = 0;

  // Updates after `last_round`, ascending: at least one (none when it is the last), and no more
  // after their payloads together reach `bytes_max`.
  //   OUT_OF_RANGE  the first of them is no longer kept; says which are
  //   DATA_LOSS     it is damaged; says where
  virtual absl::StatusOr<std::vector<StoredUpdatePtr>> ReadAfter(uint64_t last_round,
                                                                 uint64_t bytes_max) const = 0;

  // The last committed round; 0: none.
  virtual uint64_t last_round() const = 0;
  // The first round whose update is kept; last_round() + 1: none is.
  virtual uint64_t first_round() const = 0;
  // About how many bytes the payloads after that round have, from the average of those kept.
  virtual uint64_t BytesAfter(uint64_t last_round) const = 0;
  virtual const StoreLimits& limits() const = 0;
  // SHA-256 of a round's record; empty for round 0. OUT_OF_RANGE: no longer known.
  virtual absl::StatusOr<std::string> RecordSha256(uint64_t round) const = 0;

  // Keeps a piece of the state after `round`: PieceBytes(range) bytes. It lasts when the snapshot
  // does; a crash before that may lose it, but never a part of it. The same again is well; what
  // overlaps another piece is the caller's to refuse. Errors as those of Write.
  virtual absl::Status WritePiece(uint64_t round, const SectionRange& range,
                                  absl::string_view data) = 0;
  // The pieces of that round that are there, as they were cut, ascending.
  virtual std::vector<SectionRange> Pieces(uint64_t round) const = 0;
  // One of them. NOT_FOUND: it is not there (any more). DATA_LOSS: damaged.
  virtual absl::StatusOr<std::string> ReadPiece(uint64_t round,
                                                const SectionRange& range) const = 0;

  // The aggregate of that many elements that came with the update of `round`.
  //   NOT_FOUND  it came without one, or a snapshot has made it needless
  //   DATA_LOSS  it is damaged; says where
  virtual absl::StatusOr<std::vector<float>> ReadAggregate(uint64_t round,
                                                           uint64_t elements) const = 0;
};

// Size of a piece: a float32, little endian, for each of its elements.
inline uint64_t PieceBytes(const SectionRange& range) {
  return (range.end - range.begin) * sizeof(float);
}

// Keeps everything in memory, as long as it lives.
std::unique_ptr<Store> MakeMemoryStore(const StoreLimits& limits = {kStoredRoundsDefault,
                                                                    kKeptUpdateBytesMax,
                                                                    kStoredDigestRounds});

// A commit drops at most so many rounds, so that it takes about as long as any other; limits that
// were lowered by much take effect over the commits that follow.
inline constexpr uint64_t kRoundsDroppedAtOnce = 64;

// The first round to keep of the updates [first_round, last_round] with `bytes` in all: what the
// limits allow, or the batch's keep_after if it is there, what it needs, and the last one always.
// `bytes_of` gives what a round counts.
template <typename BytesOf>
uint64_t FirstRoundToKeep(const StoreLimits& limits, const StoreBatch& batch, uint64_t first_round,
                          uint64_t last_round, uint64_t bytes, const BytesOf& bytes_of) {
  const absl::optional<uint64_t>& keep_after = batch.keep_after;
  uint64_t most = std::min(last_round, first_round + kRoundsDroppedAtOnce);
  if (batch.needed_after.has_value()) most = std::min(most, *batch.needed_after + 1);
  while (first_round < most) {
    const bool over = keep_after.has_value() ? first_round <= *keep_after
                                             : last_round - first_round >= limits.rounds_max ||
                                                   bytes > limits.bytes_max;
    if (!over) break;
    bytes -= bytes_of(first_round);
    ++first_round;
  }
  return first_round;
}

// What Store::BytesAfter says of rounds [first_round, last_round] with `bytes` in all.
uint64_t AverageBytesAfter(uint64_t after, uint64_t first_round, uint64_t last_round,
                           uint64_t bytes);

// What is in `state` once the batch is: run, node, plan, snapshots and, of a commit, the open
// round. Everything but what hangs on the updates themselves.
void ApplyBatch(const StoreBatch& batch, StoredState* state);

// The rounds whose pieces stay with the batch, once it is in `state`: those of the snapshots that
// count, and that of a plan which was there before.
std::set<uint64_t> RoundsToKeep(const StoreBatch& batch, const StoredState& state);

// The answer to a question about rounds that are not kept.
absl::Status UpdateNotKept(uint64_t round, uint64_t first_round, uint64_t last_round,
                           const StoreLimits& limits);

// The answer to a question about a piece that is not there.
absl::Status PieceNotKept(uint64_t round, const SectionRange& range);
// The same of an aggregate, and of one that has another size than the model.
absl::Status AggregateNotKept(uint64_t round);
absl::Status AggregateOfOtherSize(uint64_t round, uint64_t bytes, uint64_t elements);

}  // namespace isthmus
