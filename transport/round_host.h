// What a server of CoordinatorService does, without gRPC: the coordinator and the agent both
// implement this, and transport/service.h puts it on the wire. All calls come from transport
// threads, several at once; all but those of snapshots must return promptly (they never wait for
// another node).
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "isthmus/v1/coordinator.pb.h"
#include "transport/watch_queue.h"

namespace isthmus {

// One submission on its way in. Destroyed when the call ends, however it ends; what was accepted
// piece by piece stays with the host for a resume.
class SubmissionSink {
 public:
  virtual ~SubmissionSink() = default;
  // A piece as in spec/piece.h. An error ends the call with it.
  virtual absl::Status AddPiece(std::string piece) = 0;
  // All pieces were sent. The receipt.
  virtual absl::StatusOr<v1::SubmitResponse> End(const v1::SubmitEnd& end) = 0;
};

// One upload of a part of a snapshot on its way in. As SubmissionSink, but its calls may take long.
class SnapshotSink {
 public:
  virtual ~SnapshotSink() = default;
  virtual absl::Status AddPiece(const v1::SnapshotPiece& piece) = 0;
  virtual absl::StatusOr<v1::UploadSnapshotResponse> End() = 0;
};

// A snapshot on its way out. Its calls may take long.
class SnapshotSource {
 public:
  virtual ~SnapshotSource() = default;
  // The next message; nullopt: that was all.
  virtual absl::StatusOr<absl::optional<v1::FetchSnapshotResponse>> Next() = 0;
};

class RoundHost {
 public:
  virtual ~RoundHost() = default;

  virtual absl::StatusOr<v1::JoinRunResponse> JoinRun(const v1::JoinRunRequest& request) = 0;

  // Checks the header. An abstention is complete with the header: the host returns a sink whose End
  // gives the receipt.
  virtual absl::StatusOr<std::unique_ptr<SubmissionSink>> BeginSubmit(
      const v1::SubmitHeader& header) = 0;

  // Registers a watcher. The host pushes into the queue from then on, and closes it to end the
  // call.
  virtual absl::StatusOr<std::shared_ptr<WatchQueue>> Watch(
      const v1::WatchUpdatesRequest& request) = 0;
  // The watcher's call has ended (cancelled, connection lost, or closed by the host).
  virtual void WatchEnded(const v1::WatchUpdatesRequest& request,
                          const std::shared_ptr<WatchQueue>& queue) = 0;

  virtual absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request) = 0;
  virtual absl::StatusOr<v1::LeaveRunResponse> LeaveRun(const v1::LeaveRunRequest& request) = 0;

  // Each of these calls has a thread of its own while it lasts, so these may take long as well.
  virtual absl::StatusOr<std::unique_ptr<SnapshotSink>> BeginUpload(
      const v1::UploadSnapshotHeader&) {
    return absl::UnimplementedError("this server takes no snapshots");
  }
  virtual absl::StatusOr<std::unique_ptr<SnapshotSource>> BeginFetch(
      const v1::FetchSnapshotRequest&) {
    return absl::UnimplementedError("this server has no snapshots");
  }
};

}  // namespace isthmus
