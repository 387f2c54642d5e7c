// Delays between tries: exponential with full jitter in [half, whole], from kBackoffFirstMs to
// kBackoffMaxMs. Pure: the caller waits.
#pragma once

#include <cstdint>
#include <random>

#include "base/limits.h"

namespace isthmus {

class Backoff {
 public:
  explicit Backoff(uint64_t seed, int first_ms = kBackoffFirstMs, int max_ms = kBackoffMaxMs);
  // Delay before the next try, at least `at_least_ms` (a server's RetryInfo). Those that try
  // at the same moment are spread over `spread_ms` at least; by longer delays they are anyway.
  int64_t NextDelayMs(int64_t at_least_ms = 0, int64_t spread_ms = 0);
  // After a success.
  void Reset();

 private:
  std::mt19937_64 random_;
  int first_ms_;
  int max_ms_;
  int current_ms_;
};

// Different in each process, so that callers that lost one server do not come back in step.
uint64_t RandomBackoffSeed();

}  // namespace isthmus
