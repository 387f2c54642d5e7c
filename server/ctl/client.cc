#include "server/ctl/client.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "isthmus/v1/admin.grpc.pb.h"
#include "isthmus/v1/monitor.grpc.pb.h"
#include "transport/addresses.h"
#include "transport/grpc_status.h"
#include "transport/stall_guard.h"

namespace isthmus {
namespace {

std::shared_ptr<grpc::Channel> ChannelTo(const Address& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMessageBytesMax));
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(kMetadataBytesMax));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return grpc::CreateCustomChannel(AddressText(address), grpc::InsecureChannelCredentials(),
                                   arguments);
}

// A call with one answer, on either service.
template <typename Stub, typename Method, typename RequestType, typename Response>
absl::StatusOr<Response> CallOn(Stub* stub, int timeout_ms, Method method,
                                const RequestType& request, Response response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  const grpc::Status status = (stub->*method)(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

class MonitorClientImpl final : public MonitorClient {
 public:
  MonitorClientImpl(const Address& address, int timeout_ms)
      : timeout_ms_(timeout_ms), stub_(v1::MonitorService::NewStub(ChannelTo(address))) {}

  absl::StatusOr<v1::GetRunResponse> GetRun(const std::string& run) override {
    v1::GetRunRequest request;
    request.set_run(run);
    return Call(&v1::MonitorService::Stub::GetRun, request, v1::GetRunResponse());
  }

  absl::StatusOr<v1::ListRunsResponse> ListRuns() override {
    v1::ListRunsResponse all;
    v1::ListRunsRequest request;
    do {
      ISTHMUS_ASSIGN_OR_RETURN(
          const v1::ListRunsResponse page,
          Call(&v1::MonitorService::Stub::ListRuns, request, v1::ListRunsResponse()));
      all.mutable_runs()->MergeFrom(page.runs());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return all;
  }

  absl::StatusOr<v1::ListNodesResponse> ListNodes(const std::string& run) override {
    v1::ListNodesResponse all;
    v1::ListNodesRequest request;
    request.set_run(run);
    do {
      ISTHMUS_ASSIGN_OR_RETURN(
          const v1::ListNodesResponse page,
          Call(&v1::MonitorService::Stub::ListNodes, request, v1::ListNodesResponse()));
      all.mutable_nodes()->MergeFrom(page.nodes());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return all;
  }

  absl::StatusOr<v1::ListRoundsResponse> ListRounds(const std::string& run, int limit) override {
    v1::ListRoundsResponse all;
    v1::ListRoundsRequest request;
    request.set_run(run);
    do {
      request.set_page_size(limit - all.rounds_size());
      ISTHMUS_ASSIGN_OR_RETURN(
          const v1::ListRoundsResponse page,
          Call(&v1::MonitorService::Stub::ListRounds, request, v1::ListRoundsResponse()));
      all.mutable_rounds()->MergeFrom(page.rounds());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty() && all.rounds_size() < limit);
    return all;
  }

  absl::Status WatchRounds(
      const std::string& run,
      const std::function<void(const v1::WatchRoundsResponse&)>& on_change) override {
    grpc::ClientContext context;
    v1::WatchRoundsRequest request;
    request.set_run(run);
    StallGuard guard(timeout_ms_, [&context] { context.TryCancel(); });
    const auto reader = stub_->WatchRounds(&context, request);
    v1::WatchRoundsResponse change;
    while (reader->Read(&change)) {
      guard.Disarm();
      on_change(change);
    }
    const absl::Status status = FromGrpcStatus(reader->Finish());
    if (!guard.stalled()) return status;
    return absl::DeadlineExceededError(
        absl::StrCat("nothing came on the watch within ", timeout_ms_, " ms"));
  }

 private:
  template <typename Method, typename RequestType, typename Response>
  absl::StatusOr<Response> Call(Method method, const RequestType& request, Response response) {
    return CallOn(stub_.get(), timeout_ms_, method, request, std::move(response));
  }

  const int timeout_ms_;
  const std::unique_ptr<v1::MonitorService::Stub> stub_;
};

class AdminClientImpl final : public AdminClient {
 public:
  AdminClientImpl(const Address& address, int timeout_ms)
      : timeout_ms_(timeout_ms), stub_(v1::AdminService::NewStub(ChannelTo(address))) {}

  absl::StatusOr<v1::DrainNodeResponse> DrainNode(const v1::DrainNodeRequest& request) override {
    return CallOn(stub_.get(), timeout_ms_, &v1::AdminService::Stub::DrainNode, request,
                  v1::DrainNodeResponse());
  }

  absl::StatusOr<v1::EvictNodeResponse> EvictNode(const v1::EvictNodeRequest& request) override {
    return CallOn(stub_.get(), timeout_ms_, &v1::AdminService::Stub::EvictNode, request,
                  v1::EvictNodeResponse());
  }

  absl::StatusOr<v1::AdmitNodeResponse> AdmitNode(const v1::AdmitNodeRequest& request) override {
    return CallOn(stub_.get(), timeout_ms_, &v1::AdminService::Stub::AdmitNode, request,
                  v1::AdmitNodeResponse());
  }

  absl::StatusOr<v1::CheckpointRunResponse> CheckpointRun(const std::string& run) override {
    v1::CheckpointRunRequest request;
    request.set_run(run);
    return CallOn(stub_.get(), timeout_ms_, &v1::AdminService::Stub::CheckpointRun, request,
                  v1::CheckpointRunResponse());
  }

  absl::StatusOr<v1::CreateRunResponse> CreateRun(const std::string& spec) override {
    v1::CreateRunRequest request;
    request.set_spec(spec);
    return CallOn(stub_.get(), timeout_ms_, &v1::AdminService::Stub::CreateRun, request,
                  v1::CreateRunResponse());
  }

  absl::StatusOr<v1::ForkRunResponse> ForkRun(const v1::ForkRunRequest& request) override {
    return CallOn(stub_.get(), timeout_ms_, &v1::AdminService::Stub::ForkRun, request,
                  v1::ForkRunResponse());
  }

  absl::StatusOr<v1::UpdateRunResponse> UpdateRun(const v1::UpdateRunRequest& request) override {
    return CallOn(stub_.get(), timeout_ms_, &v1::AdminService::Stub::UpdateRun, request,
                  v1::UpdateRunResponse());
  }

  absl::StatusOr<v1::PauseRunResponse> PauseRun(const std::string& run,
                                                const std::string& reason) override {
    v1::PauseRunRequest request;
    request.set_run(run);
    request.set_reason(reason);
    return CallOn(stub_.get(), timeout_ms_, &v1::AdminService::Stub::PauseRun, request,
                  v1::PauseRunResponse());
  }

  absl::StatusOr<v1::ResumeRunResponse> ResumeRun(const std::string& run) override {
    v1::ResumeRunRequest request;
    request.set_run(run);
    return CallOn(stub_.get(), timeout_ms_, &v1::AdminService::Stub::ResumeRun, request,
                  v1::ResumeRunResponse());
  }

  absl::StatusOr<v1::ChooseStateResponse> ChooseState(
      const v1::ChooseStateRequest& request) override {
    return CallOn(stub_.get(), timeout_ms_, &v1::AdminService::Stub::ChooseState, request,
                  v1::ChooseStateResponse());
  }

 private:
  const int timeout_ms_;
  const std::unique_ptr<v1::AdminService::Stub> stub_;
};

}  // namespace

absl::StatusOr<grpc::health::v1::HealthCheckResponse> CheckHealth(const std::string& address,
                                                                  int timeout_ms) {
  ISTHMUS_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  const auto stub = grpc::health::v1::Health::NewStub(ChannelTo(parsed));
  return CallOn(stub.get(), timeout_ms, &grpc::health::v1::Health::Stub::Check,
                grpc::health::v1::HealthCheckRequest(), grpc::health::v1::HealthCheckResponse());
}

absl::StatusOr<std::unique_ptr<MonitorClient>> MonitorClient::Make(const std::string& address,
                                                                   int timeout_ms) {
  ISTHMUS_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  return std::unique_ptr<MonitorClient>(std::make_unique<MonitorClientImpl>(parsed, timeout_ms));
}

absl::StatusOr<std::unique_ptr<AdminClient>> AdminClient::Make(const std::string& address,
                                                               int timeout_ms) {
  ISTHMUS_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  return std::unique_ptr<AdminClient>(std::make_unique<AdminClientImpl>(parsed, timeout_ms));
}

}  // namespace isthmus
