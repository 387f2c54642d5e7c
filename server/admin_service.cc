#include "server/admin_service.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "isthmus/v1/admin.grpc.pb.h"
#include "transport/unary_answer.h"

namespace isthmus {
namespace {

constexpr char kServiceName[] = "isthmus.v1.AdminService";

}  // namespace

class AdminServer::Service final : public v1::AdminService::CallbackService {
 public:
  explicit Service(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::ServerUnaryReactor* DrainNode(grpc::CallbackServerContext* context,
                                      const v1::DrainNodeRequest* request,
                                      v1::DrainNodeResponse* response) override {
    return AnswerNow(context, coordinator_->DrainNode(*request), response);
  }
  grpc::ServerUnaryReactor* EvictNode(grpc::CallbackServerContext* context,
                                      const v1::EvictNodeRequest* request,
                                      v1::EvictNodeResponse* response) override {
    return AnswerNow(context, coordinator_->EvictNode(*request), response);
  }
  grpc::ServerUnaryReactor* AdmitNode(grpc::CallbackServerContext* context,
                                      const v1::AdmitNodeRequest* request,
                                      v1::AdmitNodeResponse* response) override {
    return AnswerNow(context, coordinator_->AdmitNode(*request), response);
  }
  grpc::ServerUnaryReactor* CheckpointRun(grpc::CallbackServerContext* context,
                                          const v1::CheckpointRunRequest* request,
                                          v1::CheckpointRunResponse* response) override {
    return AnswerNow(context, Checkpoint(*request), response);
  }

  grpc::ServerUnaryReactor* PauseRun(grpc::CallbackServerContext* context,
                                     const v1::PauseRunRequest* request,
                                     v1::PauseRunResponse* response) override {
    return AnswerNow(context, coordinator_->PauseRun(*request), response);
  }
  grpc::ServerUnaryReactor* ResumeRun(grpc::CallbackServerContext* context,
                                      const v1::ResumeRunRequest* request,
                                      v1::ResumeRunResponse* response) override {
    return AnswerNow(context, coordinator_->ResumeRun(*request), response);
  }

 private:
  absl::StatusOr<v1::CheckpointRunResponse> Checkpoint(
      const v1::CheckpointRunRequest& request) const {
    if (const absl::Status run = coordinator_->CheckRun(request.run()); !run.ok()) return run;
    const absl::StatusOr<uint64_t> round = coordinator_->RequestSnapshot();
    if (!round.ok()) return round.status();
    v1::CheckpointRunResponse response;
    response.set_round(*round);
    return response;
  }

  Coordinator* const coordinator_;
};

AdminServer::AdminServer(Coordinator* coordinator)
    : service_(std::make_unique<Service>(coordinator)) {}

AdminServer::~AdminServer() = default;

AddedService AdminServer::added() {
  return {kServiceName, service_.get(), [](const absl::Status&) {}};  // it has no streams
}

}  // namespace isthmus
