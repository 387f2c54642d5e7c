// Working memory of the chunk kernels, one a thread.
#pragma once

#include <memory>

#include "kernels/demo.h"

namespace isthmus {

// Made at a thread's first use and freed with the thread. What it holds between calls means
// nothing.
inline ChunkScratch* ThreadScratch() {
  thread_local const std::unique_ptr<ChunkScratch> scratch(new ChunkScratch);
  return scratch.get();
}

}  // namespace isthmus
