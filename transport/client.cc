#include "transport/client.h"

#include <mutex>
#include <unordered_set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "isthmus/v1/coordinator.grpc.pb.h"
#include "transport/addresses.h"
#include "transport/errors.h"
#include "transport/grpc_library.h"
#include "transport/grpc_status.h"
#include "transport/stall_guard.h"

namespace isthmus {
namespace {

std::shared_ptr<grpc::Channel> MakeChannel(const Address& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMessageBytesMax));
  arguments.SetMaxSendMessageSize(static_cast<int>(kMessageBytesMax));
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(kMetadataBytesMax));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kBackoffFirstMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kBackoffMaxMs);
  // gRPC takes this as the time one try to connect may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  // Else gRPC would give both channels the same connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (IsLocal(address)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(AddressText(address), grpc::InsecureChannelCredentials(),
                                   arguments);
}

// The calls under way, so that Cancel can end them.
class Calls {
 public:
  // False after Cancel.
  bool Add(grpc::ClientContext* context) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (cancelled_) return false;
    contexts_.insert(context);
    return true;
  }

  void Remove(grpc::ClientContext* context) {
    std::lock_guard<std::mutex> lock(mutex_);
    contexts_.erase(context);
  }

  void Cancel() {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
  }

  bool cancelled() {
    std::lock_guard<std::mutex> lock(mutex_);
    return cancelled_;
  }

 private:
  std::mutex mutex_;
  std::unordered_set<grpc::ClientContext*> contexts_;
  bool cancelled_ = false;
};

// One call's context, in `calls` while it lives.
class Call {
 public:
  explicit Call(Calls* calls) : calls_(calls), started_(calls->Add(&context_)) {}
  ~Call() { calls_->Remove(&context_); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool started() const { return started_; }
  grpc::ClientContext* context() { return &context_; }

 private:
  Calls* calls_;
  grpc::ClientContext context_;
  bool started_;
};

absl::Status Cancelled() { return absl::CancelledError("this client was cancelled"); }

class ClientImpl final : public Client {
 public:
  ClientImpl(const ClientOptions& options, const Address& address)
      : options_(options),
        control_(v1::CoordinatorService::NewStub(MakeChannel(address))),
        payload_(v1::CoordinatorService::NewStub(MakeChannel(address))),
        snapshots_(v1::CoordinatorService::NewStub(MakeChannel(address))) {}

  absl::StatusOr<v1::JoinRunResponse> JoinRun(const v1::JoinRunRequest& request) override {
    return Unary<v1::JoinRunResponse>(&v1::CoordinatorService::Stub::JoinRun, request);
  }
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request) override {
    return Unary<v1::HeartbeatResponse>(&v1::CoordinatorService::Stub::Heartbeat, request);
  }
  absl::StatusOr<v1::LeaveRunResponse> LeaveRun(const v1::LeaveRunRequest& request) override {
    return Unary<v1::LeaveRunResponse>(&v1::CoordinatorService::Stub::LeaveRun, request);
  }

  absl::StatusOr<v1::SubmitResponse> Submit(const v1::SubmitHeader& header,
                                            const std::vector<const std::string*>& pieces,
                                            const v1::SubmitEnd& end) override;
  absl::Status Watch(
      const v1::WatchUpdatesRequest& request,
      const std::function<absl::Status(v1::WatchUpdatesResponse&)>& on_event) override;
  std::unique_ptr<SnapshotUpload> UploadSnapshot(const v1::UploadSnapshotHeader& header) override;
  std::unique_ptr<SnapshotDownload> FetchSnapshot(const v1::FetchSnapshotRequest& request) override;
  void Cancel() override { calls_.Cancel(); }

 private:
  class Upload;
  class Download;

  template <typename Response, typename Method, typename Request>
  absl::StatusOr<Response> Unary(Method method, const Request& request) {
    Call call(&calls_);
    if (!call.started()) return Cancelled();
    const gpr_timespec timeout = gpr_time_from_millis(options_.call_timeout_ms, GPR_TIMESPAN);
    call.context()->set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), timeout));
    Response response;
    const grpc::Status status = ((*control_).*method)(call.context(), request, &response);
    if (!status.ok()) return Explained(status);
    return response;
  }

  absl::Status Explained(const grpc::Status& status);

  const ClientOptions options_;
  const std::unique_ptr<v1::CoordinatorService::Stub> control_;
  const std::unique_ptr<v1::CoordinatorService::Stub> payload_;
  const std::unique_ptr<v1::CoordinatorService::Stub> snapshots_;
  Calls calls_;
};

