// Servers and clients for tests: a folder of its own for sockets, and short ways to start.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "transport/client.h"
#include "transport/service.h"

namespace isthmus {

// A temporary folder with a short path (socket paths are limited), removed at the end.
class TestFolder {
 public:
  TestFolder() {
    std::string path = "/tmp/isthmus-test-XXXXXX";
    ISTHMUS_CHECK(mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  std::string Socket(const std::string& name = "s") const { return "unix:" + path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline absl::StatusOr<std::unique_ptr<GrpcServer>> StartServer(RoundHost* host,
                                                               const std::string& address) {
  GrpcServerOptions options;
  options.host = host;
  options.addresses = {address};
  return GrpcServer::Start(options);
}

inline std::unique_ptr<Client> Connect(const std::string& address) {
  ClientOptions options;
  options.address = address;
  auto client = Client::Make(options);
  ISTHMUS_CHECK(client.ok());
  return *std::move(client);
}

}  // namespace isthmus
