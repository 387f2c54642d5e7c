// Does, on purpose, one thing that a sanitizer has to report, or one that looks like it and is
// right: `misuse KIND`.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/mutex.h"

namespace {

// What the compiler must not see through.
volatile int sink;
volatile size_t index_past_end = 16;
void* volatile kept;

void UseAfterFree() {
  auto value = std::make_unique<int>(1);
  const int* const pointer = value.get();
  value.reset();
  sink = *pointer;
}

void HeapOverflow() {
  const std::unique_ptr<char[]> bytes(new char[16]);
  kept = bytes.get();
  sink = static_cast<char*>(kept)[index_past_end];
}

void Leak() {
  kept = new std::string(100, 'x');
  kept = nullptr;
}

void IntegerOverflow() {
  volatile int largest = std::numeric_limits<int>::max();
  sink = largest + 1;
}

void Race() {
  int count = 0;
  int* volatile shared = &count;
  std::thread other([&] { ++*shared; });
  ++*shared;
  other.join();
}

// Right: each touches the count under the lock.
void AbseilLock() {
  absl::Mutex mutex;
  int count = 0;
  int* volatile shared = &count;
  const auto add = [&] {
    absl::MutexLock lock(&mutex);
    ++*shared;
  };
  std::thread other(add);
  add();
  other.join();
}

// Right: the one waits for the word of the other.
void AbseilWait() {
  absl::Mutex mutex;
  absl::CondVar changed;
  bool said = false;
  int value = 0;
  int* volatile shared = &value;
  std::thread other([&] {
    *shared = 1;
    absl::MutexLock lock(&mutex);
    said = true;
    changed.SignalAll();
  });
  {
    absl::MutexLock lock(&mutex);
    while (!said) changed.Wait(&mutex);
  }
  sink = *shared;
  other.join();
}

struct Kind {
  const char* name;
  void (*run)();
};

constexpr Kind kKinds[] = {
    {"use_after_free", UseAfterFree},
    {"heap_overflow", HeapOverflow},
    {"leak", Leak},
    {"integer_overflow", IntegerOverflow},
    {"race", Race},
    {"abseil_lock", AbseilLock},
    {"abseil_wait", AbseilWait},
    {"nothing", [] {}},
};

}  // namespace

int main(int argc, char** argv) {
  for (const Kind& kind : kKinds) {
    if (argc != 2 || std::strcmp(argv[1], kind.name) != 0) continue;
    kind.run();
    return 0;
  }
  std::fprintf(stderr, "usage: misuse KIND (misuse_main.cc lists them)\n");
  return 2;
}
