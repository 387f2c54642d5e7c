// What operators say of nodes: at the coordinator, over its store, and over a real connection.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "base/limits.h"
#include "isthmus/v1/admin.grpc.pb.h"
#include "server/admin_service.h"
#include "server/monitor_view.h"
#include "tests/server/fakes.h"
#include "transport/errors.h"
#include "transport/grpc_status.h"
#include "transport/service.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<uint64_t> Drain(Coordinator* host, const std::string& node,
                               const std::string& reason = "") {
  v1::DrainNodeRequest request;
  request.set_node(node);
  request.set_reason(reason);
  const auto response = host->DrainNode(request);
  if (!response.ok()) return response.status();
  return response->last_round();
}

absl::Status Evict(Coordinator* host, const std::string& node, const std::string& reason = "") {
  v1::EvictNodeRequest request;
  request.set_node(node);
  request.set_reason(reason);
  return host->EvictNode(request).status();
}

absl::Status Admit(Coordinator* host, const std::string& node) {
  v1::AdmitNodeRequest request;
  request.set_node(node);
  return host->AdmitNode(request).status();
}

absl::StatusOr<uint64_t> Pause(Coordinator* host, const std::string& reason) {
  v1::PauseRunRequest request;
  request.set_reason(reason);
  const auto response = host->PauseRun(request);
  if (!response.ok()) return response.status();
  return response->last_round();
}

absl::Status Resume(Coordinator* host) { return host->ResumeRun(v1::ResumeRunRequest()).status(); }

v1::Run RunOf(const Coordinator& host) {
  return ViewOfRun(host.Look(), RoundHistory::Pace(), /*with_spec=*/false);
}

v1::Node ViewOf(const Coordinator& host, const std::string& node) {
  const RunFacts facts = host.Look();
  for (const NodeFacts& one : facts.nodes) {
    if (one.name == node) return ViewOfNode(facts, one);
  }
  return {};
}

std::vector<std::string> IncludedIn(const ReceivedUpdate& update) {
  std::vector<std::string> names;
  for (const v1::IncludedContribution& one : update.record.included()) names.push_back(one.node());
  return names;
}

// Nodes a and b whose first round is committed, on a store that outlives a coordinator.
class AdminTest : public ::testing::Test {
 protected:
  void Begin() {
    spec_ = TestSpec({"a", "b"}, 0, 20);
    store_ = MakeMemoryStore();
    coordinator_ = std::make_unique<TestCoordinator>(spec_, store_);
    a_ = std::make_unique<FakeNode>(host(), "a");
    b_ = std::make_unique<FakeNode>(host(), "b");
    a_->JoinAndWatch();
    b_->JoinAndWatch();
    a_->ExpectOpened(1);
    b_->ExpectOpened(1);
    ASSERT_TRUE(a_->SubmitRandom(1, 1).ok());
    ASSERT_TRUE(b_->SubmitRandom(1, 2).ok());
    TakeUpdate(1, {a_.get(), b_.get()});
  }

  void TakeUpdate(uint64_t round, const std::vector<FakeNode*>& nodes) {
    for (FakeNode* node : nodes) {
      last_ = node->ExpectUpdate(round);
      ASSERT_TRUE(node->Beat(round).ok());
    }
  }

  void Restart() {
    coordinator_ = nullptr;
    coordinator_ = std::make_unique<TestCoordinator>(spec_, store_);
    a_->Reconnect(host());
    b_->Reconnect(host());
  }

  Coordinator* host() { return coordinator_->host.get(); }

  v1::RunSpec spec_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<TestCoordinator> coordinator_;
  std::unique_ptr<FakeNode> a_, b_;
  ReceivedUpdate last_;
};

