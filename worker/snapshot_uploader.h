// Sends the part of a state that a rank holds to its agent, in the background and without hurry,
// until the state counts or is not wanted any more; whatever becomes of connections, agent and
// coordinator in between. No torch.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "spec/section_ranges.h"
#include "transport/client.h"
#include "worker/snapshot_parts.h"

namespace isthmus {

class SnapshotUploader {
 public:
  struct Options {
    std::string agent;
    uint32_t rank = 0;
    std::function<uint64_t()> incarnation;  // the present one
    uint64_t backoff_seed = 0;
  };
  static absl::StatusOr<std::unique_ptr<SnapshotUploader>> Start(
      const Options& options, std::shared_ptr<const SnapshotParts> parts);
  // Gives up what is not sent.
  ~SnapshotUploader();
  // Until all is held, or it is not wanted; or nothing went up for kSnapshotStallMs; or `stop`,
  // which may be null, says so.
  void Wait(const std::function<bool()>& stop);
  SnapshotUploader(const SnapshotUploader&) = delete;
  SnapshotUploader& operator=(const SnapshotUploader&) = delete;

 private:
  // Some values of a part: what one message carries.
  struct Cut {
    SectionRange range;
    const float* values = nullptr;
  };
  SnapshotUploader(Options options, std::unique_ptr<Client> client,
                   std::shared_ptr<const SnapshotParts> parts);
  void Run();
  void Upload();
  // Sends what is missing until nothing is.
  absl::Status SendAll(const std::vector<SectionRange>& own);
  // The same for ranges that one call can name.
  absl::Status SendRanges(const std::vector<SectionRange>& ranges);
  absl::StatusOr<std::vector<SectionRange>> Send(const std::vector<SectionRange>& ranges,
                                                 const std::vector<SectionRange>& missing);

  const Options options_;
  const std::unique_ptr<Client> client_;
  // Of the thread alone; gone when it ends.
  std::shared_ptr<const SnapshotParts> parts_;
  std::vector<Cut> cuts_;  // ascending
  const MonotonicClock clock_;
  std::atomic<int64_t> progress_ms_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  bool up_ = false;  // all of it was there, or is not wanted
  std::thread thread_;
};

}  // namespace isthmus
