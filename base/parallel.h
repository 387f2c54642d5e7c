// Runs a loop over independent items on a few threads. The result must not depend on how items are
// dealt out: callers write to disjoint places and combine in item order afterwards.
#pragma once

#include <cstddef>
#include <functional>

namespace isthmus {

// Calls body(i) once for each i in [0, count), on at most `threads` threads (at least one, the
// caller's own among them); returns when all are done.
void ParallelFor(size_t count, int threads, const std::function<void(size_t)>& body);

}  // namespace isthmus
