#include "base/heaps.h"

#include <malloc.h>

namespace isthmus {
namespace {

constexpr int kReturnedBytes = 256 << 10;
constexpr std::chrono::seconds kReturnEvery(60);

}  // namespace

void UseHeaps(int count) { mallopt(M_ARENA_MAX, count); }

// (60 rounds of 16 MB in a coordinator: 150 MiB in place of more than 256, case r38.)
void ReturnLargeBlocks() { mallopt(M_MMAP_THRESHOLD, kReturnedBytes); }

void FreePages::ReturnAtTimes() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + kReturnEvery;
  malloc_trim(0);
}

}  // namespace isthmus
