// Every method over real connections: what arrives, what is refused, and that a refusal says why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/transport/fake_host.h"
#include "tests/transport/loopback.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GrpcServerOptions options;
    options.host = &host_;
    options.addresses = {"127.0.0.1:0", folder_.Socket()};
    auto server = GrpcServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_ = Connect(server_->addresses()[0]);
  }

  absl::StatusOr<v1::SubmitResponse> Submit(const std::vector<std::string>& pieces) {
    v1::SubmitHeader header;
    header.set_round(3);
    v1::SubmitEnd end;
    end.set_digest("digest");
    std::vector<const std::string*> pointers;
    for (const std::string& piece : pieces) pointers.push_back(&piece);
    return client_->Submit(header, pointers, end);
  }

  TestFolder folder_;
  FakeHost host_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<Client> client_;
};

std::string RandomBytes(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// `bytes` in pieces of at most kPieceBytesMax.
std::vector<std::string> Cut(const std::string& bytes) {
  std::vector<std::string> pieces;
  for (size_t begin = 0; begin < bytes.size(); begin += kPieceBytesMax) {
    pieces.push_back(bytes.substr(begin, kPieceBytesMax));
  }
  return pieces;
}

std::string Joined(const std::vector<std::string>& pieces) {
  std::string bytes;
  for (const std::string& piece : pieces) bytes += piece;
  return bytes;
}

WatchEvent PieceEvent(const std::string& data) {
  auto event = std::make_shared<v1::WatchUpdatesResponse>();
  event->mutable_piece()->set_data(data);
  return event;
}

TEST_F(ServiceTest, UnaryCallsOverBothKindsOfAddress) {
  for (const std::string& address : server_->addresses()) {
    SCOPED_TRACE(address);
    const auto client = Connect(address);
    v1::JoinRunRequest join;
    join.set_node("ams-1");
    const auto joined = client->JoinRun(join);
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_EQ(joined->node(), "ams-1");
    v1::HeartbeatRequest beat;
    beat.set_node("ams-1");
    const auto answer = client->Heartbeat(beat);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->waiting_for(), "waiting for ams-1");
    v1::LeaveRunRequest leave;
    leave.set_reason("done");
    EXPECT_TRUE(client->LeaveRun(leave).ok());
  }
  EXPECT_EQ(host_.left().size(), 2u);
}

TEST_F(ServiceTest, ReasonAndRetryDelayTravel) {
  host_.join_status = WithRetryAfterMs(
      WithReason(absl::UnavailableError("waiting for rank 1 of 2"), "RANKS_MISSING"), 1250);
  const auto joined = client_->JoinRun(v1::JoinRunRequest());
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(joined.status().message(), "waiting for rank 1 of 2");
  EXPECT_EQ(ReasonOf(joined.status()), "RANKS_MISSING");
  EXPECT_EQ(RetryAfterMsOf(joined.status()), 1250);
}

TEST_F(ServiceTest, EveryCodeTravelsUnchanged) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status sent(static_cast<absl::StatusCode>(code), "why");
    host_.join_status = WithReason(sent, "A_REASON");
    const absl::Status received = client_->JoinRun(v1::JoinRunRequest()).status();
    EXPECT_EQ(received.code(), sent.code());
    EXPECT_EQ(received.message(), "why");
  }
}

TEST_F(ServiceTest, ALongErrorTextIsCutAndArrives) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "ü";  // worst case: percent-encoded threefold
  host_.join_status = WithReason(absl::NotFoundError(text), "A_REASON");
  const absl::Status received = client_->JoinRun(v1::JoinRunRequest()).status();
  EXPECT_EQ(received.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(received), "A_REASON");
  EXPECT_LE(received.message().size(), kStatusMessageBytesMax);
  EXPECT_THAT(std::string(received.message()), testing::EndsWith("ü..."));
}

TEST_F(ServiceTest, AnOversizedRequestIsRefusedWithBothSizes) {
  v1::JoinRunRequest join;
  join.set_node(std::string(kMessageBytesMax + 1, 'x'));
  const absl::Status status = client_->JoinRun(join).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(kMessageBytesMax)));
}

