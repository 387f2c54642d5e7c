// One WatchUpdates call on the server: takes events from the host's WatchQueue and writes them one
// at a time. A slow reader therefore holds one message here and one flow-control window in gRPC;
// the rest waits in the queue, which has a limit.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_set>

#include "absl/status/status.h"
#include "grpcpp/support/server_callback.h"
#include "isthmus/v1/coordinator.pb.h"
#include "transport/round_host.h"

namespace isthmus {

// The queues of all watches that are open, so that a shutdown can close them. Thread-safe.
class OpenWatches {
 public:
  // After CloseAll, `queue` is closed at once.
  void Add(const std::shared_ptr<WatchQueue>& queue);
  void Remove(const std::shared_ptr<WatchQueue>& queue);
  // Closes all, and those added later, with `status`.
  void CloseAll(const absl::Status& status);

 private:
  std::mutex mutex_;
  std::unordered_set<std::shared_ptr<WatchQueue>> queues_;
  absl::Status closed_with_;  // OK: open
};

// Registers with the host and returns the reactor of the call, which owns itself and tells the host
// WatchEnded once.
grpc::ServerWriteReactor<v1::WatchUpdatesResponse>* StartWatch(
    RoundHost* host, OpenWatches* open_watches, const v1::WatchUpdatesRequest& request);

}  // namespace isthmus
