// MonitorService over real connections: answers, errors, watches, and that a watcher who does not
// read holds up nobody.
#include "server/monitor_service.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "isthmus/v1/monitor.grpc.pb.h"
#include "tests/server/fakes.h"
#include "transport/errors.h"
#include "transport/grpc_status.h"
#include "transport/service.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A coordinator that is served, and a way to ask it.
struct Served {
  explicit Served(const v1::RunSpec& spec, const HistoryLimits& limits = HistoryLimits())
      : coordinator(spec, size_t{1} << 30, limits) {
    monitor = std::make_unique<MonitorServer>(&runs);
    GrpcServerOptions options;
    options.host = coordinator.host.get();
    options.addresses = {"127.0.0.1:0"};
    options.more.push_back(monitor->added());
    auto started = GrpcServer::Start(options);
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
    stub = v1::MonitorService::NewStub(Channel());
  }

  // A connection of its own.
  std::shared_ptr<grpc::Channel> Channel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    // A window that does not grow, so that a reader who does not read is seen to lag.
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16384);
    return grpc::CreateCustomChannel(server->addresses().front(),
                                     grpc::InsecureChannelCredentials(), arguments);
  }

  template <typename Request, typename Response>
  absl::StatusOr<Response> Ask(grpc::Status (v1::MonitorService::Stub::*method)(
                                   grpc::ClientContext*, const Request&, Response*),
                               const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    Response response;
    const grpc::Status status = ((*stub).*method)(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }

  // Beside the run one that is not served.
  class TwoRuns final : public RunFinder {
   public:
    explicit TwoRuns(Coordinator* coordinator) : one_(coordinator) {}
    absl::StatusOr<Coordinator*> Find(const std::string& run) const override {
      return one_.Find(run);
    }
    std::vector<Coordinator*> All() const override { return one_.All(); }
    std::vector<v1::Run> NotServed() const override { return not_served; }
    absl::StatusOr<v1::CreateRunResponse> CreateRun(const v1::CreateRunRequest& request) override {
      return one_.CreateRun(request);
    }
    absl::StatusOr<v1::ForkRunResponse> ForkRun(const v1::ForkRunRequest& request) override {
      return one_.ForkRun(request);
    }
    std::vector<v1::Run> not_served;

   private:
    OneRun one_;
  };

  TestCoordinator coordinator;
  TwoRuns runs{coordinator.host.get()};
  std::unique_ptr<MonitorServer> monitor;  // outlives the server
  std::unique_ptr<GrpcServer> server;
  std::unique_ptr<v1::MonitorService::Stub> stub;
};

using Stub = v1::MonitorService::Stub;

// A WatchRounds call.
struct Watch {
  explicit Watch(Stub* stub) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    reader = stub->WatchRounds(&context, v1::WatchRoundsRequest());
  }
  v1::WatchRoundsResponse Next() {
    v1::WatchRoundsResponse change;
    EXPECT_TRUE(reader->Read(&change)) << "the watch ended";
    return change;
  }
  // The changes up to the end, and the end.
  absl::Status ReadToEnd(std::vector<v1::RoundChange>* changes = nullptr) {
    v1::WatchRoundsResponse change;
    while (reader->Read(&change)) {
      if (changes != nullptr) changes->push_back(change.change());
    }
    return FromGrpcStatus(reader->Finish());
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::WatchRoundsResponse>> reader;
};

void PlayRound(FakeNode* a, FakeNode* b, uint64_t round) {
  a->ExpectOpened(round);
  b->ExpectOpened(round);
  ASSERT_TRUE(a->SubmitRandom(round, 1).ok());
  ASSERT_TRUE(b->SubmitRandom(round, 2).ok());
  a->ExpectUpdate(round);
  b->ExpectUpdate(round);
}

