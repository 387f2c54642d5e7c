#include "transport/watch_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace isthmus {

WatchQueue::WatchQueue(size_t events_max) : events_max_(events_max) {}

void WatchQueue::Push(WatchEvent event) {
  ISTHMUS_CHECK(event != nullptr);
  std::function<void()> ready;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    if (events_.size() >= events_max_) {
      events_.clear();
      closed_ = true;
      status_ = absl::ResourceExhaustedError(
          absl::StrCat("this watcher fell behind: more than ", events_max_,
                       " events wait for it; watch again from the last round applied"));
    } else {
      events_.push_back(std::move(event));
    }
    ready = ready_;
  }
  if (ready) ready();
}

void WatchQueue::Close(absl::Status status) {
  std::function<void()> ready;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    closed_ = true;
    status_ = std::move(status);
    ready = ready_;
  }
  if (ready) ready();
}

void WatchQueue::OnReady(std::function<void()> ready) {
  std::lock_guard<std::mutex> lock(mutex_);
  ISTHMUS_CHECK(ready_ == nullptr);
  ready_ = std::move(ready);
}

WatchQueue::Taken WatchQueue::Take() {
  std::lock_guard<std::mutex> lock(mutex_);
  Taken taken;
  if (!events_.empty()) {
    taken.event = std::move(events_.front());
    events_.pop_front();
  } else if (closed_) {
    taken.closed = true;
    taken.status = status_;
  }
  return taken;
}

}  // namespace isthmus
