// Client of CoordinatorService, used by agents (to the coordinator) and by ranks (to their agent):
// one connection for control and watch, one for payload, so that a heartbeat never waits behind a
// contribution. Blocking calls with deadlines; safe from several threads. gRPC stays in the .cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/limits.h"
#include "isthmus/v1/coordinator.pb.h"

namespace isthmus {

struct ClientOptions {
  std::string address;  // "HOST:PORT" or "unix:PATH"
  int call_timeout_ms = kCallTimeoutMs;
  int submit_stall_timeout_ms = kSubmitStallTimeoutMs;
  // Not null: counts the bytes of pieces as they are handed to the connection. Outlives the client.
  std::atomic<uint64_t>* piece_bytes_sent = nullptr;
};

// An upload of a part of a snapshot. Given up by destroying it.
class SnapshotUpload {
 public:
  virtual ~SnapshotUpload() = default;
  // False: the server has answered already, or the connection broke; Finish says which.
  virtual bool Send(const v1::SnapshotPiece& piece) = 0;
  virtual absl::StatusOr<v1::UploadSnapshotResponse> Finish() = 0;
};

// A download of a snapshot. Given up by destroying it.
class SnapshotDownload {
 public:
  virtual ~SnapshotDownload() = default;
  // False: that was all, or it broke off; Finish says which.
  virtual bool Next(v1::FetchSnapshotResponse* message) = 0;
  virtual absl::Status Finish() = 0;
};

// Errors of all calls carry reason and retry delay (transport/errors.h). A connection that fails or
// breaks is UNAVAILABLE without a reason, naming the address.
class Client {
 public:
  // Does not connect yet. INVALID_ARGUMENT for an address that does not parse.
  static absl::StatusOr<std::unique_ptr<Client>> Make(const ClientOptions& options);
  virtual ~Client() = default;

  // Unary calls: one try each, deadline call_timeout_ms.
  virtual absl::StatusOr<v1::JoinRunResponse> JoinRun(const v1::JoinRunRequest& request) = 0;
  virtual absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request) = 0;
  virtual absl::StatusOr<v1::LeaveRunResponse> LeaveRun(const v1::LeaveRunRequest& request) = 0;

  // One try of one submission: header (its payload_bytes is filled in here), pieces, end. The
  // pieces are copied one at a time. Gives up with DEADLINE_EXCEEDED after submit_stall_timeout_ms
  // without progress. INVALID_ARGUMENT for a piece over kPieceBytesMax, before anything is sent.
  virtual absl::StatusOr<v1::SubmitResponse> Submit(const v1::SubmitHeader& header,
                                                    const std::vector<const std::string*>& pieces,
                                                    const v1::SubmitEnd& end) = 0;

  // Reads a watch on the calling thread until it ends; returns how it ended (OK never: a server
  // that ends a watch says why). `on_event` returns an error to end it from here. The event may be
  // moved from. DEADLINE_EXCEEDED when the first event takes longer than call_timeout_ms.
  virtual absl::Status Watch(
      const v1::WatchUpdatesRequest& request,
      const std::function<absl::Status(v1::WatchUpdatesResponse&)>& on_event) = 0;

  // Snapshots have a connection of their own, so that nothing else waits behind them. Cut with
  // DEADLINE_EXCEEDED after submit_stall_timeout_ms without progress. The client outlives them.
  virtual std::unique_ptr<SnapshotUpload> UploadSnapshot(
      const v1::UploadSnapshotHeader& header) = 0;
  virtual std::unique_ptr<SnapshotDownload> FetchSnapshot(
      const v1::FetchSnapshotRequest& request) = 0;

  // Ends all calls under way, and all later ones, with CANCELLED. For shutdown.
  virtual void Cancel() = 0;
};

}  // namespace isthmus
