// MonitorService and AdminService from the other side: blocking calls with a deadline each.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpc/health/v1/health.pb.h"
#include "isthmus/v1/admin.pb.h"
#include "isthmus/v1/monitor.pb.h"

namespace isthmus {

class MonitorClient {
 public:
  // INVALID_ARGUMENT: an address that does not parse. Nothing is connected yet.
  static absl::StatusOr<std::unique_ptr<MonitorClient>> Make(const std::string& address,
                                                             int timeout_ms);
  virtual ~MonitorClient() = default;

  // An empty run: the coordinator's own. All pages.
  virtual absl::StatusOr<v1::GetRunResponse> GetRun(const std::string& run) = 0;
  virtual absl::StatusOr<v1::ListRunsResponse> ListRuns() = 0;
  virtual absl::StatusOr<v1::ListNodesResponse> ListNodes(const std::string& run) = 0;
  // The newest `limit`.
  virtual absl::StatusOr<v1::ListRoundsResponse> ListRounds(const std::string& run, int limit) = 0;
  // Until the stream ends. Its first message must come within the timeout; later ones come when
  // something happens, and pings notice a coordinator that is gone.
  virtual absl::Status WatchRounds(
      const std::string& run,
      const std::function<void(const v1::WatchRoundsResponse&)>& on_change) = 0;
};

// What the server says of itself by grpc.health.v1; an agent answers it too. As of MonitorClient.
absl::StatusOr<grpc::health::v1::HealthCheckResponse> CheckHealth(const std::string& address,
                                                                  int timeout_ms);

class AdminClient {
 public:
  // As of MonitorClient.
  static absl::StatusOr<std::unique_ptr<AdminClient>> Make(const std::string& address,
                                                           int timeout_ms);
  virtual ~AdminClient() = default;

  virtual absl::StatusOr<v1::DrainNodeResponse> DrainNode(const v1::DrainNodeRequest& request) = 0;
  virtual absl::StatusOr<v1::EvictNodeResponse> EvictNode(const v1::EvictNodeRequest& request) = 0;
  virtual absl::StatusOr<v1::AdmitNodeResponse> AdmitNode(const v1::AdmitNodeRequest& request) = 0;
  virtual absl::StatusOr<v1::CheckpointRunResponse> CheckpointRun(const std::string& run) = 0;
  virtual absl::StatusOr<v1::CreateRunResponse> CreateRun(const std::string& spec) = 0;
  virtual absl::StatusOr<v1::ForkRunResponse> ForkRun(const v1::ForkRunRequest& request) = 0;
  virtual absl::StatusOr<v1::UpdateRunResponse> UpdateRun(const v1::UpdateRunRequest& request) = 0;
  virtual absl::StatusOr<v1::PauseRunResponse> PauseRun(const std::string& run,
                                                        const std::string& reason) = 0;
  virtual absl::StatusOr<v1::ResumeRunResponse> ResumeRun(const std::string& run) = 0;
  virtual absl::StatusOr<v1::ChooseStateResponse> ChooseState(
      const v1::ChooseStateRequest& request) = 0;
};

}  // namespace isthmus
