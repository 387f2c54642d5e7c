#include "transport/service.h"

#include <chrono>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "isthmus/v1/coordinator.grpc.pb.h"
#include "transport/addresses.h"
#include "transport/errors.h"
#include "transport/grpc_library.h"
#include "transport/listen.h"
#include "transport/snapshot_calls.h"
#include "transport/submit_reactor.h"
#include "transport/unary_answer.h"
#include "transport/watch_reactor.h"

namespace isthmus {
namespace {

constexpr char kServiceName[] = "isthmus.v1.CoordinatorService";

using Wire = v1::CoordinatorService;
// Snapshots have a thread a call, all else is called back.
using WireBase = Wire::WithCallbackMethod_JoinRun<
    Wire::WithCallbackMethod_Submit<Wire::WithCallbackMethod_WatchUpdates<
        Wire::WithCallbackMethod_Heartbeat<Wire::WithCallbackMethod_LeaveRun<Wire::Service>>>>>;

// The service on the wire: every call goes straight to the host.
class Service final : public WireBase {
 public:
  explicit Service(const GrpcServerOptions& options)
      : host_(options.host), snapshot_calls_(options.host, options.snapshot_stall_timeout_ms) {}

  void CloseStreams(const absl::Status& status) {
    open_watches_.CloseAll(status);
    snapshot_calls_.Stop(status);
  }

  grpc::Status UploadSnapshot(grpc::ServerContext* context,
                              grpc::ServerReader<v1::UploadSnapshotRequest>* reader,
                              v1::UploadSnapshotResponse* response) override {
    return snapshot_calls_.Upload(context, reader, response);
  }

  grpc::Status FetchSnapshot(grpc::ServerContext* context, const v1::FetchSnapshotRequest* request,
                             grpc::ServerWriter<v1::FetchSnapshotResponse>* writer) override {
    return snapshot_calls_.Fetch(context, *request, writer);
  }

  grpc::ServerUnaryReactor* JoinRun(grpc::CallbackServerContext* context,
                                    const v1::JoinRunRequest* request,
                                    v1::JoinRunResponse* response) override {
    return AnswerNow(context, host_->JoinRun(*request), response);
  }

  grpc::ServerReadReactor<v1::SubmitRequest>* Submit(grpc::CallbackServerContext* context,
                                                     v1::SubmitResponse* response) override {
    return new SubmitReactor(host_, context, response);
  }

  grpc::ServerWriteReactor<v1::WatchUpdatesResponse>* WatchUpdates(
      grpc::CallbackServerContext*, const v1::WatchUpdatesRequest* request) override {
    return StartWatch(host_, &open_watches_, *request);
  }

  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override {
    return AnswerNow(context, host_->Heartbeat(*request), response);
  }

  grpc::ServerUnaryReactor* LeaveRun(grpc::CallbackServerContext* context,
                                     const v1::LeaveRunRequest* request,
                                     v1::LeaveRunResponse* response) override {
    return AnswerNow(context, host_->LeaveRun(*request), response);
  }

 private:
  RoundHost* host_;
  OpenWatches open_watches_;
  SnapshotCalls snapshot_calls_;
};

void SetLimits(grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(kMessageBytesMax));
  builder->SetMaxSendMessageSize(static_cast<int>(kMessageBytesMax));
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(kMetadataBytesMax));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kConcurrentStreamsMax);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kConnectTimeoutMs);
  // With SO_REUSEPORT a second server would share the port and take half of the calls.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // The server pings too: it must notice that a watcher is gone when nothing is written to it.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kKeepalivePermitMs);
}

class GrpcServerImpl final : public GrpcServer {
 public:
  explicit GrpcServerImpl(const GrpcServerOptions& options) : service_(options) {}

  ~GrpcServerImpl() override { Shutdown(0); }

  absl::Status Start(const GrpcServerOptions& options);
  std::vector<std::string> addresses() const override;
  void SetServing(bool serving) override;
  void Shutdown(int drain_ms) override;

 private:
  // One address of the options, and the ports gRPC bound for it.
  struct Listener {
    Address address;
    std::vector<std::unique_ptr<int>> ports;  // gRPC writes them when it starts
  };

  absl::Status AddListener(const std::string& text, bool allow_plaintext,
                           grpc::ServerBuilder* builder);
  absl::Status CheckBound();

  Service service_;
  std::vector<AddedService> more_;
  std::vector<Listener> listeners_;
  std::vector<UnixSocketFile> socket_files_;
  std::unique_ptr<grpc::Server> server_;
  std::mutex shutdown_mutex_;
  bool is_shut_down_ = false;
};