// What gRPC says of a broken connection is put as UNAVAILABLE, with the address. What the server's
// host says stays as it is.
absl::Status ClientImpl::Explained(const grpc::Status& status) {
  if (calls_.cancelled()) return Cancelled();
  absl::Status result = FromGrpcStatus(status);
  if (!ReasonOf(result).empty() || RetryAfterMsOf(result) >= 0) return result;
  switch (result.code()) {
    case absl::StatusCode::kDeadlineExceeded:
      if (result.message() != "Deadline Exceeded") return result;
      return absl::DeadlineExceededError(absl::StrCat("no answer from ", options_.address,
                                                      " within ", options_.call_timeout_ms, " ms"));
    case absl::StatusCode::kInternal:
      if (!absl::StrContains(result.message(), "RST_STREAM")) return result;
      break;
    case absl::StatusCode::kUnknown:
      if (!absl::StrContains(result.message(), "Stream removed")) return result;
      break;
    case absl::StatusCode::kCancelled:
      break;
    case absl::StatusCode::kUnavailable:
      if (absl::StrContains(result.message(), options_.address)) return result;
      break;
    default:
      return result;
  }
  return absl::UnavailableError(
      absl::StrCat("connection to ", options_.address, ": ", result.message()));
}

absl::StatusOr<v1::SubmitResponse> ClientImpl::Submit(const v1::SubmitHeader& header,
                                                      const std::vector<const std::string*>& pieces,
                                                      const v1::SubmitEnd& end) {
  uint64_t payload_bytes = 0;
  for (const std::string* piece : pieces) {
    payload_bytes += piece->size();
    if (piece->size() > kPieceBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("a piece has ", piece->size(), " bytes; the limit is ", kPieceBytesMax));
    }
  }
  Call call(&calls_);
  if (!call.started()) return Cancelled();
  grpc::ClientContext* context = call.context();
  StallGuard guard(options_.submit_stall_timeout_ms, [context] { context->TryCancel(); });

  v1::SubmitResponse response;
  const auto writer = payload_->Submit(context, &response);
  // A write fails when the server has answered already; its answer comes from Finish.
  v1::SubmitRequest request;
  *request.mutable_header() = header;
  request.mutable_header()->set_payload_bytes(payload_bytes);
  bool open = writer->Write(request);
  for (size_t i = 0; open && i < pieces.size(); ++i) {
    request.mutable_piece()->set_data(*pieces[i]);
    if (options_.piece_bytes_sent != nullptr) *options_.piece_bytes_sent += pieces[i]->size();
    open = writer->Write(request);
    guard.Progress();
  }
  if (open) {
    *request.mutable_end() = end;
    writer->WriteLast(request, grpc::WriteOptions());
    guard.Progress();
  }
  const grpc::Status status = writer->Finish();
  if (status.ok()) return response;
  if (guard.stalled()) {
    return absl::DeadlineExceededError(
        absl::StrCat("the submission of round ", header.round(), " to ", options_.address,
                     " made no progress for ", options_.submit_stall_timeout_ms, " ms"));
  }
  return Explained(status);
}

absl::Status ClientImpl::Watch(
    const v1::WatchUpdatesRequest& request,
    const std::function<absl::Status(v1::WatchUpdatesResponse&)>& on_event) {
  Call call(&calls_);
  if (!call.started()) return Cancelled();
  grpc::ClientContext* context = call.context();
  // Only the first event has a deadline; then keepalive finds a connection that is dead.
  StallGuard guard(options_.call_timeout_ms, [context] { context->TryCancel(); });
  const auto reader = control_->WatchUpdates(context, request);
  absl::Status ended_here;
  v1::WatchUpdatesResponse event;
  while (reader->Read(&event)) {
    guard.Disarm();
    ended_here = on_event(event);
    if (!ended_here.ok()) break;
  }
  if (!ended_here.ok()) {
    context->TryCancel();
    while (reader->Read(&event)) {
    }
  }
  const grpc::Status status = reader->Finish();
  if (!ended_here.ok()) return ended_here;
  if (guard.stalled()) {
    return absl::DeadlineExceededError(absl::StrCat("the watch on ", options_.address,
                                                    " did not start within ",
                                                    options_.call_timeout_ms, " ms"));
  }
  if (status.ok()) {
    return absl::UnavailableError(
        absl::StrCat("connection to ", options_.address, ": the server ended the watch"));
  }
  return Explained(status);
}

