// Cancels a call that makes no progress. A call with a plain deadline would have to know how long a
// large payload takes on a slow link; this one only has to keep moving.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace isthmus {

class StallGuard {
 public:
  // Calls `on_stall` once, on a thread of its own, `timeout_ms` after the last Progress().
  StallGuard(int timeout_ms, std::function<void()> on_stall);
  ~StallGuard();

  void Progress();
  // No stall is noticed any more.
  void Disarm();
  bool stalled() const;

 private:
  void Run();

  const std::chrono::milliseconds timeout_;
  const std::function<void()> on_stall_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::chrono::steady_clock::time_point last_progress_;
  bool armed_ = true;
  bool stalled_ = false;
  std::thread thread_;
};

}  // namespace isthmus
