// What happened to the rounds of a run, kept for operators: the newest rounds, and a ring of the
// newest changes that watchers read at their own pace.
//
// The coordinator writes under its own lock, so every write here is short and waits for nobody.
// Readers take only the lock in here. Nobody is pushed to: a watcher that reads slowly costs one
// number, and when the ring has gone past it, it is told so.
//
//   history.Opened(…); history.Completed(7, "fra-1", moment); … history.Committed(…);
//   auto watch = history.StartWatch();            // how things stand, and where to read on
//   history.WaitPast(watch.cursor, timeout_ms);
//   auto read = history.Read(watch.cursor);       // one change, or nothing yet, or lost
//
// Thread-safe. No gRPC.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "base/limits.h"
#include "isthmus/v1/monitor.pb.h"

namespace isthmus {

struct HistoryLimits {
  size_t rounds = kHistoryRoundsMax;
  size_t changes = kHistoryChangesMax;
  size_t bytes = kHistoryBytesMax;  // of the rounds kept, and of the changes kept, each
};

// The same moment on the coordinator's monotonic clock and on the wall.
struct Moment {
  int64_t now_ms = 0;
  absl::Time wall;
};

using RoundPtr = std::shared_ptr<const v1::Round>;
using RoundChangePtr = std::shared_ptr<const v1::WatchRoundsResponse>;

class RoundHistory {
 public:
  explicit RoundHistory(const HistoryLimits& limits = HistoryLimits());

  // --- The coordinator's side, in the order of a round's life.
  struct Opening {
    uint64_t round = 0;
    uint64_t step = 0;
    float learning_rate = 0;
    std::vector<v1::RoundNode> nodes;  // all of the run's, ascending
  };
  void Opened(const Opening& opening, const Moment& at);
  // A node was taken into an open round.
  void TookIn(uint64_t round, const std::string& node);
  // A node was evicted or its state differs: it is out, with what it had sent.
  void TookOut(uint64_t round, const std::string& node, v1::NodeOutcome outcome,
               const std::string& reason);
  void Completed(uint64_t round, const std::string& node, const Moment& at);
  // The coordinator has waited a while for something else than before.
  void Waiting(const std::string& sentence, const Moment& at);
  // Of the oldest open round. No contribution counts any more; what became of each node's is final.
  void Closed(std::vector<v1::RoundNode> nodes, bool is_void);
  void Committed(uint64_t payload_bytes, const std::string& sha256, const Moment& at);
  void Finished(const Moment& at);

  // --- The readers' side.
  // The oldest open round, or the last one; absent: none has opened.
  absl::optional<v1::Round> Newest(int64_t now_ms) const;
  // Null: not kept, or not opened yet.
  RoundPtr Find(uint64_t round, int64_t now_ms) const;
  // Rounds below `before`, newest first, at most `count`, and less than `bytes_max` after the
  // first.
  std::vector<RoundPtr> Before(uint64_t before, size_t count, size_t bytes_max,
                               int64_t now_ms) const;
  // The oldest round kept; 0: none.
  uint64_t oldest() const;

  struct Pace {
    absl::optional<int64_t> last_commit_ms;  // on the monotonic clock
    double rounds_last_minute = 0;
    absl::optional<int64_t> mean_round_ms;  // of the newest rounds, at most 20
  };
  Pace PaceAt(int64_t now_ms) const;

  // How things stand, and the cursor of what follows.
  struct Start {
    v1::WatchRoundsResponse current;
    uint64_t cursor = 0;
    bool finished = false;
  };
  Start StartWatch(const Moment& at) const;
  struct ReadResult {
    RoundChangePtr change;  // null: nothing yet, or lost
    bool lost = false;      // the ring has gone past the cursor
  };
  ReadResult Read(uint64_t cursor) const;
  // Returns when there are changes at or after the cursor, on Interrupt, or after the timeout.
  void WaitPast(uint64_t cursor, int timeout_ms) const;
  void Interrupt();
  uint64_t end_cursor() const;
  // Changes are only recorded while somebody watches. The caller pairs the two.
  void AddWatcher();
  void RemoveWatcher();

 private:
  struct Kept {
    RoundPtr round;
    int64_t opened_ms = 0;
    int64_t committed_ms = 0;
    size_t bytes = 0;
  };
  struct Open {
    v1::Round round;
    int64_t opened_ms = 0;
  };
  // `about`: the open round; null: the oldest, or the last one.
  void RecordLocked(v1::RoundChange change, const Moment& at, const Open* about,
                    const std::string& node, const std::string& waiting_for);
  Open* FindOpenLocked(uint64_t round);
  static v1::RoundNode* FindNode(Open* open, const std::string& node);
  static v1::Round ViewOf(const Open& open, int64_t now_ms);

  const HistoryLimits limits_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Kept> kept_;  // committed, ascending without gaps
  size_t kept_bytes_ = 0;
  std::deque<Open> open_;  // not committed yet, ascending without gaps; one without overlap
  bool finished_ = false;
  size_t watchers_ = 0;
  std::deque<std::pair<RoundChangePtr, size_t>> changes_;  // with their sizes
  size_t changes_bytes_ = 0;
  uint64_t first_change_ = 0;  // number of the front of changes_
  uint64_t interrupts_ = 0;
};

}  // namespace isthmus
