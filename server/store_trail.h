// What the writes to a run's store have come to, for operators and for health: whether the disk is
// full, and a histogram of how long durable writes took.
//
//   trail.Wrote(store->Write(batch), took_ms);
//   trail.full()    // the last write found no room
//
// Thread-safe, with a lock of its own that is held for a moment.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "absl/status/status.h"

namespace isthmus {

// Upper ends of the histogram's buckets in milliseconds, inclusive; the last bucket has none. A
// write is some tenths of a millisecond on a good disk and hundreds on one in trouble.
inline constexpr std::array<uint32_t, 11> kStoreWriteBucketsMs = {1,   2,   5,   10,   20,  50,
                                                                  100, 200, 500, 1000, 5000};

struct StoreLook {
  bool full = false;
  uint64_t times_full = 0;                                            // since the start
  std::array<uint64_t, kStoreWriteBucketsMs.size() + 1> writes = {};  // that became durable
  uint64_t total_ms = 0;                                              // of those
};

class StoreTrail {
 public:
  // A write ended, after so many milliseconds. RESOURCE_EXHAUSTED: there was no room.
  void Wrote(const absl::Status& stored, int64_t took_ms);
  // Something smaller than a write, a piece of a snapshot, was refused for this.
  void Refused(const absl::Status& why);

  bool full() const;
  StoreLook Look() const;

 private:
  void NoteLocked(const absl::Status& status);

  mutable std::mutex mutex_;
  StoreLook look_;
};

}  // namespace isthmus
