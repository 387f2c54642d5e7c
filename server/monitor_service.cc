#include "server/monitor_service.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "isthmus/v1/monitor.grpc.pb.h"
#include "server/monitor_view.h"
#include "server/monitor_watch.h"
#include "transport/errors.h"
#include "transport/grpc_status.h"

namespace isthmus {
namespace {

constexpr char kServiceName[] = "isthmus.v1.MonitorService";

}  // namespace

class MonitorServer::Service final : public v1::MonitorService::CallbackService {
 public:
  explicit Service(RunFinder* runs) : runs_(runs) {}

  AddedService added() {
    return {kServiceName, this, [this](const absl::Status& status) { CloseWatches(status); }};
  }

  grpc::ServerUnaryReactor* GetRun(grpc::CallbackServerContext* context,
                                   const v1::GetRunRequest* request,
                                   v1::GetRunResponse* response) override {
    return Answer(context, ReadRun(*request, response));
  }
  grpc::ServerUnaryReactor* ListRuns(grpc::CallbackServerContext* context,
                                     const v1::ListRunsRequest* request,
                                     v1::ListRunsResponse* response) override {
    return Answer(context, ReadRuns(*request, response));
  }
  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* context,
                                      const v1::ListNodesRequest* request,
                                      v1::ListNodesResponse* response) override {
    return Answer(context, ReadNodes(*request, response));
  }
  grpc::ServerUnaryReactor* ListRounds(grpc::CallbackServerContext* context,
                                       const v1::ListRoundsRequest* request,
                                       v1::ListRoundsResponse* response) override {
    return Answer(context, ReadRounds(*request, response));
  }
  grpc::ServerUnaryReactor* GetRound(grpc::CallbackServerContext* context,
                                     const v1::GetRoundRequest* request,
                                     v1::GetRoundResponse* response) override {
    return Answer(context, ReadRound(*request, response));
  }
  grpc::ServerWriteReactor<v1::WatchRoundsResponse>* WatchRounds(
      grpc::CallbackServerContext*, const v1::WatchRoundsRequest* request) override {
    const absl::StatusOr<Coordinator*> run = runs_->Find(request->run());
    if (!run.ok()) return RoundWatches::Refuse(run.status());
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_with_.ok()) return RoundWatches::Refuse(closed_with_);
    std::unique_ptr<RoundWatches>& watches = watches_[*run];
    if (watches == nullptr) watches = std::make_unique<RoundWatches>(*run);
    return watches->Start(*request);
  }

 private:
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                          const absl::Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }

  void CloseWatches(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_with_ = status;
    for (const auto& [run, watches] : watches_) watches->CloseAll(status);
  }

  static v1::Run Run(Coordinator* run, bool with_spec) {
    const RunFacts facts = run->Look();
    return ViewOfRun(facts, run->history().PaceAt(facts.now_ms), with_spec);
  }

  absl::Status ReadRun(const v1::GetRunRequest& request, v1::GetRunResponse* response) const {
    ISTHMUS_ASSIGN_OR_RETURN(Coordinator* const run, runs_->Find(request.run()));
    *response->mutable_run() = Run(run, /*with_spec=*/true);
    return absl::OkStatus();
  }

  absl::Status ReadRuns(const v1::ListRunsRequest& request, v1::ListRunsResponse* response) const {
    ISTHMUS_ASSIGN_OR_RETURN(const Page page,
                             ReadPage(request.page_size(), request.page_token(), 0));
    std::vector<v1::Run> all = runs_->NotServed();
    for (Coordinator* run : runs_->All()) all.push_back(Run(run, /*with_spec=*/false));
    std::sort(all.begin(), all.end(),
              [](const v1::Run& a, const v1::Run& b) { return a.run() < b.run(); });
    const uint64_t begin = std::min<uint64_t>(page.begin, all.size());
    const uint64_t end = std::min<uint64_t>(begin + page.size, all.size());
    for (uint64_t at = begin; at < end; ++at) *response->add_runs() = std::move(all[at]);
    if (end < all.size()) response->set_next_page_token(PageToken(end));
    return absl::OkStatus();
  }

  absl::Status ReadNodes(const v1::ListNodesRequest& request,
                         v1::ListNodesResponse* response) const {
    ISTHMUS_ASSIGN_OR_RETURN(Coordinator* const run, runs_->Find(request.run()));
    ISTHMUS_ASSIGN_OR_RETURN(const Page page,
                             ReadPage(request.page_size(), request.page_token(), 0));
    const RunFacts facts = run->Look();
    const uint64_t begin = std::min<uint64_t>(page.begin, facts.nodes.size());
    const uint64_t end = std::min<uint64_t>(begin + page.size, facts.nodes.size());
    for (uint64_t at = begin; at < end; ++at) {
      *response->add_nodes() = ViewOfNode(facts, facts.nodes[at]);
    }
    if (end < facts.nodes.size()) response->set_next_page_token(PageToken(end));
    return absl::OkStatus();
  }

  absl::Status ReadRounds(const v1::ListRoundsRequest& request,
                          v1::ListRoundsResponse* response) const {
    ISTHMUS_ASSIGN_OR_RETURN(Coordinator* const run, runs_->Find(request.run()));
    ISTHMUS_ASSIGN_OR_RETURN(const Page page, ReadPage(request.page_size(), request.page_token(),
                                                       std::numeric_limits<uint64_t>::max()));
    const RunFacts facts = run->Look();
    const RoundHistory& history = run->history();
    for (const RoundPtr& round :
         history.Before(page.begin, page.size, kPageBytesMax, facts.now_ms)) {
      *response->add_rounds() = ViewOfRound(facts, *round);
    }
    if (response->rounds().empty()) return absl::OkStatus();
    const uint64_t last = response->rounds().rbegin()->round();
    if (last > history.oldest()) response->set_next_page_token(PageToken(last));
    return absl::OkStatus();
  }

  absl::Status ReadRound(const v1::GetRoundRequest& request, v1::GetRoundResponse* response) const {
    ISTHMUS_ASSIGN_OR_RETURN(Coordinator* const run, runs_->Find(request.run()));
    const RunFacts facts = run->Look();
    const RoundHistory& history = run->history();
    const absl::optional<v1::Round> newest = history.Newest(facts.now_ms);
    if (!newest.has_value() || request.round() > newest->round()) {
      return WithReason(
          absl::NotFoundError(newest.has_value()
                                  ? absl::StrCat("round ", request.round(),
                                                 " has not opened; the newest is ", newest->round())
                                  : absl::StrCat("no round has opened yet: ",
                                                 facts.machine.Decide(facts.now_ms).sentence)),
          "ROUND_NOT_OPENED");
    }
    const RoundPtr round =
        history.Find(request.round() == 0 ? newest->round() : request.round(), facts.now_ms);
    if (round == nullptr) {
      return WithReason(absl::OutOfRangeError(
                            absl::StrCat("round ", request.round(), " is no longer kept; rounds ",
                                         history.oldest(), " to ", newest->round(), " are")),
                        "ROUND_NOT_KEPT");
    }
    *response->mutable_round() = ViewOfRound(facts, *round);
    return absl::OkStatus();
  }

  RunFinder* const runs_;
  std::mutex mutex_;
  absl::Status closed_with_;  // OK: watches may begin
  std::map<Coordinator*, std::unique_ptr<RoundWatches>> watches_;
};

MonitorServer::MonitorServer(RunFinder* runs) : service_(std::make_unique<Service>(runs)) {}

MonitorServer::~MonitorServer() = default;

AddedService MonitorServer::added() { return service_->added(); }

}  // namespace isthmus
