// A coordinator's real process, and a host that speaks to it over a real connection.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/limits.h"
#include "google/protobuf/text_format.h"
#include "isthmus/v1/coordinator.pb.h"
#include "tests/server/fakes.h"
#include "transport/client.h"
#include "transport/round_host.h"

namespace isthmus {

inline constexpr char kBinary[] = "server/coordinator";
inline constexpr int64_t kWaitMsMax = 20000;

inline int64_t NowMs() { return MonotonicClock().NowMs(); }

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A folder that goes away with the test.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "isthmus-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string File(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// A child process; killed if the test ends before it.
class Process {
 public:
  Process(const std::vector<std::string>& arguments, const std::string& log) {
    std::vector<char*> argv;
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.data()));
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      if (std::freopen(log.c_str(), "w", stderr) == nullptr) _exit(126);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Process() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  bool Running() { return Poll() == kRunning; }
  void Signal(int signal) const { kill(pid_, signal); }
  pid_t pid() const { return pid_; }
  // Its exit code; -1 when it did not end in time or not by itself.
  int WaitForExit(int64_t ms_max = kWaitMsMax) {
    const int64_t end_ms = NowMs() + ms_max;
    while (NowMs() < end_ms) {
      if (const int code = Poll(); code != kRunning) return code;
      poll(nullptr, 0, 5);
    }
    return -1;
  }

 private:
  static constexpr int kRunning = -2;
  int Poll() {
    int status = 0;
    if (pid_ < 0 || waitpid(pid_, &status, WNOHANG) == 0) return pid_ < 0 ? -1 : kRunning;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  pid_t pid_;
};

// A coordinator that serves on a port of its own choice.
class Served {
 public:
  explicit Served(const v1::RunSpec& spec, std::vector<std::string> more = {})
      : more_(std::move(more)) {
    std::string text;
    google::protobuf::TextFormat::PrintToString(spec, &text);
    std::ofstream(folder_.File("run.txtpb")) << text;
    Start();
  }
  // Kills it and starts it again, at the address it had.
  void Restart() {
    process.reset();
    std::filesystem::remove(folder_.File("ready"));
    Start();
  }
  std::string Log() const { return ReadFile(folder_.File("log")); }

  std::unique_ptr<Process> process;
  std::string address;

 private:
  void Start() {
    std::vector<std::string> arguments = {kBinary, "--run_spec=" + folder_.File("run.txtpb"),
                                          "--listen=" + (address.empty() ? "127.0.0.1:0" : address),
                                          "--ready_file=" + folder_.File("ready")};
    arguments.insert(arguments.end(), more_.begin(), more_.end());
    process = std::make_unique<Process>(arguments, folder_.File("log"));
    const int64_t end_ms = NowMs() + kWaitMsMax;
    while (NowMs() < end_ms && process->Running()) {
      address = ReadFile(folder_.File("ready"));
      if (!address.empty()) {
        address.pop_back();  // the line break
        return;
      }
      poll(nullptr, 0, 5);
    }
    ADD_FAILURE() << "the coordinator does not serve: " << Log();
  }

  const std::vector<std::string> more_;
  Folder folder_;
};

// Speaks to a served coordinator through the client, in the shape FakeNode wants.
class RemoteHost final : public RoundHost {
 public:
  explicit RemoteHost(const std::string& address) {
    ClientOptions options;
    options.address = address;
    auto made = Client::Make(options);
    EXPECT_TRUE(made.ok()) << made.status();
    client_ = *std::move(made);
  }
  ~RemoteHost() override {
    client_->Cancel();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::StatusOr<v1::JoinRunResponse> JoinRun(const v1::JoinRunRequest& request) override {
    return client_->JoinRun(request);
  }
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request) override {
    return client_->Heartbeat(request);
  }
  absl::StatusOr<v1::LeaveRunResponse> LeaveRun(const v1::LeaveRunRequest& request) override {
    return client_->LeaveRun(request);
  }
  absl::StatusOr<std::shared_ptr<WatchQueue>> Watch(
      const v1::WatchUpdatesRequest& request) override {
    const auto queue = std::make_shared<WatchQueue>(kWatchQueueEventsMax);
    threads_.emplace_back([this, request, queue] {
      queue->Close(client_->Watch(request, [&](v1::WatchUpdatesResponse& event) {
        queue->Push(std::make_shared<v1::WatchUpdatesResponse>(std::move(event)));
        return absl::OkStatus();
      }));
    });
    return queue;
  }
  void WatchEnded(const v1::WatchUpdatesRequest&, const std::shared_ptr<WatchQueue>&) override {}
  absl::StatusOr<std::unique_ptr<SubmissionSink>> BeginSubmit(
      const v1::SubmitHeader& header) override {
    return std::make_unique<Sink>(client_.get(), header);
  }

 private:
  class Sink final : public SubmissionSink {
   public:
    Sink(Client* client, const v1::SubmitHeader& header) : client_(client), header_(header) {}
    absl::Status AddPiece(std::string piece) override {
      pieces_.push_back(std::move(piece));
      return absl::OkStatus();
    }
    absl::StatusOr<v1::SubmitResponse> End(const v1::SubmitEnd& end) override {
      std::vector<const std::string*> pieces;
      for (const std::string& piece : pieces_) pieces.push_back(&piece);
      return client_->Submit(header_, pieces, end);
    }

   private:
    Client* client_;
    v1::SubmitHeader header_;
    std::vector<std::string> pieces_;
  };

  std::unique_ptr<Client> client_;
  std::vector<std::thread> threads_;
};

}  // namespace isthmus
