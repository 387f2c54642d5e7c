// Serves a RoundHost as isthmus.v1.CoordinatorService (callback API), with the standard health
// service and reflection-ready limits, on one or more addresses.
//
//   ASSIGN_OR_RETURN(auto server, GrpcServer::Start(options));
//   server->addresses()           // with the ports that were bound
//   server->Shutdown(kDrainMs)    // NOT_SERVING, watches closed, calls end, then cut
//
// gRPC stays in the .cc. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/limits.h"
#include "transport/round_host.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace isthmus {

// A further service on the same addresses.
struct AddedService {
  std::string name;                  // full name, for health
  grpc::Service* service = nullptr;  // outlives the server
  // Ends its streams with this status, when the server begins to shut down.
  std::function<void(const absl::Status&)> close_streams;
};

struct GrpcServerOptions {
  RoundHost* host = nullptr;  // outlives the server
  // "HOST:PORT" ([::1]:0 and bare names too; port 0: any) or "unix:PATH". A stale socket file of a
  // dead process is replaced; one that is in use, like a port in use, is an error.
  std::vector<std::string> addresses;
  // Without it a plaintext TCP address must be loopback.
  bool allow_plaintext_beyond_loopback = false;
  std::vector<AddedService> more;
  // A call that moves a snapshot is cut after so long without progress.
  int snapshot_stall_timeout_ms = kSubmitStallTimeoutMs;
};

class GrpcServer {
 public:
  // INVALID_ARGUMENT: address that does not parse, or plaintext beyond loopback.
  // UNAVAILABLE: address in use or not ours, naming it.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options);
  virtual ~GrpcServer() = default;

  virtual std::vector<std::string> addresses() const = 0;
  // Health of "", of isthmus.v1.CoordinatorService and of what was added.
  virtual void SetServing(bool serving) = 0;
  // Returns when all calls have ended, at most a little after drain_ms. Idempotent.
  virtual void Shutdown(int drain_ms) = 0;
};

}  // namespace isthmus