TEST_F(AdminTest, ADrainedNodeFinishesItsRoundAndGetsUpdatesOfTheOthers) {
  Begin();
  a_->ExpectOpened(2);
  b_->ExpectOpened(2);
  EXPECT_EQ(*Drain(host(), "b", "new\nfans"), 2u);
  EXPECT_EQ(*Drain(host(), "b", "new\nfans"), 2u);  // the same again
  v1::Node view = ViewOf(*host(), "b");
  EXPECT_EQ(view.state(), v1::NODE_STATE_MEMBER);
  EXPECT_TRUE(view.is_draining());
  EXPECT_EQ(view.policy_reason(), "new fans");
  ASSERT_TRUE(a_->SubmitRandom(2, 3).ok());
  EXPECT_THAT(host()->WaitingFor(), HasSubstr("waiting for b (drains after this round)"));
  ASSERT_TRUE(b_->SubmitRandom(2, 4).ok());
  TakeUpdate(2, {a_.get(), b_.get()});
  EXPECT_EQ(IncludedIn(last_), (std::vector<std::string>{"a", "b"}));

  a_->ExpectOpened(3);
  EXPECT_EQ(ViewOf(*host(), "b").state(), v1::NODE_STATE_DRAINING);
  EXPECT_EQ(ReasonOf(b_->SubmitRandom(3, 5).status()), "NODE_DRAINING");
  ASSERT_TRUE(a_->SubmitRandom(3, 6).ok());
  TakeUpdate(3, {a_.get(), b_.get()});  // it was told of no opening, and has the update
  EXPECT_EQ(IncludedIn(last_), (std::vector<std::string>{"a"}));
  EXPECT_EQ(*Drain(host(), "b", "new fans"), 0u);

  // Admitted, it is missed at once where all are needed, and asked to take part.
  a_->ExpectOpened(4);
  ASSERT_TRUE(Admit(host(), "b").ok());
  b_->ExpectOpened(4);
  ASSERT_TRUE(a_->SubmitRandom(4, 7).ok());
  ASSERT_TRUE(b_->SubmitRandom(4, 8).ok());
  TakeUpdate(4, {a_.get(), b_.get()});
  EXPECT_EQ(IncludedIn(last_), (std::vector<std::string>{"a", "b"}));
}

TEST_F(AdminTest, ADrainedNodeMayStopAndJoinAgain) {
  Begin();
  EXPECT_EQ(*Drain(host(), "b"), 2u);
  ASSERT_TRUE(b_->Leave().ok());
  EXPECT_EQ(ViewOf(*host(), "b").state(), v1::NODE_STATE_LEFT);
  EXPECT_TRUE(ViewOf(*host(), "b").is_draining());
  a_->ExpectOpened(2);
  ASSERT_TRUE(a_->SubmitRandom(2, 3).ok());
  TakeUpdate(2, {a_.get()});
  b_->JoinAndWatch();
  b_->ExpectUpdate(2);
  EXPECT_EQ(ViewOf(*host(), "b").state(), v1::NODE_STATE_DRAINING);
  // Its admission has kept what was said of it.
  Restart();
  EXPECT_TRUE(ViewOf(*host(), "b").is_draining());
}