TEST(Monitor, AnswersAllCalls) {
  Served served(TestSpec({"a", "b"}, 0, 5));
  FakeNode a(served.coordinator.host.get(), "a"), b(served.coordinator.host.get(), "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  PlayRound(&a, &b, 1);
  PlayRound(&a, &b, 2);
  ASSERT_TRUE(b.SubmitRandom(3, 3).ok());

  const auto run = served.Ask(&Stub::GetRun, v1::GetRunRequest());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->run().run(), "test");
  EXPECT_EQ(run->run().open_round(), 3u);
  EXPECT_THAT(run->run().waiting_for(), HasSubstr("round 3: waiting for a"));
  EXPECT_THAT(std::vector<std::string>(run->run().waiting_nodes().begin(),
                                       run->run().waiting_nodes().end()),
              ElementsAre("a"));
  const auto runs = served.Ask(&Stub::ListRuns, v1::ListRunsRequest());
  ASSERT_TRUE(runs.ok()) << runs.status();
  ASSERT_EQ(runs->runs_size(), 1);
  EXPECT_FALSE(runs->runs(0).has_spec());

  v1::ListNodesRequest nodes_request;
  nodes_request.set_page_size(1);
  std::vector<std::string> names;
  do {
    const auto nodes = served.Ask(&Stub::ListNodes, nodes_request);
    ASSERT_TRUE(nodes.ok()) << nodes.status();
    ASSERT_EQ(nodes->nodes_size(), 1);
    names.push_back(nodes->nodes(0).name());
    nodes_request.set_page_token(nodes->next_page_token());
  } while (!nodes_request.page_token().empty());
  EXPECT_THAT(names, ElementsAre("a", "b"));

  v1::ListRoundsRequest rounds_request;
  rounds_request.set_run("test");
  rounds_request.set_page_size(2);
  std::vector<uint64_t> numbers;
  do {
    const auto rounds = served.Ask(&Stub::ListRounds, rounds_request);
    ASSERT_TRUE(rounds.ok()) << rounds.status();
    for (const v1::Round& round : rounds->rounds()) numbers.push_back(round.round());
    rounds_request.set_page_token(rounds->next_page_token());
  } while (!rounds_request.page_token().empty());
  EXPECT_THAT(numbers, ElementsAre(3, 2, 1));

  v1::GetRoundRequest round_request;
  EXPECT_EQ(served.Ask(&Stub::GetRound, round_request)->round().round(), 3u);
  round_request.set_round(2);
  EXPECT_EQ(served.Ask(&Stub::GetRound, round_request)->round().state(), v1::ROUND_STATE_COMMITTED);
}

