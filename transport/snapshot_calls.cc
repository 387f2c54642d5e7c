#include "transport/snapshot_calls.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "transport/errors.h"
#include "transport/grpc_status.h"
#include "transport/stall_guard.h"

namespace isthmus {

void SnapshotCalls::Stop(const absl::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = status;
}

absl::Status SnapshotCalls::Stopped() {
  std::lock_guard<std::mutex> lock(mutex_);
  return stopped_;
}

absl::Status SnapshotCalls::Guarded(
    grpc::ServerContext* context,
    const std::function<absl::Status(const std::function<void()>&)>& call) {
  struct Count {
    explicit Count(std::atomic<int>* calls) : calls(calls), number(++*calls) {}
    ~Count() { --*calls; }
    std::atomic<int>* const calls;
    const int number;
  };
  const Count count(&calls_);
  if (count.number > kSnapshotCallsMax) {
    return WithRetryAfterMs(
        WithReason(absl::ResourceExhaustedError(absl::StrCat(
                       "there are ", kSnapshotCallsMax, " snapshot calls here already; try again")),
                   "SNAPSHOT_CALLS"),
        kRetryAfterMs);
  }
  StallGuard guard(stall_timeout_ms_, [context] { context->TryCancel(); });
  return call([&guard] { guard.Progress(); });
}

grpc::Status SnapshotCalls::Upload(grpc::ServerContext* context,
                                   grpc::ServerReader<v1::UploadSnapshotRequest>* reader,
                                   v1::UploadSnapshotResponse* response) {
  return ToGrpcStatus(Guarded(context, [&](const std::function<void()>& progress) -> absl::Status {
    v1::UploadSnapshotRequest request;
    if (!reader->Read(&request) || !request.has_header()) {
      return absl::InvalidArgumentError("an upload begins with its header, and this one has none");
    }
    ISTHMUS_RETURN_IF_ERROR(Stopped());
    ISTHMUS_ASSIGN_OR_RETURN(const auto sink, host_->BeginUpload(request.header()));
    while (reader->Read(&request)) {
      progress();
      ISTHMUS_RETURN_IF_ERROR(Stopped());
      if (!request.has_piece()) {
        return absl::InvalidArgumentError("after the header of an upload there are only pieces");
      }
      const size_t bytes = request.piece().data().size();
      if (bytes > kSnapshotPieceBytesMax) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a piece of a snapshot has ", bytes, " bytes; the limit is ", kSnapshotPieceBytesMax));
      }
      ISTHMUS_RETURN_IF_ERROR(sink->AddPiece(request.piece()));
    }
    if (context->IsCancelled()) return absl::CancelledError("the sender went away");
    ISTHMUS_ASSIGN_OR_RETURN(*response, sink->End());
    return absl::OkStatus();
  }));
}

grpc::Status SnapshotCalls::Fetch(grpc::ServerContext* context,
                                  const v1::FetchSnapshotRequest& request,
                                  grpc::ServerWriter<v1::FetchSnapshotResponse>* writer) {
  return ToGrpcStatus(Guarded(context, [&](const std::function<void()>& progress) -> absl::Status {
    ISTHMUS_RETURN_IF_ERROR(Stopped());
    ISTHMUS_ASSIGN_OR_RETURN(const auto source, host_->BeginFetch(request));
    for (;;) {
      ISTHMUS_RETURN_IF_ERROR(Stopped());
      ISTHMUS_ASSIGN_OR_RETURN(const absl::optional<v1::FetchSnapshotResponse> message,
                               source->Next());
      if (!message.has_value()) return absl::OkStatus();
      if (!writer->Write(*message)) return absl::CancelledError("the reader went away");
      progress();
    }
  }));
}

}  // namespace isthmus
