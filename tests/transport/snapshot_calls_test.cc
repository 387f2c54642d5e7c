// The calls that move snapshots, over real connections: what arrives, and how they end.
#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "isthmus/v1/coordinator.grpc.pb.h"
#include "tests/transport/fake_snapshots.h"
#include "tests/transport/loopback.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kBigPiece = kSnapshotPieceBytesMax / sizeof(float);

class SnapshotCallsTest : public ::testing::Test {
 protected:
  SnapshotCallsTest() {
    host_.on_end = [this] { ++ended_; };
    host_.facts.set_round(7);
    host_.facts.set_sections(3);
    host_.facts.set_elements(1000);
    std::mt19937 random(1);
    host_.values.resize(3 * 1000 * sizeof(float));
    for (char& byte : host_.values) byte = static_cast<char>(random());
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Shutdown(0);
  }

  void Start(int stall_timeout_ms = kSubmitStallTimeoutMs) {
    GrpcServerOptions options;
    options.host = &host_;
    options.addresses = {"127.0.0.1:0"};
    options.snapshot_stall_timeout_ms = stall_timeout_ms;
    auto server = GrpcServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_ = Connect(server_->addresses()[0]);
  }
  // More than any buffer on the way holds.
  void MakeEndless() {
    host_.facts.set_sections(1);
    host_.facts.set_elements(uint64_t{1} << 40);
    host_.piece_elements = kBigPiece;
    host_.make_values = [](const SectionRange& range) {
      return std::string((range.end - range.begin) * sizeof(float), 'x');
    };
  }

  v1::UploadSnapshotHeader Header() const {
    v1::UploadSnapshotHeader header;
    *header.mutable_facts() = host_.facts;
    WriteRanges(AllRanges(host_.facts.sections(), host_.facts.elements()), header.mutable_ranges());
    return header;
  }
  v1::FetchSnapshotRequest Request() const {
    v1::FetchSnapshotRequest request;
    WriteRanges(AllRanges(host_.facts.sections(), host_.facts.elements()),
                request.mutable_ranges());
    return request;
  }
  v1::SnapshotPiece Piece(uint64_t begin, uint64_t elements) const {
    v1::SnapshotPiece piece;
    piece.set_section(1);
    piece.set_begin(begin);
    piece.set_data(std::string(elements * sizeof(float), 'p'));
    return piece;
  }
  // All of it; how it ended.
  absl::Status ReadAll(SnapshotDownload* download, std::string* values = nullptr) {
    v1::FetchSnapshotResponse message;
    while (download->Next(&message)) {
      if (values != nullptr) *values += message.piece().data();
    }
    return download->Finish();
  }

  FakeSnapshots host_;
  std::atomic<int> ended_{0};  // calls that the host saw end
  std::atomic<bool> go_on_{false};
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(SnapshotCallsTest, WhatIsSentArrives) {
  Start();
  auto upload = client_->UploadSnapshot(Header());
  EXPECT_TRUE(upload->Send(Piece(10, 20)));
  EXPECT_TRUE(upload->Send(Piece(900, 100)));
  const auto answer = upload->Finish();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(*ReadRanges(answer->missing(), 3, 1000),
              ElementsAre(SectionRange{0, 0, 1000}, SectionRange{1, 0, 10},
                          SectionRange{1, 30, 900}, SectionRange{2, 0, 1000}));
  EXPECT_EQ(host_.held().at({1, 10, 30}), Piece(10, 20).data());
  EXPECT_EQ(host_.headers_of_uploads()[0].SerializeAsString(), Header().SerializeAsString());

  auto download = client_->FetchSnapshot(Request());
  v1::FetchSnapshotResponse first;
  ASSERT_TRUE(download->Next(&first));
  EXPECT_EQ(first.facts().SerializeAsString(), host_.facts.SerializeAsString());
  std::string values;
  const absl::Status status = ReadAll(download.get(), &values);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(values, host_.values);
  EXPECT_FALSE(download->Next(&first));
  EXPECT_TRUE(host_.WaitFor([&] { return ended_ == 2; }));
}

TEST_F(SnapshotCallsTest, RefusalsOfTheHostArriveWithTheirReason) {
  Start();
  const absl::Status refusal = WithRetryAfterMs(
      WithReason(absl::ResourceExhaustedError("no room for it"), "STORE_FULL"), 250);
  const auto expect_refused = [&](const absl::Status& status) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(ReasonOf(status), "STORE_FULL");
    EXPECT_EQ(RetryAfterMsOf(status), 250);
    EXPECT_EQ(status.message(), "no room for it");
  };
  host_.on_upload = [&](const auto&) { return refusal; };
  expect_refused(client_->UploadSnapshot(Header())->Finish().status());
  host_.on_upload = nullptr;
  host_.on_upload_piece = [&](const auto& piece) {
    return piece.begin() == 30 ? refusal : absl::OkStatus();
  };
  auto upload = client_->UploadSnapshot(Header());
  for (uint64_t i = 0; i < 90 && upload->Send(Piece(10 * i, 10)); ++i) {
  }
  expect_refused(upload->Finish().status());
  EXPECT_EQ(host_.held().size(), 3u);  // what came before stays
  host_.on_fetch = [&](const auto&) { return refusal; };
  expect_refused(ReadAll(client_->FetchSnapshot(Request()).get()));
  host_.on_fetch = nullptr;
  host_.on_message = [&](size_t message) { return message == 5 ? refusal : absl::OkStatus(); };
  std::string values;
  auto download = client_->FetchSnapshot(Request());
  expect_refused(ReadAll(download.get(), &values));
  EXPECT_EQ(values, host_.values.substr(0, 400 * sizeof(float)));
}

