// R27: one more than each limit, against the coordinator's real process over a real connection: it
// is refused with RESOURCE_EXHAUSTED or INVALID_ARGUMENT in a sentence that has limit and value,
// takes at most twice the limit's bytes, and harms nobody. Prints
//   measured r27 asked=... refused=... grown_percent_of_limit=...
// which ./dev bench faults compares with its bar.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "grpcpp/grpcpp.h"
#include "isthmus/v1/admin.grpc.pb.h"
#include "isthmus/v1/coordinator.grpc.pb.h"
#include "tests/base/proc_status.h"
#include "tests/server/fakes.h"
#include "tests/server/served.h"

namespace isthmus {
namespace {

// gRPC says of metadata neither how much there is nor how much there may be.
constexpr uint64_t kNotSaid = std::numeric_limits<uint64_t>::max();

struct Ask {
  std::string what;
  uint64_t limit = 0;
  uint64_t value = 0;  // one more, where nothing else comes before it
  std::function<grpc::Status(grpc::ClientContext*)> call;
  uint64_t bytes = kMessageBytesMax;  // that the limit lets in
};

class WireLimits : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto channel = grpc::CreateChannel(served_.address, grpc::InsecureChannelCredentials());
    nodes_ = v1::CoordinatorService::NewStub(channel);
    admin_ = v1::AdminService::NewStub(channel);
  }

  // A join of a node that nobody has joined before, spoilt like this.
  Ask Join(const std::string& what, uint64_t limit, uint64_t value,
           const std::function<void(v1::JoinRunRequest*)>& spoil) {
    return {what, limit, value, [this, spoil](grpc::ClientContext* context) {
              v1::JoinRunRequest request = FakeNode(nullptr, "a").join_request;
              spoil(&request);
              request.set_fingerprint(Fingerprint(request.manifest()));
              v1::JoinRunResponse response;
              return nodes_->JoinRun(context, request, &response);
            }};
  }

  template <typename Stub, typename Request, typename Response>
  Ask Call(const std::string& what, uint64_t limit, uint64_t value, Stub* stub,
           grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
           const std::function<void(Request*)>& fill) {
    return {what, limit, value, [=](grpc::ClientContext* context) {
              Request request;
              request.set_run("test");
              fill(&request);
              Response response;
              return (stub->*method)(context, request, &response);
            }};
  }

  // A submission of b, which has joined, whose only piece is so long.
  Ask Piece(size_t bytes) {
    return {"piece", kPieceBytesMax, bytes, [this, bytes](grpc::ClientContext* context) {
              v1::SubmitResponse response;
              const auto stream = nodes_->Submit(context, &response);
              v1::SubmitRequest request;
              *request.mutable_header() = b_.Header(1, RandomContribution(*TestGrid(), 1));
              stream->Write(request);
              request.mutable_piece()->set_data(std::string(bytes, 'x'));
              stream->Write(request);
              stream->WritesDone();
              return stream->Finish();
            }};
  }

  std::vector<Ask> OfJoins();
  std::vector<Ask> OfModels();
  std::vector<Ask> OfOperators();
  std::vector<Ask> OfMembers();
  void Try(const std::vector<Ask>& asks);

  uint64_t Peak() const { return ProcStatusBytes("VmHWM", std::to_string(served_.process->pid())); }

  Served served_{TestSpec({"a", "b"}, 0, 100)};
  RemoteHost host_{served_.address};
  FakeNode b_{&host_, "b"};
  std::unique_ptr<v1::CoordinatorService::Stub> nodes_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
  int asked_ = 0;
  int refused_ = 0;
  uint64_t peak_ = 0;
  uint64_t grown_percent_ = 0;  // of a limit, by one call
};

std::string Long(size_t bytes) { return std::string(bytes, 'x'); }

