#include "base/heaps.h"

#include <malloc.h>

namespace isthmus {
namespace {

constexpr int kHeapsMax = 2;
constexpr int kReturnedBytes = 256 << 10;

}  // namespace

void UseFewHeaps() { mallopt(M_ARENA_MAX, kHeapsMax); }

// (60 rounds of 16 MB in a coordinator: 150 MiB in place of more than 256, case r38.)
void ReturnLargeBlocks() { mallopt(M_MMAP_THRESHOLD, kReturnedBytes); }

}  // namespace isthmus
