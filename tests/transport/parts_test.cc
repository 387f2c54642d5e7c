// The parts without a connection: addresses, errors, back-off, queues.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <random>

#include "transport/addresses.h"
#include "transport/backoff.h"
#include "transport/errors.h"
#include "transport/grpc_status.h"
#include "transport/watch_queue.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

std::string WhyNot(const std::string& text) {
  const auto address = ParseAddress(text);
  EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(address.status().message());
}

TEST(AddressTest, FormsThatAreRead) {
  EXPECT_EQ(ParseAddress("10.0.0.1:7070")->host, "10.0.0.1");
  EXPECT_EQ(ParseAddress("10.0.0.1:7070")->port, 7070);
  EXPECT_EQ(ParseAddress("[::1]:7070")->host, "::1");
  EXPECT_EQ(ParseAddress("coordinator.example:0")->port, 0);
  EXPECT_EQ(ParseAddress("unix:/run/isthmus/s")->unix_path, "/run/isthmus/s");
  for (const char* text : {"10.0.0.1:7070", "[fe80::1]:1", "a-b.example:65535", "unix:x/y"}) {
    EXPECT_EQ(AddressText(*ParseAddress(text)), text);
  }
}

TEST(AddressTest, FormsThatAreRefusedWithASentence) {
  EXPECT_THAT(WhyNot("::1:7070"), HasSubstr("brackets"));
  EXPECT_THAT(WhyNot("[::1]"), HasSubstr("brackets"));
  EXPECT_THAT(WhyNot("[localhost]:1"), HasSubstr("no IPv6 address"));
  EXPECT_THAT(WhyNot("localhost"), HasSubstr("no port"));
  EXPECT_THAT(WhyNot(":7070"), HasSubstr("no host"));
  EXPECT_THAT(WhyNot("a:65536"), HasSubstr("65535"));
  EXPECT_THAT(WhyNot("a:-1"), HasSubstr("'-1'"));
  EXPECT_THAT(WhyNot("a:+1"), HasSubstr("'+1'"));
  EXPECT_THAT(WhyNot("a:"), HasSubstr("port"));
  EXPECT_THAT(WhyNot("http://a:80"), HasSubstr("IPv6"));
  EXPECT_THAT(WhyNot("unix:"), HasSubstr("no path"));
  EXPECT_THAT(WhyNot("unix:" + std::string(108, 'x')), HasSubstr("108"));
  EXPECT_THAT(WhyNot("unix:a b"), HasSubstr("blank"));
  EXPECT_TRUE(ParseAddress("unix:" + std::string(107, 'x')).ok());
}