TEST_F(SnapshotCallsTest, OnlyPiecesOfTheirSizeFollowAHeader) {
  Start();
  auto upload = client_->UploadSnapshot(Header());
  upload->Send(Piece(0, kBigPiece + 1));
  const absl::Status large = upload->Finish().status();
  EXPECT_TRUE(absl::IsInvalidArgument(large)) << large;
  EXPECT_THAT(std::string(large.message()), HasSubstr("has 524292 bytes; the limit is 524288"));
  const auto stub = v1::CoordinatorService::NewStub(
      grpc::CreateChannel(server_->addresses()[0], grpc::InsecureChannelCredentials()));
  for (const bool header_first : {false, true}) {
    grpc::ClientContext context;
    v1::UploadSnapshotResponse response;
    const auto writer = stub->UploadSnapshot(&context, &response);
    v1::UploadSnapshotRequest request;
    *request.mutable_header() = Header();
    if (header_first) writer->Write(request);
    if (header_first) writer->Write(request);  // twice
    if (!header_first) *request.mutable_piece() = Piece(0, 1);
    writer->Write(request);
    writer->WritesDone();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_THAT(host_.held(), IsEmpty());
}

TEST_F(SnapshotCallsTest, CallsEndWithTheirClient) {
  MakeEndless();
  Start();
  // Given up by destroying them.
  client_->UploadSnapshot(Header()).reset();
  auto download = client_->FetchSnapshot(Request());
  v1::FetchSnapshotResponse message;
  ASSERT_TRUE(download->Next(&message));
  download.reset();
  ASSERT_TRUE(host_.WaitFor([&] { return ended_ >= 1; }));
  // And all at once.
  auto upload = client_->UploadSnapshot(Header());
  download = client_->FetchSnapshot(Request());
  ASSERT_TRUE(download->Next(&message));
  std::thread cancel([&] { client_->Cancel(); });
  const absl::Status ended = ReadAll(download.get());
  cancel.join();
  EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
  EXPECT_TRUE(absl::IsCancelled(upload->Finish().status()));
  EXPECT_TRUE(absl::IsCancelled(client_->UploadSnapshot(Header())->Finish().status()));
  EXPECT_TRUE(absl::IsCancelled(client_->FetchSnapshot(Request())->Finish()));
  const size_t begun = host_.headers_of_uploads().size() + 2;
  EXPECT_TRUE(host_.WaitFor([&] { return static_cast<size_t>(ended_) == begun; }));
}

TEST_F(SnapshotCallsTest, AServerThatStopsEndsThemInTime) {
  MakeEndless();
  Start();
  auto idle = client_->UploadSnapshot(Header());  // says nothing more
  auto busy = client_->FetchSnapshot(Request());
  const auto other = Connect(server_->addresses()[0]);
  auto unread = other->FetchSnapshot(Request());
  v1::FetchSnapshotResponse message;
  ASSERT_TRUE(busy->Next(&message));
  ASSERT_TRUE(host_.WaitFor(
      [&] { return host_.headers_of_uploads().size() == 1 && host_.fetched().size() == 2; }));
  absl::Status ended;
  std::thread reader([&] { ended = ReadAll(busy.get()); });
  const int drain_ms = 300;
  const auto begin = std::chrono::steady_clock::now();
  server_->Shutdown(drain_ms);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(drain_ms + 1000));
  reader.join();
  EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
  EXPECT_EQ(ReasonOf(ended), kReasonShuttingDown);
  EXPECT_TRUE(absl::IsUnavailable(idle->Finish().status()));
  EXPECT_EQ(ended_, 3);
}