absl::Status GrpcServerImpl::AddListener(const std::string& text, bool allow_plaintext,
                                         grpc::ServerBuilder* builder) {
  Listener listener;
  ISTHMUS_ASSIGN_OR_RETURN(listener.address, ParseAddress(text));
  if (!IsLocal(listener.address) && !allow_plaintext) {
    return absl::InvalidArgumentError(absl::StrCat(
        "address ", text,
        " can be reached from other machines and would carry plain text; use a "
        "loopback address, or allow plain text beyond loopback with --allow_plaintext"));
  }
  std::vector<Address> bound;
  if (listener.address.unix_path.empty()) {
    ISTHMUS_ASSIGN_OR_RETURN(bound, ProbeTcp(listener.address));
  } else {
    ISTHMUS_RETURN_IF_ERROR(PrepareUnixPath(listener.address.unix_path));
    bound.push_back(listener.address);
  }
  for (const Address& address : bound) {
    listener.ports.push_back(std::make_unique<int>(0));
    builder->AddListeningPort(AddressText(address), grpc::InsecureServerCredentials(),
                              listener.ports.back().get());
  }
  listeners_.push_back(std::move(listener));
  return absl::OkStatus();
}

// A probe found the addresses free a moment ago, so this fails only when somebody else was faster.
absl::Status GrpcServerImpl::CheckBound() {
  for (const Listener& listener : listeners_) {
    for (const auto& port : listener.ports) {
      if (*port == 0) {
        return absl::UnavailableError(
            absl::StrCat("cannot listen on ", AddressText(listener.address),
                         ": another process took the address at this moment"));
      }
    }
  }
  if (server_ == nullptr) return absl::UnavailableError("the gRPC server did not start");
  return absl::OkStatus();
}

absl::Status GrpcServerImpl::Start(const GrpcServerOptions& options) {
  static const bool health_enabled = [] {
    grpc::EnableDefaultHealthCheckService(
        true);  // for all servers of this process; not thread-safe
    return true;
  }();
  ISTHMUS_CHECK(health_enabled);
  if (options.addresses.empty()) {
    return absl::InvalidArgumentError("no address to listen on was given");
  }
  grpc::ServerBuilder builder;
  SetLimits(&builder);
  for (const std::string& text : options.addresses) {
    ISTHMUS_RETURN_IF_ERROR(AddListener(text, options.allow_plaintext_beyond_loopback, &builder));
  }
  builder.RegisterService(&service_);
  for (const AddedService& added : options.more) builder.RegisterService(added.service);
  more_ = options.more;
  server_ = builder.BuildAndStart();
  ISTHMUS_RETURN_IF_ERROR(CheckBound());
  for (Listener& listener : listeners_) {
    if (listener.address.unix_path.empty()) {
      listener.address.port = *listener.ports.front();
    } else {
      socket_files_.emplace_back(listener.address.unix_path);
    }
  }
  SetServing(true);
  return absl::OkStatus();
}

std::vector<std::string> GrpcServerImpl::addresses() const {
  std::vector<std::string> texts;
  for (const Listener& listener : listeners_) texts.push_back(AddressText(listener.address));
  return texts;
}

void GrpcServerImpl::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  health->SetServingStatus("", serving);
  health->SetServingStatus(kServiceName, serving);
  for (const AddedService& added : more_) health->SetServingStatus(added.name, serving);
}

void GrpcServerImpl::Shutdown(int drain_ms) {
  std::lock_guard<std::mutex> lock(shutdown_mutex_);
  if (is_shut_down_) return;
  is_shut_down_ = true;
  if (server_ == nullptr) return;  // it never started
  server_->GetHealthCheckService()->Shutdown();
  const absl::Status stopping = WithReason(
      absl::UnavailableError("shutting down; connect again in a moment"), kReasonShuttingDown);
  service_.CloseStreams(stopping);
  for (const AddedService& added : more_) added.close_streams(stopping);
  const gpr_timespec drain = gpr_time_from_millis(drain_ms, GPR_TIMESPAN);
  // Returns early when all calls have ended; at the deadline it cuts those that have not.
  server_->Shutdown(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), drain));
  for (UnixSocketFile& file : socket_files_) file.Remove();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options) {
  ISTHMUS_CHECK(options.host != nullptr);
  KeepGrpcForLife();
  auto server = std::make_unique<GrpcServerImpl>(options);
  ISTHMUS_RETURN_IF_ERROR(server->Start(options));
  return std::unique_ptr<GrpcServer>(std::move(server));
}

}  // namespace isthmus