std::vector<Ask> WireLimits::OfJoins() {
  std::vector<Ask> asks = {
      Join("secret", kSecretBytesMax, kSecretBytesMax + 1,
           [](auto* request) { request->set_secret(Long(kSecretBytesMax + 1)); }),
      Join("client_version", kReasonBytesMax, kReasonBytesMax + 1,
           [](auto* request) { request->set_client_version(Long(kReasonBytesMax + 1)); }),
      Join("capabilities", kCapabilitiesMax, kCapabilitiesMax + 1,
           [](auto* request) {
             for (size_t i = 0; i <= kCapabilitiesMax; ++i) request->add_capabilities("x");
           }),
  };
  asks.push_back(Join("message", kMessageBytesMax, kMessageBytesMax + 1, [](auto* request) {
    std::string* text = request->mutable_client_version();
    *text = Long(kMessageBytesMax);
    text->resize(2 * kMessageBytesMax + 1 - request->ByteSizeLong());
    text->resize(text->size() + kMessageBytesMax + 1 -
                 request->ByteSizeLong());  // a length is short
    ASSERT_EQ(request->ByteSizeLong(), kMessageBytesMax + 1);
  }));
  asks.push_back({"metadata", kNotSaid, kNotSaid, [this](grpc::ClientContext* context) {
                    // Over a connection of its own: gRPC ends it.
                    grpc::ChannelArguments alone;
                    alone.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
                    const auto stub = v1::CoordinatorService::NewStub(grpc::CreateCustomChannel(
                        served_.address, grpc::InsecureChannelCredentials(), alone));
                    context->AddMetadata("x-long", Long(2 * kMetadataBytesMax));
                    v1::JoinRunResponse response;
                    return stub->JoinRun(context, FakeNode(nullptr, "a").join_request, &response);
                  }});
  return asks;
}

std::vector<Ask> WireLimits::OfModels() {
  const auto tensor = [](v1::JoinRunRequest* request) {
    return request->mutable_manifest()->mutable_tensors(0);
  };
  const auto many = [](size_t count, size_t name_bytes) {
    return [=](v1::JoinRunRequest* request) {
      request->mutable_manifest()->clear_tensors();
      for (size_t i = 0; i < count; ++i) {
        v1::TensorSpec* one = request->mutable_manifest()->add_tensors();
        std::string name = absl::StrCat(i);
        name.resize(std::max(name.size(), name_bytes), 'x');
        one->set_name(name);
        one->set_dtype(v1::DTYPE_FLOAT32);
      }
    };
  };
  v1::JoinRunRequest large;
  many(kTensorsMax - 1, 20)(&large);
  std::vector<Ask> asks = {
      Join("tensors", kTensorsMax, kTensorsMax + 1, many(kTensorsMax + 1, 0)),
      Join("manifest bytes", kManifestBytesMax, large.manifest().ByteSizeLong(),
           many(kTensorsMax - 1, 20)),
      Join("tensor name", kTensorNameBytesMax, kTensorNameBytesMax + 1,
           [=](auto* request) { tensor(request)->set_name(Long(kTensorNameBytesMax + 1)); }),
      Join("dimensions", kTensorDimensionsMax, kTensorDimensionsMax + 1,
           [=](auto* request) {
             tensor(request)->clear_shape();
             for (size_t i = 0; i <= kTensorDimensionsMax; ++i) tensor(request)->add_shape(1);
           }),
      Join("elements", kTensorElementsMax, kTensorElementsMax + 1,
           [=](auto* request) {
             tensor(request)->clear_shape();
             tensor(request)->add_shape(kTensorElementsMax + 1);
           }),
  };
  // What is read takes more than on the wire: an object and a string for each tensor.
  constexpr uint64_t kEach = sizeof(v1::TensorSpec) + sizeof(std::string);
  for (Ask& ask : asks) ask.bytes = kManifestBytesMax + kTensorsMax * kEach;
  return asks;
}

std::vector<Ask> WireLimits::OfOperators() {
  const auto spec = [](const std::string& run, size_t nodes) {
    std::string text = absl::StrCat("run: \"", run, "\" steps: 1 model { layers: 1 heads: 1 ",
                                    "width: 8 context: 8 vocab: 8 } ",
                                    "data { sequences_per_node: 1 } optimizer { lr: 0.1 }");
    for (size_t i = 0; i < nodes; ++i) absl::StrAppend(&text, " nodes { name: \"n", i, "\" }");
    return text;
  };
  const auto create = [&](const std::string& what, uint64_t limit, uint64_t value,
                          const std::string& text) {
    return Ask{what, limit, value, [this, text](grpc::ClientContext* context) {
                 v1::CreateRunRequest request;
                 request.set_spec(text);
                 v1::CreateRunResponse response;
                 return admin_->CreateRun(context, request, &response);
               }};
  };
  const std::string reason = Long(kReasonBytesMax + 1);
  using Admin = v1::AdminService::Stub;
  return {
      create("spec text", kRunSpecFileBytesMax, kRunSpecFileBytesMax + 1,
             Long(kRunSpecFileBytesMax + 1)),
      create("name of a run", kNameBytesMax, kNameBytesMax, spec(Long(kNameBytesMax + 1), 1)),
      create("nodes", kNodesMax, kNodesMax + 1, spec("many", kNodesMax + 1)),
      Call<Admin, v1::DrainNodeRequest>("reason of a drain", kReasonBytesMax, kReasonBytesMax + 1,
                                        admin_.get(), &Admin::DrainNode,
                                        [=](auto* request) {
                                          request->set_node("a");
                                          request->set_reason(reason);
                                        }),
      Call<Admin, v1::EvictNodeRequest>("reason of an eviction", kReasonBytesMax,
                                        kReasonBytesMax + 1, admin_.get(), &Admin::EvictNode,
                                        [=](auto* request) {
                                          request->set_node("a");
                                          request->set_reason(reason);
                                        }),
      Call<Admin, v1::PauseRunRequest>("reason of a pause", kReasonBytesMax, kReasonBytesMax + 1,
                                       admin_.get(), &Admin::PauseRun,
                                       [=](auto* request) { request->set_reason(reason); }),
      Call<Admin, v1::UpdateRunRequest>("fields set", kSetFieldsMax, kSetFieldsMax + 1,
                                        admin_.get(), &Admin::UpdateRun,
                                        [](auto* request) {
                                          for (size_t i = 0; i <= kSetFieldsMax; ++i) {
                                            request->add_set("optimizer.lr=0.1");
                                          }
                                        }),
  };
}

