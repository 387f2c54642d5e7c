// Events on their way to one watcher. The host pushes, the transport takes one at a time and sends
// it only when the one before it has left (so a slow reader holds one message in the transport).
// Events are shared between watchers, never copied. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "isthmus/v1/coordinator.pb.h"

namespace isthmus {

using WatchEvent = std::shared_ptr<const v1::WatchUpdatesResponse>;

class WatchQueue {
 public:
  // At most `events_max` events wait; one more closes the queue with RESOURCE_EXHAUSTED.
  explicit WatchQueue(size_t events_max);

  // Host side. After Close, pushes are ignored; the status goes to the watcher after the events
  // that were pushed before it (an overflow drops them).
  void Push(WatchEvent event);
  void Close(absl::Status status);

  // Transport side. `ready` is called (from any thread, without locks held) when Take may succeed
  // again after it returned nothing. Set once.
  void OnReady(std::function<void()> ready);
  struct Taken {
    WatchEvent event;     // next event, or
    bool closed = false;  // ... the end, with its status
    absl::Status status;
  };
  Taken Take();

 private:
  std::mutex mutex_;
  std::deque<WatchEvent> events_;
  size_t events_max_;
  bool closed_ = false;
  absl::Status status_;
  std::function<void()> ready_;
};

}  // namespace isthmus