TEST_F(AdminTest, WhatAnEvictedNodeSentIsNotInTheUpdate) {
  Begin();
  a_->ExpectOpened(2);
  b_->ExpectOpened(2);
  ASSERT_TRUE(b_->SubmitRandom(2, 4)->complete());
  ASSERT_TRUE(Evict(host(), "b", "sends rubbish").ok());
  ASSERT_TRUE(Evict(host(), "b", "sends rubbish").ok());
  const WatchQueue::Taken end = b_->reader->Next();
  ASSERT_TRUE(end.closed);
  EXPECT_EQ(end.status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ReasonOf(end.status), "NODE_EVICTED");
  EXPECT_THAT(std::string(end.status.message()),
              AllOf(HasSubstr("sends rubbish"), HasSubstr("isthmusctl nodes admit b")));
  for (const absl::Status& status :
       {b_->Join(), b_->Beat().status(), b_->SubmitRandom(2, 4).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    EXPECT_EQ(ReasonOf(status), "NODE_EVICTED");
  }
  const v1::Node view = ViewOf(*host(), "b");
  EXPECT_EQ(view.state(), v1::NODE_STATE_EVICTED);
  EXPECT_EQ(view.outcome(), v1::NODE_OUTCOME_EVICTED);
  EXPECT_EQ(view.received_bytes(), 0u);
  EXPECT_EQ(view.policy_reason(), "sends rubbish");

  // The update is that of a alone.
  const auto pieces = RandomContribution(*TestGrid(), 3);
  ASSERT_TRUE(a_->Submit(a_->Header(2, pieces), pieces, DigestOf(*TestGrid(), pieces)).ok());
  TakeUpdate(2, {a_.get()});
  EXPECT_EQ(IncludedIn(last_), (std::vector<std::string>{"a"}));

  TestCoordinator alone(TestSpec({"a"}, 0, 20));
  FakeNode other(alone.host.get(), "a");
  other.JoinAndWatch();
  other.ExpectOpened(1);
  ASSERT_TRUE(other.Submit(other.Header(1, pieces), pieces, DigestOf(*TestGrid(), pieces)).ok());
  EXPECT_EQ(other.ExpectUpdate(1).pieces, last_.pieces);
}

TEST_F(AdminTest, AnEvictedNodeThatIsAdmittedMaySendAgain) {
  Begin();
  a_->ExpectOpened(2);
  b_->ExpectOpened(2);
  ASSERT_TRUE(b_->SubmitRandom(2, 4).ok());
  ASSERT_TRUE(Evict(host(), "b").ok());
  EXPECT_EQ(ReasonOf(Drain(host(), "b").status()), "NODE_EVICTED");
  ASSERT_TRUE(Admit(host(), "b").ok());
  EXPECT_EQ(ReasonOf(b_->Beat().status()), "NOT_JOINED");
  b_->JoinAndWatch();
  b_->ExpectOpened(2);
  ASSERT_TRUE(b_->SubmitRandom(2, 5)->complete());  // other bytes than before
  ASSERT_TRUE(a_->SubmitRandom(2, 3).ok());
  TakeUpdate(2, {a_.get(), b_.get()});
  EXPECT_EQ(IncludedIn(last_), (std::vector<std::string>{"a", "b"}));
}

TEST_F(AdminTest, WhatWasSaidHoldsAfterARestart) {
  Begin();
  EXPECT_EQ(*Drain(host(), "b", "fans"), 2u);
  Restart();
  EXPECT_EQ(ViewOf(*host(), "b").policy_reason(), "fans");
  EXPECT_THAT(host()->WaitingFor(), HasSubstr("b (drains after this round)"));
  EXPECT_EQ(*Drain(host(), "b", "fans"), 2u);
  ASSERT_TRUE(Evict(host(), "b", "fans on fire").ok());
  Restart();
  EXPECT_THAT(host()->WaitingFor(), HasSubstr("waiting for a, no deadline, quorum 1 of 2"));
  EXPECT_THAT(host()->WaitingFor(), HasSubstr("b is evicted (fans on fire)"));
  EXPECT_THAT(std::string(b_->Join().message()), HasSubstr("fans on fire"));
  EXPECT_EQ(host()->live_nodes(), 1u);
  ASSERT_TRUE(Admit(host(), "b").ok());
  Restart();
  EXPECT_TRUE(b_->Join().ok());
}

TEST_F(AdminTest, ANodeThatNeverJoinedMayBeSpokenOf) {
  spec_ = TestSpec({"a", "b"}, 0, 20);
  store_ = MakeMemoryStore();
  coordinator_ = std::make_unique<TestCoordinator>(spec_, store_);
  a_ = std::make_unique<FakeNode>(host(), "a");
  b_ = std::make_unique<FakeNode>(host(), "b");
  EXPECT_EQ(*Drain(host(), "b", "not built yet"), 0u);
  Restart();
  EXPECT_THAT(host()->WaitingFor(), HasSubstr("; b drains (not built yet)"));
  a_->JoinAndWatch();
  a_->ExpectOpened(1);
  EXPECT_EQ(ViewOf(*host(), "b").state(), v1::NODE_STATE_NEVER_JOINED);
}

TEST_F(AdminTest, APausedRunFinishesItsRoundAndOpensNoOther) {
  Begin();
  a_->ExpectOpened(2);
  b_->ExpectOpened(2);
  EXPECT_EQ(*Pause(host(), "new\ncables"), 2u);
  EXPECT_THAT(host()->WaitingFor(),
              AllOf(HasSubstr("waiting for a, b"),
                    HasSubstr("; then paused by an operator: new cables; isthmusctl runs resume")));
  EXPECT_EQ(RunOf(*host()).state(), v1::RUN_STATE_RUNNING);
  EXPECT_TRUE(RunOf(*host()).is_paused());
  ASSERT_TRUE(a_->SubmitRandom(2, 3).ok());
  ASSERT_TRUE(b_->SubmitRandom(2, 4).ok());
  TakeUpdate(2, {a_.get(), b_.get()});
  EXPECT_EQ(host()->WaitingFor(), "paused by an operator: new cables; isthmusctl runs resume test");
  EXPECT_EQ(*Pause(host(), "newer cables"), 0u);
  const v1::Run run = RunOf(*host());
  EXPECT_EQ(run.state(), v1::RUN_STATE_PAUSED);
  EXPECT_EQ(run.pause_reason(), "newer cables");
  EXPECT_EQ(run.open_round(), 0u);
  EXPECT_EQ(run.waiting_nodes_size(), 0);
  EXPECT_EQ(ViewOf(*host(), "a").state(), v1::NODE_STATE_JOINED);
  EXPECT_EQ(ReasonOf(a_->SubmitRandom(3, 5).status()), "ROUND_NOT_OPEN");
  // Leases go on.
  coordinator_->Pass(60000, {a_.get(), b_.get()});
  EXPECT_EQ(host()->live_nodes(), 2u);

  Restart();
  EXPECT_EQ(RunOf(*host()).pause_reason(), "newer cables");
  EXPECT_EQ(RunOf(*host()).state(), v1::RUN_STATE_PAUSED);
  a_->JoinAndWatch();
  b_->JoinAndWatch();
  ASSERT_TRUE(Resume(host()).ok());
  ASSERT_TRUE(Resume(host()).ok());
  a_->ExpectOpened(3);
  b_->ExpectOpened(3);
  Restart();
  EXPECT_EQ(RunOf(*host()).open_round(), 3u);
}

TEST_F(AdminTest, APauseBeforeAnybodyHasJoinedLasts) {
  spec_ = TestSpec({"a", "b"}, 0, 2);
  store_ = MakeMemoryStore();
  coordinator_ = std::make_unique<TestCoordinator>(spec_, store_);
  a_ = std::make_unique<FakeNode>(host(), "a");
  b_ = std::make_unique<FakeNode>(host(), "b");
  EXPECT_EQ(*Pause(host(), ""), 0u);
  coordinator_ = nullptr;
  coordinator_ = std::make_unique<TestCoordinator>(spec_, store_);
  a_ = std::make_unique<FakeNode>(host(), "a");
  b_ = std::make_unique<FakeNode>(host(), "b");
  a_->JoinAndWatch();
  b_->JoinAndWatch();
  EXPECT_EQ(host()->WaitingFor(), "paused by an operator; isthmusctl runs resume test");
  ASSERT_TRUE(Resume(host()).ok());
  a_->ExpectOpened(1);
  b_->ExpectOpened(1);
  ASSERT_TRUE(a_->SubmitRandom(1, 1).ok());
  ASSERT_TRUE(b_->SubmitRandom(1, 2).ok());
  TakeUpdate(1, {a_.get(), b_.get()});
  a_->ExpectOpened(2);
  b_->ExpectOpened(2);
  ASSERT_TRUE(a_->SubmitRandom(2, 1).ok());
  ASSERT_TRUE(b_->SubmitRandom(2, 2).ok());
  TakeUpdate(2, {a_.get(), b_.get()});
  EXPECT_EQ(ReasonOf(Pause(host(), "").status()), "RUN_FINISHED");
}

TEST_F(AdminTest, RefusalsNameFieldLimitAndValue) {
  Begin();
  EXPECT_THAT(Drain(host(), "c").status(),
              testing::Property(&absl::Status::code, absl::StatusCode::kNotFound));
  v1::EvictNodeRequest other_run;
  other_run.set_run("other");
  other_run.set_node("a");
  EXPECT_EQ(ReasonOf(host()->EvictNode(other_run).status()), "UNKNOWN_RUN");
  EXPECT_THAT(std::string(Evict(host(), "a", std::string(300, 'x')).message()),
              HasSubstr("reason has 300 bytes; it has 0 to 256"));
  EXPECT_TRUE(Admit(host(), "a").ok());  // nothing was said of it
  EXPECT_THAT(std::string(Pause(host(), std::string(300, 'x')).status().message()),
              HasSubstr("reason has 300 bytes; it has 0 to 256"));
}

// AdminService on the wire.
TEST_F(AdminTest, OverARealConnection) {
  Begin();
  OneRun runs(host());
  AdminServer admin(&runs);
  GrpcServerOptions options;
  options.host = host();
  options.addresses = {"127.0.0.1:0"};
  options.more.push_back(admin.added());
  const auto server = GrpcServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = v1::AdminService::NewStub(
      grpc::CreateChannel((*server)->addresses().front(), grpc::InsecureChannelCredentials()));
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(20);
  {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    v1::DrainNodeRequest request;
    request.set_node("b");
    v1::DrainNodeResponse response;
    const grpc::Status status = stub->DrainNode(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.last_round(), 2u);
  }
  {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    v1::EvictNodeRequest request;
    request.set_node("nobody");
    v1::EvictNodeResponse response;
    const absl::Status status = FromGrpcStatus(stub->EvictNode(&context, request, &response));
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(ReasonOf(status), "UNKNOWN_NODE");
    EXPECT_THAT(std::string(status.message()), HasSubstr("its spec names a, b"));
  }
  {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    v1::AdmitNodeRequest request;
    request.set_node("b");
    v1::AdmitNodeResponse response;
    EXPECT_TRUE(stub->AdmitNode(&context, request, &response).ok());
    EXPECT_FALSE(ViewOf(*host(), "b").is_draining());
  }
  {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    v1::CheckpointRunResponse response;
    const grpc::Status status =
        stub->CheckpointRun(&context, v1::CheckpointRunRequest(), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.round(), 3u);  // round 2 is open
  }
  (*server)->Shutdown(1000);
}

}  // namespace
}  // namespace isthmus
