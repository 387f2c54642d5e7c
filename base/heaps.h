// How much memory glibc keeps of what a process has freed. Call these first in main, before there
// are other threads.
#pragma once

#include <chrono>

namespace isthmus {

// All threads share so many heaps. With one for nearly each thread, as glibc has it, what one
// thread frees is of no use to the next, and memory creeps up for hours.
void UseHeaps(int count);

// Large blocks go back to the system as soon as they are freed. For a process whose pieces and
// updates go from thread to thread and away again, and that has time to take fresh pages each time.
void ReturnLargeBlocks();

// What lies between blocks in use goes back to the system about once a minute: small blocks that
// live long keep heaps from ever becoming shorter. For a thread that waits, and calls this again
// and again.
class FreePages {
 public:
  void ReturnAtTimes();

 private:
  std::chrono::steady_clock::time_point next_;
};

}  // namespace isthmus