// Case C1: more than gRPC's default limit of 4 MB, up and down, with default settings.
TEST_F(ServiceTest, CaseC1LargePayloadUpAndDown) {
  const std::string bytes = RandomBytes(8600000, 1);
  const auto receipt = Submit(Cut(bytes));
  ASSERT_TRUE(receipt.ok()) << receipt.status();
  EXPECT_TRUE(receipt->complete());
  EXPECT_EQ(receipt->digest(), "digest");
  EXPECT_TRUE(Joined(host_.pieces()) == bytes);
  EXPECT_EQ(host_.headers()[0].payload_bytes(), bytes.size());

  std::string received;
  std::thread pusher([&] {
    ASSERT_TRUE(host_.WaitFor([&] { return host_.queues().size() == 1; }));
    for (const std::string& piece : Cut(bytes)) host_.queues()[0]->Push(PieceEvent(piece));
    host_.queues()[0]->Close(absl::AbortedError("a newer watch"));
  });
  const absl::Status ended = client_->Watch(v1::WatchUpdatesRequest(), [&](auto& event) {
    received += event.piece().data();
    return absl::OkStatus();
  });
  pusher.join();
  EXPECT_EQ(ended, absl::AbortedError("a newer watch"));
  EXPECT_TRUE(received == bytes);
}

// Case C2: the last piece holds one byte.
TEST_F(ServiceTest, CaseC2FivePiecesAndOneByte) {
  const std::string bytes = RandomBytes(5 * kPieceBytesMax + 1, 2);
  ASSERT_TRUE(Submit(Cut(bytes)).ok());
  ASSERT_EQ(host_.pieces().size(), 6u);
  EXPECT_TRUE(Joined(host_.pieces()) == bytes);
}

TEST_F(ServiceTest, ARefusedHeaderCostsNoPayload) {
  host_.header_status =
      WithReason(absl::FailedPreconditionError("round 3 is not open"), "ROUND_NOT_OPEN");
  const auto receipt = Submit(Cut(RandomBytes(64 * kPieceBytesMax, 3)));
  EXPECT_EQ(receipt.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(receipt.status()), "ROUND_NOT_OPEN");
  EXPECT_TRUE(host_.pieces().empty());
}

TEST_F(ServiceTest, ARefusedPieceEndsTheCallAndItsSink) {
  host_.on_piece = [](const std::string& piece) {
    return piece == "bad" ? absl::InvalidArgumentError("piece 1 is damaged") : absl::OkStatus();
  };
  const auto receipt = Submit({"good", "bad", "unseen"});
  EXPECT_EQ(receipt.status(), absl::InvalidArgumentError("piece 1 is damaged"));
  EXPECT_EQ(host_.pieces(), std::vector<std::string>{"good"});
  EXPECT_TRUE(host_.WaitFor([&] { return host_.sinks_destroyed() == 1; }));
}

TEST_F(ServiceTest, AnOversizedPieceIsRefusedBeforeItIsSent) {
  const auto receipt = Submit({std::string(kPieceBytesMax + 1, 'x')});
  EXPECT_EQ(receipt.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(receipt.status().message()), HasSubstr("1048577"));
  EXPECT_TRUE(host_.headers().empty());
}

TEST_F(ServiceTest, WatchDeliversInOrderAndEndsOnce) {
  constexpr int kEvents = 2000;
  std::thread pusher([&] {
    ASSERT_TRUE(host_.WaitFor([&] { return host_.queues().size() == 1; }));
    for (int i = 0; i < kEvents; ++i) {
      auto event = std::make_shared<v1::WatchUpdatesResponse>();
      event->mutable_opened()->set_round(i);
      host_.queues()[0]->Push(event);
    }
  });
  int next = 0;
  const absl::Status ended = client_->Watch(v1::WatchUpdatesRequest(), [&](auto& event) {
    EXPECT_EQ(event.opened().round(), static_cast<uint64_t>(next));
    return ++next == kEvents ? absl::OutOfRangeError("enough") : absl::OkStatus();
  });
  pusher.join();
  EXPECT_EQ(ended, absl::OutOfRangeError("enough"));
  EXPECT_TRUE(host_.WaitFor([&] { return host_.ended().size() == 1; }));
  server_->Shutdown(1000);
  EXPECT_EQ(host_.ended().size(), 1u);
}