// What both directions of a snapshot have in common.
class SnapshotCall {
 public:
  SnapshotCall(Calls* calls, int stall_timeout_ms)
      : call_(calls), guard_(stall_timeout_ms, [this] { call_.context()->TryCancel(); }) {}

  bool started() const { return call_.started(); }
  grpc::ClientContext* context() { return call_.context(); }
  void Progress() { guard_.Progress(); }
  // `status` as the call ended, unless it was cut.
  absl::Status Judge(const absl::Status& status) const {
    if (status.ok() || !guard_.stalled()) return status;
    return absl::DeadlineExceededError("a snapshot made no progress for too long");
  }

 private:
  Call call_;
  StallGuard guard_;
};

class ClientImpl::Upload final : public SnapshotUpload {
 public:
  Upload(ClientImpl* client, const v1::UploadSnapshotHeader& header)
      : client_(client), call_(&client->calls_, client->options_.submit_stall_timeout_ms) {
    if (!call_.started()) return;
    writer_ = client->snapshots_->UploadSnapshot(call_.context(), &response_);
    *request_.mutable_header() = header;
    open_ = writer_->Write(request_);
  }
  ~Upload() override {
    if (writer_ == nullptr) return;
    call_.context()->TryCancel();
    (void)writer_->Finish();
  }

  bool Send(const v1::SnapshotPiece& piece) override {
    if (!open_) return false;
    *request_.mutable_piece() = piece;
    open_ = writer_->Write(request_);
    call_.Progress();
    return open_;
  }

  absl::StatusOr<v1::UploadSnapshotResponse> Finish() override {
    if (writer_ == nullptr) return Cancelled();
    if (open_) writer_->WritesDone();
    const grpc::Status status = std::exchange(writer_, nullptr)->Finish();
    if (status.ok()) return response_;
    return call_.Judge(client_->Explained(status));
  }

 private:
  ClientImpl* const client_;
  SnapshotCall call_;
  v1::UploadSnapshotRequest request_;
  v1::UploadSnapshotResponse response_;
  std::unique_ptr<grpc::ClientWriter<v1::UploadSnapshotRequest>> writer_;
  bool open_ = false;
};

class ClientImpl::Download final : public SnapshotDownload {
 public:
  Download(ClientImpl* client, const v1::FetchSnapshotRequest& request)
      : client_(client), call_(&client->calls_, client->options_.submit_stall_timeout_ms) {
    if (call_.started()) reader_ = client->snapshots_->FetchSnapshot(call_.context(), request);
  }
  ~Download() override {
    if (reader_ == nullptr) return;
    call_.context()->TryCancel();
    v1::FetchSnapshotResponse message;
    while (reader_->Read(&message)) {
    }
    (void)reader_->Finish();
  }

  bool Next(v1::FetchSnapshotResponse* message) override {
    if (reader_ == nullptr) return false;
    const bool more = reader_->Read(message);
    call_.Progress();
    return more;
  }

  absl::Status Finish() override {
    if (reader_ == nullptr) return Cancelled();
    const grpc::Status status = std::exchange(reader_, nullptr)->Finish();
    return status.ok() ? absl::OkStatus() : call_.Judge(client_->Explained(status));
  }

 private:
  ClientImpl* const client_;
  SnapshotCall call_;
  std::unique_ptr<grpc::ClientReader<v1::FetchSnapshotResponse>> reader_;
};

std::unique_ptr<SnapshotUpload> ClientImpl::UploadSnapshot(const v1::UploadSnapshotHeader& header) {
  return std::make_unique<Upload>(this, header);
}

std::unique_ptr<SnapshotDownload> ClientImpl::FetchSnapshot(
    const v1::FetchSnapshotRequest& request) {
  return std::make_unique<Download>(this, request);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Make(const ClientOptions& options) {
  ISTHMUS_ASSIGN_OR_RETURN(const Address address, ParseAddress(options.address));
  if (address.unix_path.empty() && address.port == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", options.address, "' has port 0; name the server's port"));
  }
  KeepGrpcForLife();
  return std::unique_ptr<Client>(std::make_unique<ClientImpl>(options, address));
}

}  // namespace isthmus
