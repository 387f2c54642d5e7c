// What nodes may do wrong, and what the network may do to their calls, against the coordinator's
// real process: R15, R24, R25, R29, R30 and the cases C5 and C7. Each prints what it measured as
//   measured NAME key=value ...
// which ./dev bench faults compares with its bar.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "base/limits.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "isthmus/v1/coordinator.grpc.pb.h"
#include "isthmus/v1/monitor.grpc.pb.h"
#include "tests/server/fakes.h"
#include "tests/server/served.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

int CountOf(const std::string& text, const std::string& word) {
  int count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address) {
  return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
}

// The last refusal of a node, as operators see it.
std::string LastRefusal(const std::string& address, const std::string& node) {
  const auto stub = v1::MonitorService::NewStub(ChannelTo(address));
  grpc::ClientContext context;
  v1::ListNodesResponse response;
  EXPECT_TRUE(stub->ListNodes(&context, {}, &response).ok());
  for (const v1::Node& one : response.nodes()) {
    if (one.name() == node) return one.last_refusal().reason();
  }
  return "";
}

// A whole call whose pieces are sent as they are given, however often each.
absl::StatusOr<v1::SubmitResponse> RawSubmit(v1::CoordinatorService::Stub* stub,
                                             const v1::SubmitHeader& header,
                                             const std::vector<std::string>& pieces,
                                             const std::string& digest) {
  grpc::ClientContext context;
  v1::SubmitResponse response;
  const auto call = stub->Submit(&context, &response);
  v1::SubmitRequest request;
  *request.mutable_header() = header;
  call->Write(request);
  for (const std::string& piece : pieces) {
    request.mutable_piece()->set_data(piece);
    call->Write(request);
  }
  request.mutable_end()->set_digest(digest);
  call->WriteLast(request, grpc::WriteOptions());
  const grpc::Status status = call->Finish();
  if (status.ok()) return response;
  return absl::Status(static_cast<Code>(status.error_code()), status.error_message());
}

// R24: every call and every piece again, in any order, also of rounds that are closed.
TEST(ServedFaults, RepeatedCallsAndPiecesCountOnce) {
  constexpr uint64_t kRounds = 20;
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  Served served(TestSpec({"a", "b"}, 0, kRounds));
  RemoteHost host_a(served.address), host_b(served.address);
  FakeNode a(&host_a, "a"), b(&host_b, "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  const auto grid = TestGrid();
  const auto stub = v1::CoordinatorService::NewStub(ChannelTo(served.address));
  int calls = 0, pieces_again = 0, other_answers = 0, late_calls = 0, counted_twice = 0;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    const auto number = static_cast<uint32_t>(round);
    const auto pieces = RandomContribution(*grid, 100 + number);
    const std::string digest = DigestOf(*grid, pieces);
    std::string first_answer;
    for (int call = 0; call < 4; ++call) {
      std::vector<std::string> sent = pieces;
      // No more than a header may announce for these chunks.
      for (int more = 0; more < 2; ++more) sent.push_back(pieces[random() % pieces.size()]);
      std::shuffle(sent.begin(), sent.end(), random);
      pieces_again += static_cast<int>(sent.size() - pieces.size());
      const auto receipt = RawSubmit(stub.get(), b.Header(round, sent), sent, digest);
      ASSERT_TRUE(receipt.ok()) << receipt.status();
      if (call == 0) first_answer = receipt->SerializeAsString();
      other_answers += receipt->SerializeAsString() != first_answer ? 1 : 0;
      ++calls;
    }
    ASSERT_TRUE(a.SubmitRandom(round, 200 + number).ok());
    a.ExpectOpened(round);
    const ReceivedUpdate update = a.ExpectUpdate(round);
    counted_twice += update.record.included_size() != 2 ? 1 : 0;
    const auto dense = Dense(*grid, update.pieces);
    const auto expected = NaiveMerge(*grid, {RandomContribution(*grid, 200 + number), pieces});
    for (uint64_t chunk = 0; chunk < grid->chunks(); ++chunk) {
      ASSERT_TRUE(SameBits(dense[chunk], expected[chunk])) << grid->Describe(chunk);
    }
    // The whole call once more, when the round is closed.
    const auto late = b.Submit(b.Header(round, pieces), pieces, digest);
    EXPECT_EQ(late.status().code(), Code::kAborted) << late.status();
    EXPECT_EQ(ReasonOf(late.status()), "ROUND_CLOSED");
    ++late_calls;
  }
  EXPECT_EQ(other_answers, 0);
  EXPECT_EQ(counted_twice, 0);
  std::printf(
      "measured r24 rounds=%d calls=%d pieces_again=%d late_calls=%d other_answers=%d "
      "counted_twice=%d\n",
      static_cast<int>(kRounds), calls, pieces_again, late_calls, other_answers, counted_twice);
}