TEST(Monitor, ListsRunsThatAreNotServedAmongTheOthers) {
  Served served(TestSpec({"a", "b"}, 0, 5));
  for (const char* name : {"old", "worn"}) {
    served.runs.not_served.emplace_back();
    served.runs.not_served.back().set_run(name);
    served.runs.not_served.back().set_waiting_for("its folder is damaged");
  }
  v1::ListRunsRequest request;
  request.set_page_size(2);
  std::vector<std::string> names;
  do {
    const auto runs = served.Ask(&Stub::ListRuns, request);
    ASSERT_TRUE(runs.ok()) << runs.status();
    for (const v1::Run& run : runs->runs()) {
      names.push_back(run.run());
      EXPECT_EQ(run.waiting_for() == "its folder is damaged", run.run() != "test");
    }
    request.set_page_token(runs->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(names, ElementsAre("old", "test", "worn"));
}

TEST(Monitor, ErrorsSayWhatAndWhy) {
  Served served(TestSpec({"a"}));
  v1::GetRunRequest run;
  run.set_run("other");
  auto status = served.Ask(&Stub::GetRun, run).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(ReasonOf(status), "UNKNOWN_RUN");
  EXPECT_THAT(std::string(status.message()), HasSubstr("has run 'test'"));
  v1::ListNodesRequest nodes;
  nodes.set_page_size(-5);
  status = served.Ask(&Stub::ListNodes, nodes).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("page_size is -5"));
  v1::ListRoundsRequest rounds;
  rounds.set_page_token("\x01\x02");
  status = served.Ask(&Stub::ListRounds, rounds).status();
  EXPECT_EQ(ReasonOf(status), "WRONG_PAGE_TOKEN");
  v1::GetRoundRequest round;
  status = served.Ask(&Stub::GetRound, round).status();
  EXPECT_EQ(ReasonOf(status), "ROUND_NOT_OPENED");
  EXPECT_THAT(std::string(status.message()), HasSubstr("a (not connected)"));
  v1::WatchRoundsRequest watch_request;
  watch_request.set_run("other");
  grpc::ClientContext context;
  v1::WatchRoundsResponse change;
  const auto watch = served.stub->WatchRounds(&context, watch_request);
  EXPECT_FALSE(watch->Read(&change));
  EXPECT_EQ(ReasonOf(FromGrpcStatus(watch->Finish())), "UNKNOWN_RUN");
}

TEST(Monitor, RoundsThatAreNotKeptAreNamed) {
  Served served(TestSpec({"a", "b"}, 0, 9), {/*rounds=*/2, /*changes=*/100, /*bytes=*/1 << 20});
  FakeNode a(served.coordinator.host.get(), "a"), b(served.coordinator.host.get(), "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  for (uint64_t round = 1; round <= 4; ++round) PlayRound(&a, &b, round);
  a.ExpectOpened(5);
  v1::GetRoundRequest request;
  request.set_round(1);
  const auto status = served.Ask(&Stub::GetRound, request).status();
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rounds 3 to 5 are"));
  request.set_round(6);
  EXPECT_EQ(ReasonOf(served.Ask(&Stub::GetRound, request).status()), "ROUND_NOT_OPENED");
}

TEST(Monitor, UnknownCallsAndGarbageAreRefusedAndChangeNothing) {
  Served served(TestSpec({"a"}));
  grpc::GenericStub generic(served.Channel());
  const auto call = [&](const std::string& method, const std::string& bytes) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    grpc::CompletionQueue queue;
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    const auto rpc = generic.PrepareUnaryCall(&context, method, request, &queue);
    rpc->StartCall();
    grpc::ByteBuffer response;
    grpc::Status status;
    rpc->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  };
  EXPECT_EQ(call("/isthmus.v1.MonitorService/StopRun", "").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_FALSE(call("/isthmus.v1.MonitorService/GetRun", "\xff\xff\xff garbage").ok());
  EXPECT_FALSE(call("/isthmus.v1.MonitorService/ListNodes", std::string(3 << 20, 'x')).ok());
  EXPECT_TRUE(served.Ask(&Stub::GetRun, v1::GetRunRequest()).ok());
}

TEST(Watching, EveryChangeOfARoundThenTheEnd) {
  Served served(TestSpec({"a", "b"}, 0, 2));
  FakeNode a(served.coordinator.host.get(), "a"), b(served.coordinator.host.get(), "b");
  Watch watch(served.stub.get());
  v1::WatchRoundsResponse change = watch.Next();
  EXPECT_EQ(change.change(), v1::ROUND_CHANGE_CURRENT);
  EXPECT_FALSE(change.has_round());
  EXPECT_THAT(change.waiting_for(), HasSubstr("a (not connected)"));
  a.JoinAndWatch();
  b.JoinAndWatch();
  change = watch.Next();
  EXPECT_EQ(change.change(), v1::ROUND_CHANGE_OPENED);
  EXPECT_EQ(change.round().round(), 1u);
  ASSERT_TRUE(b.SubmitRandom(1, 1).ok());
  change = watch.Next();
  EXPECT_EQ(change.change(), v1::ROUND_CHANGE_COMPLETE);
  EXPECT_EQ(change.node(), "b");
  served.coordinator.Pass(1500, {&a, &b});
  change = watch.Next();
  EXPECT_EQ(change.change(), v1::ROUND_CHANGE_WAITING);
  EXPECT_THAT(change.waiting_for(), HasSubstr("waiting for a"));
  ASSERT_TRUE(a.SubmitRandom(1, 2).ok());
  EXPECT_EQ(watch.Next().node(), "a");
  change = watch.Next();
  EXPECT_EQ(change.change(), v1::ROUND_CHANGE_COMMITTED);
  EXPECT_EQ(change.round().nodes(0).outcome(), v1::NODE_OUTCOME_INCLUDED);
  EXPECT_EQ(change.round().sha256().size(), 32u);
  a.ExpectOpened(1);
  a.ExpectUpdate(1);
  b.ExpectOpened(1);
  b.ExpectUpdate(1);
  PlayRound(&a, &b, 2);
  std::vector<v1::RoundChange> changes;
  EXPECT_TRUE(watch.ReadToEnd(&changes).ok());
  EXPECT_THAT(changes, ElementsAre(v1::ROUND_CHANGE_OPENED, v1::ROUND_CHANGE_COMPLETE,
                                   v1::ROUND_CHANGE_COMPLETE, v1::ROUND_CHANGE_COMMITTED,
                                   v1::ROUND_CHANGE_FINISHED));
  // Who comes after the end learns of it.
  Watch late(served.stub.get());
  EXPECT_EQ(late.Next().round().round(), 2u);
  EXPECT_TRUE(late.ReadToEnd().ok());
}

TEST(Watching, AWatcherThatDoesNotReadHoldsUpNobodyAndIsDropped) {
  constexpr uint64_t kRounds = 500;
  Served served(TestSpec({"a", "b"}, 0, kRounds),
                {/*rounds=*/20, /*changes=*/20, /*bytes=*/1 << 20});
  FakeNode a(served.coordinator.host.get(), "a"), b(served.coordinator.host.get(), "b");
  Watch stalled(served.stub.get());
  EXPECT_EQ(stalled.Next().change(), v1::ROUND_CHANGE_CURRENT);
  a.JoinAndWatch();
  b.JoinAndWatch();
  // The node's own queue gives up after ten seconds without an event, so each round is bounded.
  for (uint64_t round = 1; round <= kRounds; ++round) PlayRound(&a, &b, round);
  // Others are answered meanwhile.
  EXPECT_EQ(served.Ask(&Stub::GetRun, v1::GetRunRequest())->run().committed_round(), kRounds);
  const absl::Status status = stalled.ReadToEnd();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReasonOf(status), "WATCHER_BEHIND");
}

TEST(Watching, TooManyWatchersAreRefused) {
  Served served(TestSpec({"a"}));
  std::vector<std::unique_ptr<Stub>> stubs;
  std::vector<std::unique_ptr<Watch>> watches;
  for (int i = 0; i < 64; ++i) {
    if (i % 16 == 0) stubs.push_back(v1::MonitorService::NewStub(served.Channel()));
    watches.push_back(std::make_unique<Watch>(stubs.back().get()));
    EXPECT_EQ(watches.back()->Next().change(), v1::ROUND_CHANGE_CURRENT);
  }
  Watch refused(served.stub.get());
  const absl::Status status = refused.ReadToEnd();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReasonOf(status), "ROUND_WATCHERS");
  EXPECT_GT(RetryAfterMsOf(status), 0);
  // When one goes, another may come.
  watches.front()->context.TryCancel();
  EXPECT_TRUE(absl::IsCancelled(watches.front()->ReadToEnd()));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  bool admitted = false;
  while (!admitted && std::chrono::steady_clock::now() < end) {
    Watch next(served.stub.get());
    v1::WatchRoundsResponse change;
    admitted = next.reader->Read(&change);
    next.context.TryCancel();
    next.ReadToEnd().IgnoreError();
  }
  EXPECT_TRUE(admitted);
  for (const auto& watch : watches) watch->context.TryCancel();
}

TEST(Watching, AShutdownEndsThemWithAReason) {
  Served served(TestSpec({"a"}));
  Watch watch(served.stub.get());
  watch.Next();
  std::thread stopper([&] { served.server->Shutdown(kDrainMs); });
  const absl::Status status = watch.ReadToEnd();
  stopper.join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(ReasonOf(status), kReasonShuttingDown);
}

}  // namespace
}  // namespace isthmus
