#include "server/store_trail.h"

#include <algorithm>

namespace isthmus {

void StoreTrail::Wrote(const absl::Status& stored, int64_t took_ms) {
  std::lock_guard<std::mutex> lock(mutex_);
  NoteLocked(stored);
  if (!stored.ok()) return;
  look_.full = false;
  const auto ms = static_cast<uint64_t>(std::max<int64_t>(0, took_ms));
  const auto bucket =
      std::lower_bound(kStoreWriteBucketsMs.begin(), kStoreWriteBucketsMs.end(), ms);
  ++look_.writes[bucket - kStoreWriteBucketsMs.begin()];
  look_.total_ms += ms;
}

void StoreTrail::Refused(const absl::Status& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  NoteLocked(why);
}

void StoreTrail::NoteLocked(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return;
  if (!look_.full) ++look_.times_full;
  look_.full = true;
}

bool StoreTrail::full() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return look_.full;
}

StoreLook StoreTrail::Look() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return look_;
}

}  // namespace isthmus