TEST(AddressTest, WhatIsLocal) {
  for (const char* text : {"127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "unix:x"}) {
    EXPECT_TRUE(IsLocal(*ParseAddress(text))) << text;
  }
  for (const char* text : {"0.0.0.0:1", "128.0.0.1:1", "[::]:1", "example.org:1"}) {
    EXPECT_FALSE(IsLocal(*ParseAddress(text))) << text;
  }
}

TEST(ErrorsTest, ReasonAndRetryRoundTrip) {
  const absl::Status plain = absl::AbortedError("round 4 closed");
  EXPECT_EQ(ReasonOf(plain), "");
  EXPECT_EQ(RetryAfterMsOf(plain), -1);
  const absl::Status status = WithRetryAfterMs(WithReason(plain, "ROUND_CLOSED"), 2001);
  const absl::Status back = FromGrpcStatus(ToGrpcStatus(status));
  EXPECT_EQ(back, status);
  EXPECT_EQ(ReasonOf(back), "ROUND_CLOSED");
  EXPECT_EQ(RetryAfterMsOf(back), 2001);
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(ErrorsTest, WhatAStrangerSendsIsStillAStatus) {
  const absl::Status garbage =
      FromGrpcStatus(grpc::Status(grpc::StatusCode::NOT_FOUND, "text", std::string(64, '\xff')));
  EXPECT_EQ(garbage, absl::NotFoundError("text"));
  EXPECT_THAT(std::string(FromGrpcStatus(grpc::Status(grpc::StatusCode::INTERNAL, "")).message()),
              HasSubstr("did not decode"));
  // 30 is no code, but a value that the enum can hold.
  EXPECT_EQ(FromGrpcStatus(grpc::Status(static_cast<grpc::StatusCode>(30), "odd")).code(),
            absl::StatusCode::kUnknown);
}

TEST(ErrorsTest, Retryable) {
  EXPECT_TRUE(IsRetryable(absl::UnavailableError("")));
  EXPECT_TRUE(IsRetryable(absl::DeadlineExceededError("")));
  EXPECT_TRUE(IsRetryable(absl::ResourceExhaustedError("")));
  EXPECT_TRUE(IsRetryable(absl::AbortedError("")));
  EXPECT_FALSE(IsRetryable(absl::OkStatus()));
  EXPECT_FALSE(IsRetryable(absl::DataLossError("")));
  EXPECT_FALSE(IsRetryable(absl::InternalError("")));
}

TEST(BackoffTest, DelaysStayWithinTheirBounds) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  Backoff backoff(seed, 100, 5000);
  for (int turn = 0; turn < 3; ++turn) {
    int64_t whole = 100;
    for (int i = 0; i < 50; ++i) {
      const int64_t delay = backoff.NextDelayMs();
      EXPECT_GE(delay, whole / 2);
      EXPECT_LE(delay, whole);
      whole = std::min<int64_t>(2 * whole, 5000);
    }
    backoff.Reset();
  }
  for (int i = 0; i < 50; ++i) EXPECT_GE(backoff.NextDelayMs(7000), 7000);
}

TEST(BackoffTest, ManyCallersAreSpread) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  Backoff backoff(seed, 100, 5000);
  int64_t least = 10000, most = 0;
  for (int i = 0; i < 200; ++i) {
    backoff.Reset();
    const int64_t delay = backoff.NextDelayMs(1000, 2000);
    least = std::min(least, delay);
    most = std::max(most, delay);
  }
  EXPECT_GE(least, 1000);
  EXPECT_LT(least, 1400);
  EXPECT_GT(most, 2600);
  EXPECT_LE(most, 3100);
  // No delay becomes longer than the longest.
  for (int i = 0; i < 200; ++i) {
    if (i % 10 == 0) backoff.Reset();
    EXPECT_LE(backoff.NextDelayMs(0, 2500), 5000);
  }
}

TEST(BackoffTest, TwoCallersDoNotKeepStep) {
  Backoff one(1);
  Backoff two(2);
  int equal = 0;
  for (int i = 0; i < 50; ++i) equal += one.NextDelayMs() == two.NextDelayMs();
  EXPECT_LT(equal, 10);
}

WatchEvent Opened(uint64_t round) {
  auto event = std::make_shared<v1::WatchUpdatesResponse>();
  event->mutable_opened()->set_round(round);
  return event;
}

TEST(WatchQueueTest, EventsThenTheEnd) {
  WatchQueue queue(10);
  int ready = 0;
  queue.OnReady([&] { ++ready; });
  EXPECT_EQ(queue.Take().event, nullptr);
  queue.Push(Opened(1));
  EXPECT_EQ(ready, 1);
  queue.Close(absl::AbortedError("newer"));
  queue.Push(Opened(2));
  queue.Close(absl::InternalError("later"));
  EXPECT_EQ(queue.Take().event->opened().round(), 1u);
  for (int i = 0; i < 2; ++i) {
    const WatchQueue::Taken taken = queue.Take();
    EXPECT_TRUE(taken.closed);
    EXPECT_EQ(taken.status, absl::AbortedError("newer"));
  }
}

