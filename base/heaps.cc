#include "base/heaps.h"

#include <malloc.h>

namespace isthmus {
namespace {

constexpr int kReturnedBytes = 256 << 10;

}  // namespace

void UseHeaps(int count) { mallopt(M_ARENA_MAX, count); }

// (60 rounds of 16 MB in a coordinator: 150 MiB in place of more than 256, case r38.)
void ReturnLargeBlocks() { mallopt(M_MMAP_THRESHOLD, kReturnedBytes); }

}  // namespace isthmus
