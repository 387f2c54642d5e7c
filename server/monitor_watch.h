// The WatchRounds calls that are open. One thread of this class looks for changes and writes them
// to the watchers; the coordinator's threads never do. A watcher reads from the history at its own
// pace, with one message under way at a time, so a slow one holds up nobody, and one that the
// history has left behind is told so.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "absl/status/status.h"
#include "grpcpp/support/server_callback.h"
#include "isthmus/v1/monitor.pb.h"
#include "server/coordinator.h"

namespace isthmus {

class RoundWatch;

class RoundWatches {
 public:
  explicit RoundWatches(Coordinator* coordinator);
  // All calls have ended.
  ~RoundWatches();

  // The reactor of a call; owns itself.
  grpc::ServerWriteReactor<v1::WatchRoundsResponse>* Start(const v1::WatchRoundsRequest& request);
  // The reactor of a call that ends with this.
  static grpc::ServerWriteReactor<v1::WatchRoundsResponse>* Refuse(const absl::Status& status);
  // Ends all watches, and those that come later.
  void CloseAll(const absl::Status& status);

 private:
  friend class RoundWatch;
  absl::Status Add(const std::shared_ptr<RoundWatch>& watch);
  void Remove(const std::shared_ptr<RoundWatch>& watch);
  std::unordered_set<std::shared_ptr<RoundWatch>> All();
  void Loop();

  Coordinator* const coordinator_;
  std::mutex mutex_;
  std::unordered_set<std::shared_ptr<RoundWatch>> watches_;
  absl::Status closed_with_;  // OK: open
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace isthmus