TEST(WatchQueueTest, OverflowDropsWhatWaitsAndSaysSo) {
  WatchQueue queue(2);
  for (int i = 0; i < 3; ++i) queue.Push(Opened(i));
  const WatchQueue::Taken taken = queue.Take();
  EXPECT_EQ(taken.event, nullptr);
  EXPECT_TRUE(taken.closed);
  EXPECT_EQ(taken.status.code(), absl::StatusCode::kResourceExhausted);
}

WatchEvent UpdateEvent(uint64_t round) {
  auto event = std::make_shared<v1::WatchUpdatesResponse>();
  event->mutable_update()->set_round(round);
  return event;
}

WatchEvent PieceEvent(size_t bytes) {
  auto event = std::make_shared<v1::WatchUpdatesResponse>();
  event->mutable_piece()->set_data(std::string(bytes, 'p'));
  return event;
}

// An update of any size is taken while less than the limit waits. The next one is not: what waits
// is sent, and then the watcher is told.
TEST(WatchQueueTest, ALaggingReaderGetsWhatWaitsAndIsTold) {
  WatchQueue queue(100, 1000);
  for (const uint64_t round : {1, 2}) {
    queue.Push(UpdateEvent(round));
    queue.Push(PieceEvent(600));
  }
  EXPECT_FALSE(queue.fell_behind());
  queue.Push(UpdateEvent(3));
  queue.Push(PieceEvent(600));
  EXPECT_TRUE(queue.fell_behind());
  for (const uint64_t round : {1, 2}) {
    EXPECT_EQ(queue.Take().event->update().round(), round);
    EXPECT_EQ(queue.Take().event->piece().data().size(), 600u);
  }
  const WatchQueue::Taken taken = queue.Take();
  EXPECT_TRUE(taken.closed);
  EXPECT_EQ(taken.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(taken.status), "WATCHER_BEHIND");
  EXPECT_THAT(std::string(taken.status.message()), HasSubstr("1200 bytes"));
  EXPECT_THAT(std::string(taken.status.message()), HasSubstr("1000 is the limit"));
}

TEST(WatchQueueTest, AReaderThatTakesIsNeverBehind) {
  WatchQueue queue(100, 1000);
  for (uint64_t round = 1; round <= 50; ++round) {
    queue.Push(UpdateEvent(round));
    queue.Push(PieceEvent(5000));
    EXPECT_EQ(queue.Take().event->update().round(), round);
    EXPECT_EQ(queue.Take().event->piece().data().size(), 5000u);
  }
  EXPECT_FALSE(queue.fell_behind());
}

TEST(WatchQueueTest, ThePastIsReadWhenItsTurnComes) {
  WatchQueue queue(100, 1000);
  uint64_t read = 0;
  queue.Push(Opened(1));
  queue.PushPast([&]() -> absl::StatusOr<std::vector<WatchEvent>> {
    std::vector<WatchEvent> events;
    if (read < 3) events = {UpdateEvent(++read), PieceEvent(5000)};
    return events;
  });
  queue.Push(Opened(9));
  EXPECT_EQ(queue.Take().event->opened().round(), 1u);
  EXPECT_EQ(read, 0u);
  for (uint64_t round = 1; round <= 3; ++round) {
    EXPECT_EQ(queue.Take().event->update().round(), round);
    EXPECT_EQ(read, round);
    EXPECT_TRUE(queue.Take().event->has_piece());
  }
  EXPECT_EQ(queue.Take().event->opened().round(), 9u);
  EXPECT_EQ(queue.Take().event, nullptr);
}

TEST(WatchQueueTest, AnErrorOfThePastEndsTheWatch) {
  WatchQueue queue(100, 1000);
  queue.PushPast(
      []() -> absl::StatusOr<std::vector<WatchEvent>> { return absl::DataLossError("damaged"); });
  queue.Push(Opened(9));
  const WatchQueue::Taken taken = queue.Take();
  EXPECT_TRUE(taken.closed);
  EXPECT_EQ(taken.status, absl::DataLossError("damaged"));
  EXPECT_TRUE(queue.Take().closed);
}

}  // namespace
}  // namespace isthmus
