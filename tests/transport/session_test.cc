// Sessions against a small coordinator behind a real server, which is stopped and started under
// them.
#include "transport/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <thread>

#include "tests/transport/fake_coordinator.h"
#include "tests/transport/loopback.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Writes down what it is told; contributes to every round that opens and acknowledges every update.
class Recorder : public SessionListener {
 public:
  std::function<void(uint64_t round)> on_opened;
  std::function<void(const CommittedUpdate&)> on_update;

  void OnJoined(const v1::JoinRunResponse& joined) override {
    Note("joined", [&] { attempt = joined.attempt(); });
  }
  void OnOpened(const v1::RoundOpened& opened) override {
    Note("open " + std::to_string(opened.round()));
    if (on_opened) on_opened(opened.round());
  }
  void OnUpdate(std::shared_ptr<const CommittedUpdate> update) override {
    if (on_update) on_update(*update);
    Note("update " + std::to_string(update->record.round()) + " " + update->pieces[0]);
  }
  void OnFinished(uint64_t last_round) override { Note("finished " + std::to_string(last_round)); }
  void OnEnded(const absl::Status& status) override {
    Note("ended", [&] { ended_with = status; });
  }
  void OnWaiting(const std::string& sentence) override {
    std::lock_guard<std::mutex> lock(mutex_);
    sentences_.push_back(sentence);
    changed_.notify_all();
  }

  // Without "joined", whose number depends on timing.
  std::vector<std::string> events() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> events;
    for (const std::string& event : events_) {
      if (event != "joined") events.push_back(event);
    }
    return events;
  }
  bool Saw(const std::string& event) {
    return Wait([&] { return testing::Matches(testing::Contains(event))(events_); });
  }
  bool SawSentence(const std::string& part) {
    return Wait([&] { return testing::Matches(testing::Contains(HasSubstr(part)))(sentences_); });
  }
  bool Wait(const std::function<bool()>& condition) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), condition);
  }
  void Note(const std::string& event, const std::function<void()>& also = nullptr) {
    std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(event);
    if (also) also();
    changed_.notify_all();
  }

  uint64_t attempt = 0;
  absl::Status ended_with;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> events_;
  std::vector<std::string> sentences_;
};

