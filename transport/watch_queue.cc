#include "transport/watch_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

// What is large in an event; the rest is pointers and some fields.
size_t BytesOf(const WatchEvent& event) {
  return event == nullptr ? 0 : event->piece().data().size();
}

absl::Status Behind(const std::string& lag) {
  return WithRetryAfterMs(
      WithReason(absl::ResourceExhaustedError(absl::StrCat(
                     "this watcher fell behind: ", lag,
                     " wait for it; watch again from the last round that was applied")),
                 "WATCHER_BEHIND"),
      0);
}

}  // namespace

WatchQueue::WatchQueue(size_t events_max, size_t bytes_max)
    : events_max_(events_max), bytes_max_(bytes_max) {}

void WatchQueue::Push(WatchEvent event) {
  ISTHMUS_CHECK(event != nullptr);
  std::function<void()> ready;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    if (event->has_update() && bytes_ >= bytes_max_) {
      fell_behind_ = closed_ = true;
      status_ = Behind(
          absl::StrCat(bytes_, " bytes of updates, of which ", bytes_max_, " is the limit,"));
    } else if (events_.size() >= events_max_) {
      events_.clear();
      bytes_ = 0;
      fell_behind_ = closed_ = true;
      status_ = Behind(absl::StrCat("more than ", events_max_, " events"));
    } else {
      bytes_ += BytesOf(event);
      events_.push_back(std::move(event));
    }
    ready = ready_;
  }
  if (ready) ready();
}

void WatchQueue::PushPast(Past past) {
  std::lock_guard<std::mutex> lock(mutex_);
  ISTHMUS_CHECK(past_ == nullptr && ready_ == nullptr && past != nullptr);
  past_ = std::move(past);
  events_.push_back(nullptr);
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
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool is_past = !events_.empty() && events_.front() == nullptr;
    if (!is_past) {
      Taken taken;
      if (!events_.empty()) {
        taken.event = std::move(events_.front());
        bytes_ -= BytesOf(taken.event);
        events_.pop_front();
      } else if (closed_) {
        taken.closed = true;
        taken.status = status_;
      }
      return taken;
    }
  }
  return TakeOfPast();
}

// Without the lock: it may come from the disk.
WatchQueue::Taken WatchQueue::TakeOfPast() {
  Taken taken;
  if (portion_.empty()) {
    absl::StatusOr<std::vector<WatchEvent>> next = past_();
    if (!next.ok() || next->empty()) {
      std::lock_guard<std::mutex> lock(mutex_);
      // Events that were too many may have gone meanwhile, and this place with them.
      if (!events_.empty() && events_.front() == nullptr) events_.pop_front();
      past_ = [] { return std::vector<WatchEvent>(); };
      if (!next.ok()) {
        events_.clear();
        bytes_ = 0;
        closed_ = true;
        status_ = next.status();
      }
    } else {
      portion_.assign(next->begin(), next->end());
    }
    if (portion_.empty()) return Take();
  }
  taken.event = std::move(portion_.front());
  portion_.pop_front();
  return taken;
}

bool WatchQueue::fell_behind() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return fell_behind_;
}

}  // namespace isthmus
