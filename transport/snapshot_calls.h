// The two calls that move snapshots, on the wire. They are few, long and without hurry, so each has
// a thread that reads or writes one message after the other.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"
#include "grpcpp/support/sync_stream.h"
#include "isthmus/v1/coordinator.grpc.pb.h"
#include "transport/round_host.h"

namespace isthmus {

class SnapshotCalls {
 public:
  SnapshotCalls(RoundHost* host, int stall_timeout_ms)
      : host_(host), stall_timeout_ms_(stall_timeout_ms) {}

  grpc::Status Upload(grpc::ServerContext* context,
                      grpc::ServerReader<v1::UploadSnapshotRequest>* reader,
                      v1::UploadSnapshotResponse* response);
  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchSnapshotRequest& request,
                     grpc::ServerWriter<v1::FetchSnapshotResponse>* writer);

  // Calls under way end with this after the message at hand, later ones at once.
  void Stop(const absl::Status& status);

 private:
  // RESOURCE_EXHAUSTED where there are too many already; one call that makes no progress is cut.
  absl::Status Guarded(grpc::ServerContext* context,
                       const std::function<absl::Status(const std::function<void()>&)>& call);
  absl::Status Stopped();

  RoundHost* const host_;
  const int stall_timeout_ms_;
  std::atomic<int> calls_{0};
  std::mutex mutex_;
  absl::Status stopped_;
};

}  // namespace isthmus
