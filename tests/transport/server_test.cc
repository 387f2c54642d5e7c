// Starting and stopping a server: addresses in use, stale sockets, health, draining.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "isthmus/v1/coordinator.grpc.pb.h"
#include "tests/transport/fake_host.h"
#include "tests/transport/loopback.h"
#include "transport/addresses.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

bool CanJoin(const std::string& address) {
  return Connect(address)->JoinRun(v1::JoinRunRequest()).ok();
}

bool HasIpv6() {
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  if (fd < 0) return false;
  sockaddr_in6 name = {};
  name.sin6_family = AF_INET6;
  name.sin6_addr = in6addr_loopback;
  const bool has = bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)) == 0;
  close(fd);
  return has;
}

TEST(ServerTest, ListensOnTheFormsOfAddresses) {
  FakeHost host;
  std::vector<std::string> forms = {"127.0.0.1:0", "localhost:0"};
  if (HasIpv6()) forms.push_back("[::1]:0");
  for (const std::string& form : forms) {
    const auto server = StartServer(&host, form);
    ASSERT_TRUE(server.ok()) << server.status();
    const std::string address = (*server)->addresses()[0];
    EXPECT_FALSE(testing::Matches(testing::EndsWith(":0"))(address));
    EXPECT_TRUE(CanJoin(address)) << address;
  }
}

TEST(ServerTest, ANameWithAnAddressThisMachineLacksStillListens) {
  // On an IPv4-only host "localhost" may stand for ::1 too; and with a port given, every address of
  // the name is used.
  FakeHost host;
  std::string port;
  {
    const auto probe = StartServer(&host, "127.0.0.1:0");
    ASSERT_TRUE(probe.ok());
    port = std::to_string(ParseAddress((*probe)->addresses()[0])->port);
  }
  const auto server = StartServer(&host, "localhost:" + port);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(CanJoin("127.0.0.1:" + port));
}

TEST(ServerTest, APortInUseIsAnError) {
  FakeHost host;
  const auto first = StartServer(&host, "127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  const std::string address = (*first)->addresses()[0];
  const auto second = StartServer(&host, address);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address + " is in use"));
  EXPECT_TRUE(CanJoin(address));
}

TEST(ServerTest, ASocketInUseIsAnErrorAndStaysInUse) {
  FakeHost host;
  const TestFolder folder;
  const auto first = StartServer(&host, folder.Socket());
  ASSERT_TRUE(first.ok());
  const auto second = StartServer(&host, folder.Socket());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use"));
  EXPECT_TRUE(CanJoin(folder.Socket()));
}

TEST(ServerTest, AStaleSocketIsReplacedAndRemovedAtTheEnd) {
  const TestFolder folder;
  const std::string path = folder.path() + "/s";
  {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    path.copy(name.sun_path, sizeof(name.sun_path) - 1);
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
    ASSERT_EQ(listen(fd, 1), 0);
    close(fd);  // as a killed process leaves it
  }
  FakeHost host;
  const auto server = StartServer(&host, folder.Socket());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(CanJoin(folder.Socket()));
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  (*server)->Shutdown(1000);
  EXPECT_NE(stat(path.c_str(), &info), 0);
}

TEST(ServerTest, AFileThatIsNoSocketIsLeftAlone) {
  const TestFolder folder;
  std::ofstream(folder.path() + "/s") << "precious";
  FakeHost host;
  const auto server = StartServer(&host, folder.Socket());
  EXPECT_EQ(server.status().code(), absl::StatusCode::kFailedPrecondition);
  std::string content;
  std::ifstream(folder.path() + "/s") >> content;
  EXPECT_EQ(content, "precious");
}

TEST(ServerTest, RefusedAddressesSayWhy) {
  FakeHost host;
  const auto refusal = [&](const std::string& address) {
    return std::string(StartServer(&host, address).status().message());
  };
  EXPECT_THAT(refusal("0.0.0.0:0"), HasSubstr("plain text"));
  EXPECT_THAT(refusal("192.0.2.1:0"), HasSubstr("plain text"));
  EXPECT_THAT(refusal("unix:/no/such/folder/s"), HasSubstr("/no/such/folder/s"));
  GrpcServerOptions options;
  options.host = &host;
  options.addresses = {"192.0.2.1:0"};  // reserved for documentation: no machine has it
  options.allow_plaintext_beyond_loopback = true;
  EXPECT_THAT(std::string(GrpcServer::Start(options).status().message()),
              HasSubstr("not an address of this machine"));
}

