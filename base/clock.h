// The one source of time for leases, deadlines and back-off: monotonic milliseconds. Injected, so
// that tests and the simulator own it.
#pragma once

#include <chrono>
#include <cstdint>

namespace isthmus {

class Clock {
 public:
  virtual ~Clock() = default;
  // Milliseconds since an arbitrary point; never goes back. Unaffected by wall clock changes.
  virtual int64_t NowMs() const = 0;
};

class MonotonicClock final : public Clock {
 public:
  int64_t NowMs() const override {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace isthmus
