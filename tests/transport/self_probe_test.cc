// A server that takes connections, one that has run out of descriptors, and a port behind which
// nobody accepts.
#include "transport/self_probe.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "base/descriptors.h"
#include "tests/transport/fake_host.h"
#include "tests/transport/loopback.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

constexpr int kShortMs = 300;

// Listens on a free port of the loopback interface and never accepts.
class DeafPort {
 public:
  DeafPort() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in name = {};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(name);
    auto* const at = reinterpret_cast<sockaddr*>(&name);
    EXPECT_EQ(bind(fd_, at, size), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    EXPECT_EQ(getsockname(fd_, at, &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(name.sin_port));
  }
  ~DeafPort() { close(fd_); }
  const std::string& address() const { return address_; }

 private:
  int fd_;
  std::string address_;
};

TEST(SelfProbe, AddressesThatStandForAllAreReachedByLoopback) {
  EXPECT_EQ(*ReachedBy("0.0.0.0:7070"), "127.0.0.1:7070");
  EXPECT_EQ(*ReachedBy("[::]:7070"), "[::1]:7070");
  EXPECT_EQ(*ReachedBy("10.1.2.3:7070"), "10.1.2.3:7070");
  EXPECT_EQ(*ReachedBy("unix:/run/s"), "unix:/run/s");
  EXPECT_FALSE(ReachedBy("7070").ok());
}

TEST(SelfProbe, AServerThatTakesConnectionsStaysAlive) {
  FakeHost host;
  TestFolder folder;
  for (const std::string& address : {std::string("127.0.0.1:0"), folder.Socket()}) {
    const auto server = StartServer(&host, address);
    ASSERT_TRUE(server.ok()) << server.status();
    const std::string served = (*server)->addresses().front();
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(ProbeAddress(served, kSelfProbeTimeoutMs).ok());
  }
}

TEST(SelfProbe, APortBehindWhichNobodyAcceptsIsDeadAfterTwoProbes) {
  const DeafPort deaf;
  const absl::Status found = ProbeAddress(deaf.address(), kShortMs);
  EXPECT_TRUE(absl::IsUnavailable(found)) << found;
  EXPECT_THAT(std::string(found.message()), HasSubstr(deaf.address()));
  const SelfProbe probe({{deaf.address()}, 1, kShortMs});
  EXPECT_TRUE(probe.why().ok());
  while (!probe.dead()) std::this_thread::yield();
  EXPECT_THAT(std::string(probe.why().message()), HasSubstr("descriptors"));
}

// A probe that took an hour would be waited for if its end did not cut it.
TEST(SelfProbe, EndsInTheMiddleOfAProbe) {
  constexpr int kHourMs = 3600 * 1000;
  const DeafPort deaf;
  for (int i = 0; i < 3; ++i) {
    const SelfProbe probe({{deaf.address()}, i, kHourMs});
    std::this_thread::yield();
  }
  int looks = 0;
  EXPECT_TRUE(
      absl::IsCancelled(ProbeAddress(deaf.address(), kHourMs, [&looks] { return ++looks == 3; })));
}

TEST(Descriptors, AreRaisedUpToTheHardLimitAndNeverLowered) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(RaiseDescriptorLimit(100), 100u);
  EXPECT_EQ(RaiseDescriptorLimit(10), 100u);
  EXPECT_EQ(RaiseDescriptorLimit(~uint64_t{0}), before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace isthmus