// R25: other bytes under a name that is taken.
TEST(ServedFaults, OtherBytesUnderOneNameAreRefusedAndTheFirstStand) {
  constexpr uint64_t kRounds = 10;
  Served served(TestSpec({"a", "b"}, 0, kRounds));
  RemoteHost host_a(served.address), host_b(served.address);
  FakeNode a(&host_a, "a"), b(&host_b, "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  const auto grid = TestGrid();
  int forgeries = 0, refused = 0, kept = 0;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    const auto number = static_cast<uint32_t>(round);
    const auto pieces = RandomContribution(*grid, 100 + number);
    const std::string digest = DigestOf(*grid, pieces);
    ASSERT_TRUE(b.Submit(b.Header(round, pieces), pieces, digest).ok());
    for (uint32_t other = 0; other < 3; ++other) {
      const auto forged = RandomContribution(*grid, 1000 * number + other);
      const auto answer = b.Submit(b.Header(round, forged), forged, DigestOf(*grid, forged));
      ++forgeries;
      refused += answer.status().code() == Code::kAlreadyExists ? 1 : 0;
      EXPECT_EQ(ReasonOf(answer.status()), "OTHER_BYTES") << answer.status();
    }
    EXPECT_THAT(LastRefusal(served.address, "b"), HasSubstr("sent other bytes before"));
    ASSERT_TRUE(a.SubmitRandom(round, 200 + number).ok());
    a.ExpectOpened(round);
    const ReceivedUpdate update = a.ExpectUpdate(round);
    ASSERT_EQ(update.record.included_size(), 2);
    kept += update.record.included(1).digest() == digest ? 1 : 0;
  }
  const int told = CountOf(served.Log(), "contribution refused");
  EXPECT_EQ(refused, forgeries);
  EXPECT_EQ(told, forgeries);
  EXPECT_EQ(kept, static_cast<int>(kRounds));
  std::printf("measured r25 forgeries=%d already_exists=%d log_lines=%d originals_kept=%d of=%d\n",
              forgeries, refused, told, kept, static_cast<int>(kRounds));
}