class SessionTest : public ::testing::Test {
 protected:
  void StartCoordinator(const FakeCoordinator::Options& options) {
    coordinator_ = std::make_unique<FakeCoordinator>(options);
    StartGrpc();
  }
  void StartGrpc() {
    auto server = StartServer(coordinator_.get(), folder_.Socket());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void StartSession() {
    SessionOptions options;
    options.client.address = folder_.Socket();
    options.join.set_node("ams-1");
    options.join.set_role(v1::ROLE_NODE);
    options.join.set_secret("0123456789abcdef");
    options.listener = &recorder_;
    recorder_.on_opened = [this](uint64_t round) {
      if (contributes_) Contribute(round);
    };
    recorder_.on_update = [this](const CommittedUpdate& update) {
      std::lock_guard<std::mutex> lock(session_mutex_);
      session_->Acknowledge(update.record.round(), update.record.sha256());
    };
    // The listener needs session_, which Start has not returned yet when it calls.
    std::lock_guard<std::mutex> lock(session_mutex_);
    auto session = Session::Start(options);
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
  }
  void Contribute(uint64_t round) {
    Submission submission;
    submission.round = round;
    submission.base_round = round - 1;
    submission.attempt = recorder_.attempt;
    submission.pieces = {"part a of " + std::to_string(round) + ", ", "part b"};
    submission.digest = "digest";
    std::lock_guard<std::mutex> lock(session_mutex_);
    session_->Submit(std::make_shared<const Submission>(submission),
                     [this](const absl::Status& status) {
                       recorder_.Note("refused", [&] { refused_with_ = status; });
                     });
  }
  // Waits for something the coordinator saw.
  bool Until(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void ExpectWholeRun() {
    EXPECT_TRUE(recorder_.Saw("finished 3"));
    EXPECT_THAT(recorder_.events(), ElementsAre("open 1", "update 1 part a of 1, part b", "open 2",
                                                "update 2 part a of 2, part b", "open 3",
                                                "update 3 part a of 3, part b", "finished 3"));
  }

  TestFolder folder_;
  std::unique_ptr<FakeCoordinator> coordinator_;
  std::unique_ptr<GrpcServer> server_;
  Recorder recorder_;
  bool contributes_ = true;
  absl::Status refused_with_;
  std::mutex session_mutex_;
  std::unique_ptr<Session> session_;  // first to go
};

TEST_F(SessionTest, AWholeRun) {
  StartCoordinator({});
  StartSession();
  ExpectWholeRun();
  const SessionCounters counters = session_->counters();
  EXPECT_EQ(counters.connects, 1u);
  EXPECT_EQ(counters.resends, 0u);
  EXPECT_EQ(counters.bytes_up, 3 * std::string("part a of 1, part b").size());
  EXPECT_EQ(counters.bytes_down, counters.bytes_up);
  session_->Leave("finished");
  ASSERT_EQ(coordinator_->leaves().size(), 1u);
  EXPECT_EQ(coordinator_->leaves()[0].reason(), "finished");
  EXPECT_EQ(coordinator_->joins().size(), 1u);
  EXPECT_EQ(recorder_.events().back(), "finished 3");
}

TEST_F(SessionTest, WaitsForAServerAndSaysSo) {
  coordinator_ = std::make_unique<FakeCoordinator>(FakeCoordinator::Options());
  StartSession();
  EXPECT_TRUE(recorder_.SawSentence(folder_.Socket()));
  StartGrpc();
  ExpectWholeRun();
}

TEST_F(SessionTest, AServerRestartLosesAndRepeatsNothing) {
  FakeCoordinator::Options options;
  options.commits = false;
  StartCoordinator(options);
  StartSession();
  ASSERT_TRUE(Until([&] { return coordinator_->held() == 1; }));
  server_->Shutdown(1000);
  coordinator_->Forget();
  StartGrpc();
  // The new server does not have the contribution: it comes again, under the same attempt.
  ASSERT_TRUE(Until([&] { return coordinator_->held() == 1; }));
  EXPECT_EQ(coordinator_->headers().back().attempt(), coordinator_->headers()[0].attempt());
  EXPECT_GT(coordinator_->headers().back().incarnation(), coordinator_->headers()[0].incarnation());
  coordinator_->Commit();
  ExpectWholeRun();
  EXPECT_EQ(session_->counters().connects, 2u);
  EXPECT_EQ(session_->counters().resends, 1u);
  EXPECT_EQ(coordinator_->joins().back().attempt(), recorder_.attempt);
}

TEST_F(SessionTest, WhatTheServerStillHoldsIsNotSentAgain) {
  FakeCoordinator::Options options;
  options.commits = false;
  StartCoordinator(options);
  StartSession();
  ASSERT_TRUE(Until([&] { return coordinator_->held() == 1; }));
  coordinator_->EndWatch(absl::ResourceExhaustedError("fell behind"));
  ASSERT_TRUE(Until([&] { return session_->counters().connects == 2; }));
  coordinator_->Commit();
  ExpectWholeRun();
  EXPECT_EQ(session_->counters().resends, 0u);
}

TEST_F(SessionTest, UpdatesMissedWhileAwayComeInOrder) {
  FakeCoordinator::Options options;
  options.commits = false;
  StartCoordinator(options);
  StartSession();
  ASSERT_TRUE(Until([&] { return coordinator_->held() == 1; }));
  server_->Shutdown(1000);
  coordinator_->Commit();
  StartGrpc();
  ExpectWholeRun();
}

TEST_F(SessionTest, AForgottenIncarnationJoinsAgain) {
  FakeCoordinator::Options options;
  options.commits = false;
  StartCoordinator(options);
  StartSession();
  ASSERT_TRUE(Until([&] { return coordinator_->held() == 1; }));
  coordinator_->Forget();  // the watch stays open; the heartbeat finds out
  ASSERT_TRUE(Until([&] { return coordinator_->joins().size() == 2; }));
  ASSERT_TRUE(Until([&] { return coordinator_->held() == 1; }));
  coordinator_->Commit();
  ExpectWholeRun();
}

TEST_F(SessionTest, HeartbeatsCarryWhatBothWaitFor) {
  contributes_ = false;
  StartCoordinator({});
  StartSession();
  session_->SetWaitingFor("rank 1 of 2");
  EXPECT_TRUE(recorder_.SawSentence("waiting for fra-2"));
  EXPECT_TRUE(Until([&] {
    const auto beats = coordinator_->beats();
    return !beats.empty() && beats.back().waiting_for() == "rank 1 of 2";
  }));
}

TEST_F(SessionTest, ARefusedSubmissionIsToldOnceAndTheRoundAwaited) {
  FakeCoordinator::Options options;
  options.commits = false;
  StartCoordinator(options);
  coordinator_->RefuseSubmit(absl::InvalidArgumentError("piece 0: not finite"));
  StartSession();
  ASSERT_TRUE(recorder_.Saw("refused"));
  EXPECT_EQ(refused_with_, absl::InvalidArgumentError("piece 0: not finite"));
  coordinator_->EndWatch(absl::AbortedError("a newer watch"));
  ASSERT_TRUE(Until([&] { return session_->counters().connects == 2; }));
  // A server that was joined anew has no answer yet, so it is sent there once more; and again when
  // it says that the round is open, if it has refused by then.
  ASSERT_TRUE(Until([&] { return coordinator_->headers().size() >= 2; }));
  EXPECT_THAT(recorder_.events(), ElementsAre("open 1", "refused"));
}

TEST_F(SessionTest, ABusyServerIsAskedAgain) {
  StartCoordinator({});
  coordinator_->RefuseSubmit(WithRetryAfterMs(absl::ResourceExhaustedError("memory is full"), 5));
  StartSession();
  EXPECT_TRUE(recorder_.SawSentence("memory is full"));
  ASSERT_TRUE(Until([&] { return coordinator_->headers().size() >= 2; }));
  coordinator_->RefuseSubmit(absl::OkStatus());
  ExpectWholeRun();
}

TEST_F(SessionTest, RefusalsOfAJoinEndTheSession) {
  for (const absl::Status& refusal :
       {absl::NotFoundError("no such node"), absl::FailedPreconditionError("another model"),
        absl::DataLossError("ahead of the coordinator"), absl::InvalidArgumentError("secret")}) {
    Recorder recorder;
    StartCoordinator({});
    coordinator_->RefuseJoin(refusal);
    SessionOptions options;
    options.client.address = folder_.Socket();
    options.join.set_role(v1::ROLE_RANK);
    options.listener = &recorder;
    const auto session = Session::Start(options);
    ASSERT_TRUE(session.ok());
    ASSERT_TRUE(recorder.Saw("ended"));
    EXPECT_EQ(recorder.ended_with, refusal);
    EXPECT_EQ(coordinator_->joins().size(), 1u);
    server_.reset();
  }
}

TEST_F(SessionTest, AnotherOwnerIsWaitedForAsLongAsItsLeaseMayLast) {
  StartCoordinator({});
  const absl::Status refusal =
      WithRetryAfterMs(WithReason(absl::AlreadyExistsError("ams-1 lives"), kReasonNodeAlive), 50);
  coordinator_->RefuseJoin(refusal);
  StartSession();
  ASSERT_TRUE(recorder_.Saw("ended"));
  EXPECT_EQ(recorder_.ended_with, refusal);
  EXPECT_GE(coordinator_->joins().size(), 2u);
}

TEST_F(SessionTest, AnOwnerThatIsDeadIsOutlived) {
  StartCoordinator({});
  const auto alive_for = [](int64_t ms) {
    return WithRetryAfterMs(WithReason(absl::AlreadyExistsError("ams-1 lives"), kReasonNodeAlive),
                            ms);
  };
  coordinator_->RefuseJoin(alive_for(2000));
  StartSession();
  ASSERT_TRUE(Until([&] { return coordinator_->joins().size() == 1; }));
  // Asked again, little of its lease is left: that is no sign that it lives.
  coordinator_->RefuseJoin(alive_for(10));
  ASSERT_TRUE(Until([&] { return coordinator_->joins().size() >= 4; }));
  coordinator_->RefuseJoin(absl::OkStatus());
  ExpectWholeRun();
}

TEST_F(SessionTest, AWatchThatIsRefusedForGoodEndsTheSession) {
  contributes_ = false;
  StartCoordinator({});
  StartSession();
  ASSERT_TRUE(recorder_.Saw("open 1"));
  coordinator_->EndWatch(absl::OutOfRangeError("round 1 is no longer kept"));
  ASSERT_TRUE(recorder_.Saw("ended"));
  EXPECT_EQ(recorder_.ended_with, absl::OutOfRangeError("round 1 is no longer kept"));
}

TEST_F(SessionTest, StopsWhileItWaitsAndWhileItWatches) {
  contributes_ = false;
  coordinator_ = std::make_unique<FakeCoordinator>(FakeCoordinator::Options());
  StartSession();
  EXPECT_TRUE(recorder_.SawSentence(folder_.Socket()));
  session_.reset();
  StartGrpc();
  StartSession();
  ASSERT_TRUE(recorder_.Saw("open 1"));
  session_.reset();
  EXPECT_THAT(recorder_.events(), ElementsAre("open 1"));
}

TEST(SessionStartTest, AnAddressThatDoesNotParse) {
  Recorder recorder;
  SessionOptions options;
  options.client.address = "::1:7070";
  options.listener = &recorder;
  EXPECT_EQ(Session::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace isthmus
