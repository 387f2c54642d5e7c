// Client of CoordinatorService: one channel for control and watch, used by agents (to the
// coordinator) and by ranks (to their agent). Blocking calls with deadlines; safe from several
// threads. gRPC stays in the .cc.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "isthmus/v1/coordinator.pb.h"

namespace isthmus {

struct ClientOptions {
  std::string address;  // "HOST:PORT" or "unix:PATH"
};

class Client {
 public:
  // Does not connect yet. INVALID_ARGUMENT for an address that does not parse.
  static absl::StatusOr<std::unique_ptr<Client>> Make(const ClientOptions& options);
  virtual ~Client() = default;

  // Unary calls: one try each, deadline kCallTimeoutMs. Errors carry reason and retry delay
  // (transport/errors.h); UNAVAILABLE names the address.
  virtual absl::StatusOr<v1::JoinRunResponse> JoinRun(const v1::JoinRunRequest& request) = 0;
  virtual absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request) = 0;
  virtual absl::StatusOr<v1::LeaveRunResponse> LeaveRun(const v1::LeaveRunRequest& request) = 0;

  // One try of one submission: header, pieces, end. The pieces are not copied. Gives up after
  // kSubmitStallTimeoutMs without progress.
  virtual absl::StatusOr<v1::SubmitResponse> Submit(const v1::SubmitHeader& header,
                                                    const std::vector<const std::string*>& pieces,
                                                    const v1::SubmitEnd& end) = 0;

  // Reads a watch on the calling thread until it ends; returns how it ended (OK never: a server
  // that ends a watch says why). `on_event` returns an error to end it from here. The event may be
  // moved from.
  virtual absl::Status Watch(
      const v1::WatchUpdatesRequest& request,
      const std::function<absl::Status(v1::WatchUpdatesResponse&)>& on_event) = 0;

  // Ends all calls under way, and all later ones, with CANCELLED. For shutdown.
  virtual void Cancel() = 0;
};

}  // namespace isthmus
