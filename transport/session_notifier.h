// Calls a session's listener, one call at a time, and tells what is waited for when it changes.
// Thread-safe.
#pragma once

#include <array>
#include <functional>
#include <mutex>
#include <string>

#include "transport/session.h"

namespace isthmus {

class SessionNotifier {
 public:
  explicit SessionNotifier(SessionListener* listener) : listener_(listener) {}

  // Calls `action` unless the session is over.
  void Call(const std::function<void(SessionListener*)>& action);
  // The last call.
  void End(const std::function<void(SessionListener*)>& action);
  // No call after this returns; waits for the one under way.
  void Stop();

  // Why the session waits, most important first; an empty sentence: not for this. The listener is
  // told the first that is not empty.
  enum Source { kConnection, kSubmission, kServer, kSources };
  void Waiting(Source source, const std::string& sentence);

 private:
  SessionListener* listener_;
  std::mutex mutex_;
  bool over_ = false;
  std::array<std::string, kSources> sentences_;
  std::string told_;
};

}  // namespace isthmus