std::vector<Ask> WireLimits::OfMembers() {
  using Nodes = v1::CoordinatorService::Stub;
  const auto from_b = [this](auto* request) {
    request->set_node("b");
    request->set_incarnation(b_.joined.incarnation());
  };
  return {
      Piece(kPieceBytesMax + 1),
      Call<Nodes, v1::HeartbeatRequest>("waiting_for", kReasonBytesMax, kReasonBytesMax + 1,
                                        nodes_.get(), &Nodes::Heartbeat,
                                        [=](auto* request) {
                                          from_b(request);
                                          request->set_waiting_for(Long(kReasonBytesMax + 1));
                                        }),
      Call<Nodes, v1::LeaveRunRequest>("reason of leaving", kReasonBytesMax, kReasonBytesMax + 1,
                                       nodes_.get(), &Nodes::LeaveRun,
                                       [=](auto* request) {
                                         from_b(request);
                                         request->set_reason(Long(kReasonBytesMax + 1));
                                       }),
  };
}

void WireLimits::Try(const std::vector<Ask>& asks) {
  for (const Ask& ask : asks) {
    SCOPED_TRACE(ask.what);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    const uint64_t before = std::max(peak_, Peak());
    const grpc::Status status = ask.call(&context);
    peak_ = std::max(before, Peak());  // the kernel's count may lag behind itself a little
    const uint64_t grown = peak_ - before;
    EXPECT_LE(grown, 2 * ask.bytes);
    grown_percent_ = std::max(grown_percent_, 100 * grown / ask.bytes);
    const std::string& said = status.error_message();
    const auto names = [&](uint64_t number) {
      return number == kNotSaid || absl::StrContains(said, absl::StrCat(number));
    };
    const bool refused = (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ||
                          status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) &&
                         names(ask.limit) && names(ask.value);
    EXPECT_TRUE(refused) << status.error_code() << ": " << said;
    ++asked_;
    refused_ += refused ? 1 : 0;
  }
}

TEST_F(WireLimits, OneMoreThanEachIsRefused) {
  // The first calls of a process take memory that has nothing to do with what they ask.
  Try({Join("warm-up", kSecretBytesMax, kSecretBytesMax + 1,
            [](auto* request) { request->set_secret(Long(kSecretBytesMax + 1)); })});
  grown_percent_ = 0;
  Try(OfJoins());
  Try(OfModels());
  Try(OfOperators());
  // The limits themselves are taken.
  b_.join_request.set_secret(Long(kSecretBytesMax));
  b_.join_request.set_client_version(Long(kReasonBytesMax));
  for (size_t i = 0; i < kCapabilitiesMax; ++i) b_.join_request.add_capabilities("x");
  b_.JoinAndWatch();
  FakeNode a(&host_, "a");
  a.JoinAndWatch();
  b_.ExpectOpened(1);
  Try(OfMembers());
  // And the run is as it was.
  a.ExpectOpened(1);
  EXPECT_TRUE(served_.process->Running()) << served_.Log();
  std::printf("measured r27 asked=%d refused=%d grown_percent_of_limit=%d\n", asked_, refused_,
              static_cast<int>(grown_percent_));
}

}  // namespace
}  // namespace isthmus