grpc::health::v1::HealthCheckResponse::ServingStatus HealthOf(const std::string& address,
                                                              const std::string& service) {
  const auto stub = grpc::health::v1::Health::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckRequest request;
  grpc::health::v1::HealthCheckResponse response;
  request.set_service(service);
  EXPECT_TRUE(stub->Check(&context, request, &response).ok());
  return response.status();
}

TEST(ServerTest, HealthFollowsSetServing) {
  using Health = grpc::health::v1::HealthCheckResponse;
  FakeHost host;
  const TestFolder folder;
  const auto server = StartServer(&host, folder.Socket());
  ASSERT_TRUE(server.ok());
  for (const char* name : {"", "isthmus.v1.CoordinatorService"}) {
    (*server)->SetServing(true);
    EXPECT_EQ(HealthOf(folder.Socket(), name), Health::SERVING);
    (*server)->SetServing(false);
    EXPECT_EQ(HealthOf(folder.Socket(), name), Health::NOT_SERVING);
  }
}

// Case C7: what holds a server's shutdown up elsewhere, all at once.
TEST(ServerTest, CaseC7ShutdownWithOpenStreamsReturnsInTime) {
  FakeHost host;
  auto started = StartServer(&host, "127.0.0.1:0");
  ASSERT_TRUE(started.ok());
  const std::unique_ptr<GrpcServer> server = *std::move(started);
  const std::string address = server->addresses()[0];

  std::vector<std::thread> watchers;
  std::vector<absl::Status> ended(4);
  for (size_t i = 0; i < ended.size(); ++i) {
    watchers.emplace_back([&, i] {
      ended[i] = Connect(address)->Watch(v1::WatchUpdatesRequest(),
                                         [](auto&) { return absl::OkStatus(); });
    });
  }
  const auto stub = v1::CoordinatorService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::SubmitResponse response;
  const auto upload = stub->Submit(&context, &response);
  v1::SubmitRequest request;
  request.mutable_header()->set_payload_bytes(100);
  ASSERT_TRUE(upload->Write(request));
  request.mutable_piece()->set_data("half");
  ASSERT_TRUE(upload->Write(request));
  const auto idle = Connect(address);
  ASSERT_TRUE(idle->JoinRun(v1::JoinRunRequest()).ok());
  const int mute = socket(AF_INET, SOCK_STREAM, 0);  // connects and says nothing
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(ParseAddress(address)->port));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(mute, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  ASSERT_TRUE(host.WaitFor([&] { return host.queues().size() == 4 && host.pieces().size() == 1; }));

  const auto begin = std::chrono::steady_clock::now();
  server->Shutdown(kDrainMs);
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took, std::chrono::milliseconds(kDrainMs + 1000));
  for (std::thread& watcher : watchers) watcher.join();
  for (const absl::Status& status : ended) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ReasonOf(status), kReasonShuttingDown);
  }
  EXPECT_FALSE(upload->Finish().ok());
  EXPECT_EQ(host.ended().size(), 4u);
  EXPECT_EQ(host.sinks_destroyed(), 1u);
  close(mute);
}

TEST(ServerTest, AnIdleServerStopsAtOnce) {
  FakeHost host;
  auto server = StartServer(&host, "127.0.0.1:0");
  ASSERT_TRUE(server.ok());
  const auto idle = Connect((*server)->addresses()[0]);
  ASSERT_TRUE(idle->JoinRun(v1::JoinRunRequest()).ok());
  const auto begin = std::chrono::steady_clock::now();
  (*server)->Shutdown(kDrainMs);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1000));
  (*server)->Shutdown(kDrainMs);  // once more does nothing
}

}  // namespace
}  // namespace isthmus
