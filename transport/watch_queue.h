// Events on their way to one watcher. The host pushes, the transport takes one at a time and sends
// it only when the one before it has left (so a slow reader holds one message in the transport).
// Events are shared between watchers, never copied. What is of the past is read when its turn
// comes, so that a watcher who stops reading holds none of it. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "isthmus/v1/coordinator.pb.h"

namespace isthmus {

using WatchEvent = std::shared_ptr<const v1::WatchUpdatesResponse>;

class WatchQueue {
 public:
  // The next events of the past; none: that was all.
  using Past = std::function<absl::StatusOr<std::vector<WatchEvent>>()>;

  // At most `events_max` events wait; one more drops them and closes the queue with
  // RESOURCE_EXHAUSTED. An update that begins while `bytes_max` or more wait is not taken, and what
  // waits is followed by the same status: so one that reads slowly still gets on, and what waits is
  // never more than `bytes_max` and an update.
  explicit WatchQueue(size_t events_max, size_t bytes_max = std::numeric_limits<size_t>::max());

  // Host side. After Close, pushes are ignored; the status goes to the watcher after the events
  // that were pushed before it (an overflow drops them).
  void Push(WatchEvent event);
  // Once: what `past` gives, portion by portion, comes at this place. It is called by Take, without
  // locks; an error of it ends the watch.
  void PushPast(Past past);
  void Close(absl::Status status);

  // Transport side. `ready` is called (from any thread, without locks held) when Take may succeed
  // again after it returned nothing. Set once.
  void OnReady(std::function<void()> ready);
  struct Taken {
    WatchEvent event;     // next event, or
    bool closed = false;  // ... the end, with its status
    absl::Status status;
  };
  // By one thread at a time.
  Taken Take();
  // Whether it was closed because the watcher did not keep up.
  bool fell_behind() const;

 private:
  Taken TakeOfPast();

  mutable std::mutex mutex_;
  std::deque<WatchEvent> events_;  // null: here comes the past
  const size_t events_max_;
  const size_t bytes_max_;
  size_t bytes_ = 0;  // of events_
  Past past_;         // called by Take alone; it and the portion belong to its thread
  std::deque<WatchEvent> portion_;
  bool fell_behind_ = false;
  bool closed_ = false;
  absl::Status status_;
  std::function<void()> ready_;
};

}  // namespace isthmus