TEST_F(SnapshotCallsTest, OneCallTooManyIsToldToComeBack) {
  host_.on_message = [this](size_t) {
    EXPECT_TRUE(host_.WaitFor([this] { return go_on_.load(); }));
    return absl::OkStatus();
  };
  Start();
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::unique_ptr<SnapshotDownload>> downloads;
  for (int i = 0; i < kSnapshotCallsMax; ++i) {
    if (i % (kConcurrentStreamsMax / 2) == 0) clients.push_back(Connect(server_->addresses()[0]));
    downloads.push_back(clients.back()->FetchSnapshot(Request()));
  }
  const size_t ranges = kSnapshotCallsMax * host_.facts.sections();
  ASSERT_TRUE(host_.WaitFor([&] { return host_.fetched().size() == ranges; }));
  for (const absl::Status& refused : {client_->UploadSnapshot(Header())->Finish().status(),
                                      client_->FetchSnapshot(Request())->Finish()}) {
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_EQ(ReasonOf(refused), "SNAPSHOT_CALLS");
    EXPECT_EQ(RetryAfterMsOf(refused), kRetryAfterMs);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(absl::StrCat("there are ", kSnapshotCallsMax)));
  }
  // Rounds go on beside them.
  EXPECT_TRUE(client_->JoinRun(v1::JoinRunRequest()).ok());
  go_on_ = true;
  for (auto& download : downloads) EXPECT_TRUE(ReadAll(download.get()).ok());
  EXPECT_TRUE(ReadAll(client_->FetchSnapshot(Request()).get()).ok());
}

TEST_F(SnapshotCallsTest, APeerThatMakesNoProgressIsCut) {
  MakeEndless();
  Start(/*stall_timeout_ms=*/300);
  auto unread = client_->FetchSnapshot(Request());
  auto silent = client_->UploadSnapshot(Header());
  EXPECT_TRUE(host_.WaitFor([&] { return ended_ == 2; }));
  EXPECT_TRUE(absl::IsUnavailable(silent->Finish().status()));
  const absl::Status cut = ReadAll(unread.get());
  EXPECT_TRUE(absl::IsUnavailable(cut)) << cut;
  EXPECT_THAT(std::string(cut.message()), HasSubstr(server_->addresses()[0]));
}

// gRPC's own end would wait for a thread that a blocked write has started.
TEST_F(SnapshotCallsTest, TheLastServerAndClientGoAtOnceInTheMiddleOfATransfer) {
  MakeEndless();
  for (int i = 0; i < 3; ++i) {
    Start();
    auto download = client_->FetchSnapshot(Request());
    auto upload = client_->UploadSnapshot(Header());
    v1::FetchSnapshotResponse message;
    for (int j = 0; j < 20; ++j) {
      ASSERT_TRUE(download->Next(&message));
      ASSERT_TRUE(upload->Send(Piece(0, kBigPiece)));
    }
    const auto begin = std::chrono::steady_clock::now();
    upload = nullptr;
    download = nullptr;
    client_ = nullptr;
    server_ = nullptr;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
  }
}

TEST_F(SnapshotCallsTest, ASilentServerIsGivenUp) {
  host_.on_message = [this](size_t message) {
    EXPECT_TRUE(host_.WaitFor([&] { return message < 3 || go_on_; }));
    return absl::OkStatus();
  };
  Start();
  ClientOptions options;
  options.address = server_->addresses()[0];
  options.submit_stall_timeout_ms = 300;
  const auto impatient = *Client::Make(options);
  const absl::Status status = ReadAll(impatient->FetchSnapshot(Request()).get());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no progress"));
  go_on_ = true;
}

}  // namespace
}  // namespace isthmus