TEST_F(ServiceTest, ARefusedWatchSaysWhyAndNeverEnds) {
  host_.watch_status = absl::OutOfRangeError("round 2 is no longer kept");
  const absl::Status ended =
      client_->Watch(v1::WatchUpdatesRequest(), [](auto&) { return absl::OkStatus(); });
  EXPECT_EQ(ended, absl::OutOfRangeError("round 2 is no longer kept"));
  server_->Shutdown(1000);
  EXPECT_TRUE(host_.ended().empty());
}

TEST_F(ServiceTest, AWatcherThatFallsBehindIsDropped) {
  host_.watch_events_max = 4;
  std::thread pusher([&] {
    ASSERT_TRUE(host_.WaitFor([&] { return host_.queues().size() == 1; }));
    const WatchEvent event = PieceEvent(std::string(kPieceBytesMax, 'x'));
    // More than the flow-control window and the queue hold, whatever the reader's pace.
    for (int i = 0; i < 1000; ++i) host_.queues()[0]->Push(event);
  });
  const absl::Status ended = client_->Watch(v1::WatchUpdatesRequest(), [&](auto&) {
    pusher.joinable() ? pusher.join() : void();  // reads nothing until all was pushed
    return absl::OkStatus();
  });
  if (pusher.joinable()) pusher.join();
  EXPECT_EQ(ended.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(ended.message()), HasSubstr("fell behind"));
}

TEST_F(ServiceTest, CancelEndsCallsUnderWayAndLaterOnes) {
  std::thread canceller([&] {
    ASSERT_TRUE(host_.WaitFor([&] { return host_.queues().size() == 1; }));
    client_->Cancel();
  });
  const absl::Status ended =
      client_->Watch(v1::WatchUpdatesRequest(), [](auto&) { return absl::OkStatus(); });
  canceller.join();
  EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(client_->Heartbeat(v1::HeartbeatRequest()).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(Submit({"x"}).status().code(), absl::StatusCode::kCancelled);
}

TEST(ClientTest, ADeadAddressIsUnavailableAndNamed) {
  const auto client = Connect("127.0.0.1:1");
  const absl::Status status = client->JoinRun(v1::JoinRunRequest()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1"));
}

TEST(ClientTest, ASubmissionThatStallsIsGivenUp) {
  FakeHost host;
  const TestFolder folder;
  const auto server = StartServer(&host, folder.Socket());
  ASSERT_TRUE(server.ok()) << server.status();
  std::mutex mutex;
  mutex.lock();
  host.on_piece = [&](const std::string&) {
    const std::lock_guard<std::mutex> wait_here(mutex);
    return absl::OkStatus();
  };
  ClientOptions options;
  options.address = folder.Socket();
  options.submit_stall_timeout_ms = 200;
  const auto client = *Client::Make(options);
  v1::SubmitHeader header;
  header.set_round(9);
  const std::string piece = "piece";
  const absl::Status status = client->Submit(header, {&piece}, v1::SubmitEnd()).status();
  mutex.unlock();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("round 9"));
}

TEST(ClientTest, AWatchThatDoesNotStartIsGivenUp) {
  FakeHost host;
  const TestFolder folder;
  const auto server = StartServer(&host, folder.Socket());
  ASSERT_TRUE(server.ok()) << server.status();
  ClientOptions options;
  options.address = folder.Socket();
  options.call_timeout_ms = 200;
  const auto client = *Client::Make(options);
  const absl::Status ended =
      client->Watch(v1::WatchUpdatesRequest(), [](auto&) { return absl::OkStatus(); });
  EXPECT_EQ(ended.code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace isthmus
