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
  explicit Service(RunFinder* runs) : runs_(runs) {}

  grpc::ServerUnaryReactor* DrainNode(grpc::CallbackServerContext* context,
                                      const v1::DrainNodeRequest* request,
                                      v1::DrainNodeResponse* response) override {
    return AnswerNow(context, Ask(&Coordinator::DrainNode, *request), response);
  }
  grpc::ServerUnaryReactor* EvictNode(grpc::CallbackServerContext* context,
                                      const v1::EvictNodeRequest* request,
                                      v1::EvictNodeResponse* response) override {
    return AnswerNow(context, Ask(&Coordinator::EvictNode, *request), response);
  }
  grpc::ServerUnaryReactor* AdmitNode(grpc::CallbackServerContext* context,
                                      const v1::AdmitNodeRequest* request,
                                      v1::AdmitNodeResponse* response) override {
    return AnswerNow(context, Ask(&Coordinator::AdmitNode, *request), response);
  }
  grpc::ServerUnaryReactor* CheckpointRun(grpc::CallbackServerContext* context,
                                          const v1::CheckpointRunRequest* request,
                                          v1::CheckpointRunResponse* response) override {
    return AnswerNow(context, Checkpoint(*request), response);
  }

  grpc::ServerUnaryReactor* UpdateRun(grpc::CallbackServerContext* context,
                                      const v1::UpdateRunRequest* request,
                                      v1::UpdateRunResponse* response) override {
    return AnswerNow(context, Ask(&Coordinator::UpdateRun, *request), response);
  }
  grpc::ServerUnaryReactor* PauseRun(grpc::CallbackServerContext* context,
                                     const v1::PauseRunRequest* request,
                                     v1::PauseRunResponse* response) override {
    return AnswerNow(context, Ask(&Coordinator::PauseRun, *request), response);
  }
  grpc::ServerUnaryReactor* ResumeRun(grpc::CallbackServerContext* context,
                                      const v1::ResumeRunRequest* request,
                                      v1::ResumeRunResponse* response) override {
    return AnswerNow(context, Ask(&Coordinator::ResumeRun, *request), response);
  }
  grpc::ServerUnaryReactor* ChooseState(grpc::CallbackServerContext* context,
                                        const v1::ChooseStateRequest* request,
                                        v1::ChooseStateResponse* response) override {
    return AnswerNow(context, Ask(&Coordinator::ChooseState, *request), response);
  }

  grpc::ServerUnaryReactor* CreateRun(grpc::CallbackServerContext* context,
                                      const v1::CreateRunRequest* request,
                                      v1::CreateRunResponse* response) override {
    return AnswerNow(context, runs_->CreateRun(*request), response);
  }
  grpc::ServerUnaryReactor* ForkRun(grpc::CallbackServerContext* context,
                                    const v1::ForkRunRequest* request,
                                    v1::ForkRunResponse* response) override {
    return AnswerNow(context, runs_->ForkRun(*request), response);
  }

 private:
  // Of the run that the request names.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Ask(absl::StatusOr<Response> (Coordinator::*call)(const Request&),
                               const Request& request) const {
    const absl::StatusOr<Coordinator*> run = runs_->Find(request.run());
    if (!run.ok()) return run.status();
    return ((*run)->*call)(request);
  }

  absl::StatusOr<v1::CheckpointRunResponse> Checkpoint(
      const v1::CheckpointRunRequest& request) const {
    const absl::StatusOr<Coordinator*> run = runs_->Find(request.run());
    if (!run.ok()) return run.status();
    const absl::StatusOr<uint64_t> round = (*run)->RequestSnapshot();
    if (!round.ok()) return round.status();
    v1::CheckpointRunResponse response;
    response.set_round(*round);
    return response;
  }

  RunFinder* const runs_;
};

AdminServer::AdminServer(RunFinder* runs) : service_(std::make_unique<Service>(runs)) {}

AdminServer::~AdminServer() = default;

AddedService AdminServer::added() {
  return {kServiceName, service_.get(), [](const absl::Status&) {}};  // it has no streams
}

}  // namespace isthmus
