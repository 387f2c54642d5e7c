#include "transport/session_notifier.h"

namespace isthmus {

void SessionNotifier::Call(const std::function<void(SessionListener*)>& action) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!over_) action(listener_);
}

void SessionNotifier::End(const std::function<void(SessionListener*)>& action) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!over_) action(listener_);
  over_ = true;
}

void SessionNotifier::Stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  over_ = true;
}

void SessionNotifier::Waiting(Source source, const std::string& sentence) {
  std::lock_guard<std::mutex> lock(mutex_);
  sentences_[source] = sentence;
  std::string first;
  for (const std::string& one : sentences_) {
    if (first.empty()) first = one;
  }
  if (over_ || first == told_) return;
  told_ = first;
  listener_->OnWaiting(told_);
}

}  // namespace isthmus
