// Submissions that our client would never send: each is refused with a sentence.
#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <climits>

#include "isthmus/v1/coordinator.grpc.pb.h"
#include "tests/transport/fake_host.h"
#include "tests/transport/loopback.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

v1::SubmitRequest Header(uint64_t payload_bytes) {
  v1::SubmitRequest request;
  request.mutable_header()->set_round(1);
  request.mutable_header()->set_payload_bytes(payload_bytes);
  return request;
}

v1::SubmitRequest Piece(const std::string& data) {
  v1::SubmitRequest request;
  request.mutable_piece()->set_data(data);
  return request;
}

v1::SubmitRequest End() {
  v1::SubmitRequest request;
  request.mutable_end();
  return request;
}

class RawSubmitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = StartServer(&host_, folder_.Socket());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    grpc::ChannelArguments arguments;
    arguments.SetMaxSendMessageSize(INT_MAX);
    stub_ = v1::CoordinatorService::NewStub(
        grpc::CreateCustomChannel(folder_.Socket(), grpc::InsecureChannelCredentials(), arguments));
  }

  grpc::Status Send(const std::vector<v1::SubmitRequest>& messages) {
    grpc::ClientContext context;
    v1::SubmitResponse response;
    const auto writer = stub_->Submit(&context, &response);
    for (const auto& message : messages) {
      if (!writer->Write(message)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  }

  void ExpectInvalid(const std::vector<v1::SubmitRequest>& messages, const std::string& text) {
    const grpc::Status status = Send(messages);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << text;
    EXPECT_THAT(status.error_message(), HasSubstr(text));
  }

  TestFolder folder_;
  FakeHost host_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
};

TEST_F(RawSubmitTest, AWellFormedOneIsTaken) {
  EXPECT_TRUE(Send({Header(3), Piece("abc"), End()}).ok());
  EXPECT_TRUE(Send({Header(0), End()}).ok());
}

TEST_F(RawSubmitTest, OrderIsChecked) {
  ExpectInvalid({}, "no header");
  ExpectInvalid({Piece("abc")}, "before the header");
  ExpectInvalid({End()}, "before the header");
  ExpectInvalid({Header(0), Header(0)}, "second header");
  ExpectInvalid({Header(3), Piece("abc")}, "no end");
  ExpectInvalid({Header(3), Piece("abc"), End(), End()}, "after the end");
  ExpectInvalid({Header(3), Piece("abc"), End(), Piece("d")}, "after the end");
  ExpectInvalid({Header(0), v1::SubmitRequest()}, "neither header, piece nor end");
}

TEST_F(RawSubmitTest, SizesAreChecked) {
  ExpectInvalid({Header(3), Piece("abcd"), End()}, "announced payload_bytes 3");
  ExpectInvalid({Header(5), Piece("abcd"), End()}, "after 4 bytes");
  ExpectInvalid({Header(1 << 21), Piece(std::string(kPieceBytesMax + 1, 'x')), End()},
                "the limit is 1048576");
}

TEST_F(RawSubmitTest, AnAbstentionHasNoPieces) {
  v1::SubmitRequest header = Header(0);
  header.mutable_header()->set_abstain_reason("non-finite gradient in wte");
  EXPECT_TRUE(Send({header, End()}).ok());
  ExpectInvalid({header, Piece("abc"), End()}, "abstains");
  header.mutable_header()->set_payload_bytes(3);
  ExpectInvalid({header}, "payload_bytes 3");
}

TEST_F(RawSubmitTest, AMessageOverTheLimitIsRefusedWithItsSize) {
  const grpc::Status status =
      Send({Header(kMessageBytesMax), Piece(std::string(kMessageBytesMax, 'x')), End()});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr(std::to_string(kMessageBytesMax)));
  EXPECT_TRUE(host_.pieces().empty());
}

TEST_F(RawSubmitTest, BytesThatAreNoMessageAreRefused) {
  grpc::GenericStub stub(grpc::CreateChannel(folder_.Socket(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, "/isthmus.v1.CoordinatorService/Submit", &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  grpc::Slice slice(std::string(100, '\xff'));
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  grpc::Status status;
  call->Finish(&status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.error_message(), HasSubstr("does not decode"));
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
}

TEST_F(RawSubmitTest, ACallThatIsCancelledReleasesItsSink) {
  {
    grpc::ClientContext context;
    v1::SubmitResponse response;
    const auto writer = stub_->Submit(&context, &response);
    writer->Write(Header(100));
    writer->Write(Piece("abc"));
    ASSERT_TRUE(host_.WaitFor([&] { return host_.pieces().size() == 1; }));
    context.TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(host_.WaitFor([&] { return host_.sinks_destroyed() == 1; }));
}

}  // namespace
}  // namespace isthmus
