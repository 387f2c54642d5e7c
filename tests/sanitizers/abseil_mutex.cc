// Locks of Abseil as ThreadSanitizer sees them. Debian's Abseil was not built with it and waits
// with futexes, so what one thread of gRPC does under such a lock and hands to another would look
// like a race of our code. These functions take the place of the library's in every program,
// libgrpc included, call the library's, and tell what follows what.

#include <dlfcn.h>
#include <unistd.h>

#include <cstring>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);

namespace {

// The library's function of that name.
template <typename Function>
Function* Next(const char* name) {
  void* const found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) {
    static constexpr char kSentence[] = "tests/sanitizers: no such function in Abseil: ";
    (void)!write(STDERR_FILENO, kSentence, sizeof(kSentence) - 1);
    (void)!write(STDERR_FILENO, name, std::strlen(name));
    (void)!write(STDERR_FILENO, "\n", 1);
    _exit(1);
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace

// The mangled names hold Debian's name for Abseil's inline namespace.
#define ISTHMUS_ABSEIL_NAME(rest) "_ZN4absl7debian3" rest

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static const auto next = Next<void(Mutex*)>(ISTHMUS_ABSEIL_NAME("5Mutex4LockEv"));
  next(this);
  __tsan_acquire(this);
}

bool Mutex::TryLock() {
  static const auto next = Next<bool(Mutex*)>(ISTHMUS_ABSEIL_NAME("5Mutex7TryLockEv"));
  const bool locked = next(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::Unlock() {
  static const auto next = Next<void(Mutex*)>(ISTHMUS_ABSEIL_NAME("5Mutex6UnlockEv"));
  __tsan_release(this);
  next(this);
}

void CondVar::Wait(Mutex* mutex) {
  static const auto next =
      Next<void(CondVar*, Mutex*)>(ISTHMUS_ABSEIL_NAME("7CondVar4WaitEPNS0_5MutexE"));
  __tsan_release(mutex);
  next(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static const auto next = Next<bool(CondVar*, Mutex*, Duration)>(
      ISTHMUS_ABSEIL_NAME("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"));
  __tsan_release(mutex);
  const bool timed_out = next(this, mutex, timeout);
  __tsan_acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const auto next = Next<bool(CondVar*, Mutex*, Time)>(
      ISTHMUS_ABSEIL_NAME("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"));
  __tsan_release(mutex);
  const bool timed_out = next(this, mutex, deadline);
  __tsan_acquire(mutex);
  return timed_out;
}

ABSL_NAMESPACE_END
}  // namespace absl
