#include "transport/stall_guard.h"

#include <utility>

namespace isthmus {

StallGuard::StallGuard(int timeout_ms, std::function<void()> on_stall)
    : timeout_(timeout_ms),
      on_stall_(std::move(on_stall)),
      last_progress_(std::chrono::steady_clock::now()),
      thread_([this] { Run(); }) {}

StallGuard::~StallGuard() {
  Disarm();
  thread_.join();
}

void StallGuard::Progress() {
  std::lock_guard<std::mutex> lock(mutex_);
  last_progress_ = std::chrono::steady_clock::now();
}

void StallGuard::Disarm() {
  std::lock_guard<std::mutex> lock(mutex_);
  armed_ = false;
  changed_.notify_all();
}

bool StallGuard::stalled() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stalled_;
}

void StallGuard::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (armed_) {
    const auto end = last_progress_ + timeout_;
    if (std::chrono::steady_clock::now() < end) {
      changed_.wait_until(lock, end);
      continue;
    }
    armed_ = false;
    stalled_ = true;
    lock.unlock();
    on_stall_();
    return;
  }
}

}  // namespace isthmus