// R12: what comes after the lease has ended is refused, and says what to do; the node comes back.
TEST(ServedFaults, ALateContributionIsRefusedAndItsNodeComesBack) {
  v1::RunSpec spec = TestSpec({"a", "b"});
  spec.mutable_timing()->set_lease_ms(600);
  spec.mutable_timing()->set_heartbeat_ms(100);
  Served served(spec);
  RemoteHost host_a(served.address), host_b(served.address);
  FakeNode a(&host_a, "a"), b(&host_b, "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  ASSERT_TRUE(a.SubmitRandom(1, 1).ok());
  const int64_t begin_ms = NowMs();
  std::string waiting_for;
  while (waiting_for.find("b (lease ended)") == std::string::npos) {
    const auto beat = a.Beat();
    ASSERT_TRUE(beat.ok()) << beat.status();
    waiting_for = beat->waiting_for();
    ASSERT_LT(NowMs() - begin_ms, kWaitMsMax) << waiting_for;
    poll(nullptr, 0, 20);
  }
  const auto late = b.SubmitRandom(1, 2);
  EXPECT_EQ(late.status().code(), Code::kFailedPrecondition) << late.status();
  EXPECT_EQ(ReasonOf(late.status()), kReasonNotJoined);
  EXPECT_THAT(std::string(late.status().message()), HasSubstr("join again"));
  b.JoinAndWatch();
  b.ExpectOpened(1);
  ASSERT_TRUE(b.SubmitRandom(1, 2).ok());
  const int included = b.ExpectUpdate(1).record.included_size();
  EXPECT_EQ(included, 2);
  std::printf("measured r12 late_refused=%d included_after=%d\n",
              absl::IsFailedPrecondition(late.status()) ? 1 : 0, included);
}

// `value` in place of the last one of a piece.
std::string WithLastValue(std::string piece, float value) {
  SetLastValue(value, &piece);
  return piece;
}

// R29: values that are no numbers are refused, the node is flagged, and the round goes on.
// Denormal ones are numbers, and every bit of them counts.
TEST(ServedFaults, ValuesThatAreNoNumbersAreRefusedDenormalOnesAreMerged) {
  const float bad[] = {
      std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
      std::numeric_limits<float>::signaling_NaN(), std::numeric_limits<float>::infinity(),
      -std::numeric_limits<float>::infinity()};
  const float denormal[] = {std::numeric_limits<float>::denorm_min(),
                            -std::numeric_limits<float>::denorm_min(), 1e-40f};
  Served served(TestSpec({"a", "b"}, 0, 20));
  RemoteHost host_a(served.address), host_b(served.address);
  FakeNode a(&host_a, "a"), b(&host_b, "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  const auto grid = TestGrid();
  uint64_t round = 0;
  int refused = 0, flagged = 0, unharmed = 0, exact = 0;
  for (const float value : bad) {
    ++round;
    auto pieces = RandomContribution(*grid, static_cast<uint32_t>(round));
    const std::string digest = DigestOf(*grid, pieces);
    pieces.back() = WithLastValue(pieces.back(), value);
    const auto answer = b.Submit(b.Header(round, pieces), pieces, digest);
    refused += answer.status().code() == Code::kInvalidArgument ? 1 : 0;
    EXPECT_THAT(std::string(answer.status().message()), HasSubstr("finite")) << answer.status();
    flagged += LastRefusal(served.address, "b").find("finite") != std::string::npos ? 1 : 0;
    ASSERT_TRUE(a.SubmitRandom(round, 3).ok());
    a.ExpectOpened(round);
    const ReceivedUpdate update = a.ExpectUpdate(round);
    unharmed += update.record.included_size() == 1 && !update.record.is_void() ? 1 : 0;
    ASSERT_TRUE(b.Beat(round).ok());
  }
  for (const float value : denormal) {
    ++round;
    auto pieces = RandomContribution(*grid, static_cast<uint32_t>(round));
    pieces.back() = WithLastValue(pieces.back(), value);
    ASSERT_TRUE(b.Submit(b.Header(round, pieces), pieces, DigestOf(*grid, pieces)).ok());
    ASSERT_TRUE(a.Abstain(round, "nothing of its own").ok());
    a.ExpectOpened(round);
    const ReceivedUpdate update = a.ExpectUpdate(round);
    const auto got = Dense(*grid, update.pieces), sent = Dense(*grid, pieces);
    exact += std::equal(got.begin(), got.end(), sent.begin(), SameBits) ? 1 : 0;
    ASSERT_TRUE(b.Beat(round).ok());
  }
  EXPECT_EQ(refused, 5);
  EXPECT_EQ(flagged, 5);
  EXPECT_EQ(unharmed, 5);
  EXPECT_EQ(exact, 3);
  std::printf("measured r29 bad=5 refused=%d flagged=%d rounds_unharmed=%d denormal=3 exact=%d\n",
              refused, flagged, unharmed, exact);
}

// C5: one value of a million is no number; then all nodes have one.
TEST(ServedFaults, OneNotANumberInAMillionValues) {
  v1::RunSpec spec = TestSpec({"a", "b", "c"});
  spec.mutable_codec()->set_matrix_density(1.0);
  v1::Manifest manifest;
  v1::TensorSpec* tensor = manifest.add_tensors();
  tensor->set_name("weight");
  tensor->set_dtype(v1::DTYPE_FLOAT32);
  tensor->add_shape(1000);
  tensor->add_shape(1000);
  const auto grid = Grid::Make(manifest, spec.codec());
  ASSERT_TRUE(grid.ok()) << grid.status();
  Served served(spec);
  RemoteHost host(served.address);
  std::vector<std::unique_ptr<FakeNode>> nodes;
  for (const char* name : {"a", "b", "c"}) {
    nodes.push_back(std::make_unique<FakeNode>(&host, name));
    FakeNode& node = *nodes.back();
    *node.join_request.mutable_manifest() = manifest;
    node.join_request.set_fingerprint(Fingerprint(manifest));
    node.JoinAndWatch();
  }
  const auto submit = [&](FakeNode& node, uint64_t round, uint32_t seed, bool spoilt) {
    auto pieces = RandomContribution(*grid, seed, kPieceBytesMax);
    const std::string digest = DigestOf(*grid, pieces);
    if (spoilt) {
      pieces.back() = WithLastValue(pieces.back(), std::numeric_limits<float>::quiet_NaN());
    }
    v1::SubmitHeader header = node.Header(round, pieces);
    header.mutable_ranges(0)->set_end(grid->chunks());
    return node.Submit(header, pieces, digest).status();
  };
  EXPECT_TRUE(submit(*nodes[0], 1, 1, false).ok());
  const absl::Status refused = submit(*nodes[1], 1, 2, true);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused;
  EXPECT_TRUE(submit(*nodes[2], 1, 3, false).ok());
  nodes[0]->ExpectOpened(1);
  const ReceivedUpdate update = nodes[0]->ExpectUpdate(1);
  ASSERT_EQ(update.record.included_size(), 2);
  EXPECT_EQ(update.record.included(1).node(), "c");
  int finite = 0, values = 0;
  for (const auto& chunk : Dense(*grid, update.pieces)) {
    values += static_cast<int>(chunk.size());
    for (const float value : chunk) finite += std::isfinite(value) ? 1 : 0;
  }
  EXPECT_EQ(values, 1000000);
  EXPECT_EQ(finite, values);
  nodes[0]->ExpectOpened(2);
  for (auto& node : nodes) {
    ASSERT_TRUE(node->Beat(1).ok());
    EXPECT_EQ(submit(*node, 2, 4, true).code(), Code::kInvalidArgument);
  }
  const ReceivedUpdate empty = nodes[0]->ExpectUpdate(2);
  EXPECT_TRUE(empty.record.is_void());
  EXPECT_TRUE(empty.pieces.empty());
  const int told = CountOf(served.Log(), "contribution refused");
  EXPECT_EQ(told, 4);
  std::printf(
      "measured c5 values=%d refused=1 included=%d not_finite=%d void_rounds=%d "
      "log_lines=%d\n",
      values, update.record.included_size(), values - finite, empty.record.is_void() ? 1 : 0, told);
}

// The answer to a header alone, with nothing sent after it, and how long it took.
absl::StatusCode AnswerToHeader(v1::CoordinatorService::Stub* stub, const v1::SubmitHeader& header,
                                std::string* reason, int64_t* ms_max) {
  const int64_t begin_ms = NowMs();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  v1::SubmitResponse response;
  const auto call = stub->Submit(&context, &response);
  v1::SubmitRequest request;
  *request.mutable_header() = header;
  EXPECT_TRUE(call->Write(request));
  const grpc::Status status = call->Finish();  // although no end was sent
  *ms_max = std::max(*ms_max, NowMs() - begin_ms);
  *reason = status.error_message();
  return static_cast<absl::StatusCode>(status.error_code());
}

// R30: wrong model, run, round, base or shape: refused before any payload is read.
TEST(ServedFaults, WhatIsNotOfThisRunIsRefusedBeforeItsPayload) {
  Served served(TestSpec({"a", "b"}));
  RemoteHost host(served.address);
  FakeNode a(&host, "a"), b(&host, "b");
  a.JoinAndWatch();
  b.JoinAndWatch();
  int64_t ms_max = 0;
  int refused = 0, asked = 0;
  const auto stub = v1::CoordinatorService::NewStub(ChannelTo(served.address));
  const auto pieces = RandomContribution(*TestGrid(), 1);
  const std::vector<std::tuple<const char*, Code, std::function<void(v1::SubmitHeader*)>>> headers =
      {{"run", Code::kNotFound, [](auto* h) { h->set_run("other"); }},
       {"node", Code::kNotFound, [](auto* h) { h->set_node("other"); }},
       {"round", Code::kFailedPrecondition, [](auto* h) { h->set_round(2); }},
       {"incarnation", Code::kFailedPrecondition, [](auto* h) { h->set_incarnation(99); }},
       {"base", Code::kFailedPrecondition, [](auto* h) { h->set_base_round(7); }}};
  for (const auto& [name, code, spoil] : headers) {
    v1::SubmitHeader header = b.Header(1, pieces);
    spoil(&header);
    std::string said;
    EXPECT_EQ(AnswerToHeader(stub.get(), header, &said, &ms_max), code) << name << ": " << said;
    ++asked;
    refused += !said.empty() ? 1 : 0;
  }
  // Of the shape of a shard: the ranges do not fit the model.
  v1::SubmitHeader header = a.Header(1, pieces);
  header.mutable_ranges(0)->set_end(TestGrid()->chunks() + 1);
  std::string said;
  EXPECT_EQ(AnswerToHeader(stub.get(), header, &said, &ms_max), Code::kInvalidArgument);
  EXPECT_THAT(said, HasSubstr("chunks"));
  // Another model: the fingerprint, a shape, a start state.
  const std::vector<std::function<void(v1::JoinRunRequest*)>> joins = {
      [](auto* r) { r->set_fingerprint(std::string(32, 'x')); },
      [](auto* r) {
        r->mutable_manifest()->mutable_tensors(1)->set_shape(0, 4999);
        r->set_fingerprint(Fingerprint(r->manifest()));
      },
      [](auto* r) { r->set_state_sha256(std::string(32, 'x')); }};
  for (const auto& spoil : joins) {
    FakeNode other(&host, "b");
    spoil(&other.join_request);
    const int64_t begin_ms = NowMs();
    const absl::Status status = other.Join();
    ms_max = std::max(ms_max, NowMs() - begin_ms);
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status;
  }
  asked += 4;
  refused += 4;
  EXPECT_LT(ms_max, 1000);
  std::printf("measured r30 asked=%d refused=%d payload_bytes=0 ms_max=%d\n", asked, refused,
              static_cast<int>(ms_max));
}

// Reads the health that is streamed until it is not SERVING; the time of that, -1: it ended before.
class HealthWatch {
 public:
  explicit HealthWatch(const std::string& address)
      : stub_(grpc::health::v1::Health::NewStub(ChannelTo(address))) {
    thread_ = std::thread([this] {
      grpc::health::v1::HealthCheckResponse response;
      const auto stream = stub_->Watch(&context_, {});
      while (stream->Read(&response)) {
        if (response.status() == grpc::health::v1::HealthCheckResponse::SERVING) {
          serving_ = true;
        } else if (not_serving_ms_ < 0) {
          not_serving_ms_ = NowMs();
        }
      }
      stream->Finish();
    });
  }
  ~HealthWatch() {
    context_.TryCancel();
    if (thread_.joinable()) thread_.join();
  }
  bool WaitServing() const {
    for (const int64_t end_ms = NowMs() + kWaitMsMax; !serving_ && NowMs() < end_ms;) {
      poll(nullptr, 0, 5);
    }
    return serving_;
  }
  int64_t NotServingMs() {
    thread_.join();
    return not_serving_ms_;
  }

 private:
  std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
  grpc::ClientContext context_;
  std::atomic<bool> serving_{false};
  std::atomic<int64_t> not_serving_ms_{-1};
  std::thread thread_;
};

// R15, C7: SIGTERM while rounds go on, with four watches open and an upload half sent.
TEST(ServedFaults, SigtermUnderLoadEndsInOrder) {
  Served served(TestSpec({"a", "b", "c", "d"}));
  RemoteHost host(served.address), idle_host(served.address);
  std::vector<std::unique_ptr<FakeNode>> nodes;
  for (const char* name : {"a", "b", "c", "d"}) {
    nodes.push_back(std::make_unique<FakeNode>(name[0] == 'a' ? &host : &idle_host, name));
    nodes.back()->JoinAndWatch();
  }
  HealthWatch health(served.address);
  ASSERT_TRUE(health.WaitServing());
  const auto stub = v1::CoordinatorService::NewStub(ChannelTo(served.address));
  const auto pieces = RandomContribution(*TestGrid(), 1);
  grpc::ClientContext context;
  v1::SubmitResponse response;
  const auto upload = stub->Submit(&context, &response);
  v1::SubmitRequest request;
  *request.mutable_header() = nodes[1]->Header(1, pieces);
  ASSERT_TRUE(upload->Write(request));
  request.mutable_piece()->set_data(pieces[0]);
  ASSERT_TRUE(upload->Write(request));
  std::atomic<int> calls{0};
  absl::Status last;
  std::thread load([&] {  // heartbeats of one node, as fast as they are answered
    while ((last = nodes[0]->Beat().status()).ok()) ++calls;
  });
  while (calls < 100) poll(nullptr, 0, 1);
  const int64_t begin_ms = NowMs();
  served.process->Signal(SIGTERM);
  const int code = served.process->WaitForExit(10000);
  const int64_t end_ms = NowMs();
  load.join();
  const int64_t not_serving_ms = health.NotServingMs();
  EXPECT_EQ(code, 0) << served.Log();
  EXPECT_LT(end_ms - begin_ms, 5000);
  EXPECT_TRUE(absl::IsUnavailable(last)) << last;
  ASSERT_GE(not_serving_ms, begin_ms);
  EXPECT_LT(not_serving_ms - begin_ms, 1000);
  EXPECT_FALSE(upload->Finish().ok());
  int told = 0;
  for (const auto& node : nodes) {
    WatchQueue::Taken taken = node->reader->Next();
    while (!taken.closed) taken = node->reader->Next();
    told += ReasonOf(taken.status) == kReasonShuttingDown ? 1 : 0;
  }
  EXPECT_EQ(told, 4);
  std::printf("measured r15 exit_code=%d exit_ms=%d not_serving_ms=%d watches_told=%d calls=%d\n",
              code, static_cast<int>(end_ms - begin_ms),
              static_cast<int>(not_serving_ms - begin_ms), told, calls.load());
}

}  // namespace
}  // namespace isthmus
