#include "transport/backoff.h"

#include <algorithm>

#include "base/check.h"
#include "base/sha256.h"

namespace isthmus {

Backoff::Backoff(uint64_t seed, int first_ms, int max_ms)
    : random_(seed), first_ms_(first_ms), max_ms_(max_ms), current_ms_(first_ms) {
  ISTHMUS_CHECK(first_ms >= 1 && max_ms >= first_ms);
}

int64_t Backoff::NextDelayMs(int64_t at_least_ms, int64_t spread_ms) {
  const int64_t half = current_ms_ / 2;
  const int64_t jitter = current_ms_ - half;
  std::uniform_int_distribution<int64_t> spread(0, jitter);
  const int64_t delay = half + spread(random_);
  current_ms_ = std::min<int64_t>(int64_t{2} * current_ms_, max_ms_);
  std::uniform_int_distribution<int64_t> more(0, std::max<int64_t>(0, spread_ms - jitter));
  if (delay >= at_least_ms) return delay + more(random_);
  // Callers that were told the same delay must not all come back at once.
  return at_least_ms + spread(random_) / 2 + more(random_);
}

void Backoff::Reset() { current_ms_ = first_ms_; }

uint64_t RandomBackoffSeed() {
  uint64_t seed = 0;
  for (char byte : RandomBytes(sizeof(seed))) seed = seed << 8 | static_cast<unsigned char>(byte);
  return seed;
}

}  // namespace isthmus
