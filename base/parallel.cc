#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace isthmus {

void ParallelFor(size_t count, int threads, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i = next++; i < count; i = next++) body(i);
  };
  const size_t extra =
      std::min(count, static_cast<size_t>(std::max(threads, 1))) - (count > 0 ? 1 : 0);
  std::vector<std::thread> started;
  for (size_t i = 0; i < extra; ++i) started.emplace_back(work);
  work();
  for (std::thread& thread : started) thread.join();
}

}  // namespace isthmus
