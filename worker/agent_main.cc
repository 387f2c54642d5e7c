// The agent's process: flags, signals, exit codes.
//   0  the run is finished and its ranks have left (--exit_when_finished), or SIGTERM or SIGINT
//   1  it cannot work: address or state folder in use, refused by the coordinator
//   2  flags
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "transport/addresses.h"
#include "transport/service.h"
#include "worker/agent.h"

ABSL_FLAG(std::string, node, "", "name of this node, as the run's spec names it");
ABSL_FLAG(std::string, coordinator, "", "HOST:PORT of the coordinator");
ABSL_FLAG(uint32_t, ranks, 1, "number of trainer processes of this node");
ABSL_FLAG(std::string, listen, "", "unix:PATH of the socket for the ranks");
ABSL_FLAG(std::string, state_dir, "",
          "folder for the node's secret; without it a restarted agent cannot take its node over");
ABSL_FLAG(bool, exit_when_finished, false,
          "end when the run is finished (or refuses this node) and the "
          "ranks have left; ranks that fail before may be started again");
ABSL_FLAG(std::string, log_level, "info", "debug, info, warning or error");
ABSL_FLAG(std::string, ready_file, "",
          "file that gets the addresses served, one a line, as soon as they are");

namespace isthmus {
namespace {

constexpr int kPollMs = 100;
// The whole of a stop: leaving upstream, draining, and room below five seconds.
constexpr unsigned kStopSecondsMax = 4;

// The flag library ends the process with 1 for a wrong flag and for --help; 2 tells wrong flags
// from other failures.
constexpr int kWrongFlags = 2;
constexpr int kFlagsRead = -1;
int flags_exit_code = kWrongFlags;

void ExitWithFlagsCode() {
  if (flags_exit_code == kFlagsRead) return;
  std::cout.flush();  // _Exit does not
  std::fflush(nullptr);
  std::_Exit(flags_exit_code);
}

int Fail(int code, absl::string_view sentence) {
  std::fprintf(stderr, "agent: %s\n", std::string(sentence).c_str());
  return code;
}

absl::Status CheckFlags(const std::vector<char*>& positional) {
  if (positional.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", positional[1], "' is no flag; flags begin with --"));
  }
  for (const auto& [name, value] : {std::make_pair("node", absl::GetFlag(FLAGS_node)),
                                    std::make_pair("coordinator", absl::GetFlag(FLAGS_coordinator)),
                                    std::make_pair("listen", absl::GetFlag(FLAGS_listen))}) {
    if (value.empty()) return absl::InvalidArgumentError(absl::StrCat("--", name, " is missing"));
  }
  static const std::set<std::string>& levels =
      *new std::set<std::string>{"debug", "info", "warning", "error"};
  if (levels.count(absl::GetFlag(FLAGS_log_level)) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("--log_level is '",
                                                   absl::GetFlag(FLAGS_log_level),
                                                   "'; it is debug, info, warning or error"));
  }
  if (!absl::StartsWith(absl::GetFlag(FLAGS_listen), "unix:")) {
    return absl::InvalidArgumentError(absl::StrCat("--listen is '", absl::GetFlag(FLAGS_listen),
                                                   "'; ranks reach their agent over unix:PATH"));
  }
  if (const auto address = ParseAddress(absl::GetFlag(FLAGS_listen)); !address.ok()) {
    return address.status();
  }
  return absl::OkStatus();
}

absl::Status WriteReadyFile(const std::string& path, const std::vector<std::string>& addresses) {
  if (path.empty()) return absl::OkStatus();
  // Whoever waits for the file must not see half of it.
  const std::string temporary = absl::StrCat(path, ".new");
  std::ofstream file(temporary);
  for (const std::string& address : addresses) file << address << "\n";
  file.close();
  if (file && std::rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot write --ready_file ", path));
}

// Waits for a signal or for the agent's own end.
void WaitForEnd(const sigset_t& signals, Agent* agent) {
  const timespec poll = {0, kPollMs * 1000000};
  while (!agent->WaitEnded(0)) {
    if (sigtimedwait(&signals, nullptr, &poll) > 0) return;
  }
}

// A coordinator that does not answer must not keep us: the lease ends without our word, too.
void StopInTime() {
  static std::string* const socket =
      new std::string(ParseAddress(absl::GetFlag(FLAGS_listen))->unix_path);
  struct sigaction action = {};
  action.sa_handler = [](int) {
    unlink(socket->c_str());
    _exit(0);
  };
  sigaction(SIGALRM, &action, nullptr);
  alarm(kStopSecondsMax);
}

int Serve(const sigset_t& signals) {
  AgentOptions options;
  options.node = absl::GetFlag(FLAGS_node);
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.ranks = absl::GetFlag(FLAGS_ranks);
  options.state_dir = absl::GetFlag(FLAGS_state_dir);
  options.exit_when_finished = absl::GetFlag(FLAGS_exit_when_finished);
  absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Start(options);
  if (!agent.ok()) {
    const bool flags = agent.status().code() == absl::StatusCode::kInvalidArgument;
    return Fail(flags ? kWrongFlags : 1, agent.status().message());
  }
  GrpcServerOptions server_options;
  server_options.host = agent->get();
  server_options.addresses = {absl::GetFlag(FLAGS_listen)};
  absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start(server_options);
  if (!server.ok()) return Fail(1, server.status().message());
  (*server)->SetServing(true);
  LogInfo("serving", {{"node", options.node},
                      {"address", absl::GetFlag(FLAGS_listen)},
                      {"ranks", absl::StrCat(options.ranks)},
                      {"coordinator", options.coordinator}});
  if (const auto ready = WriteReadyFile(absl::GetFlag(FLAGS_ready_file), (*server)->addresses());
      !ready.ok()) {
    return Fail(1, ready.message());
  }
  WaitForEnd(signals, agent->get());
  const absl::Status ended = (*agent)->ended();
  StopInTime();
  (*agent)->Stop("agent stopping");
  (*server)->Shutdown(kDrainMs);
  if (!ended.ok()) return Fail(1, ended.message());
  LogInfo("stopped");
  return 0;
}

int Main(int argc, char** argv) {
  absl::SetProgramUsageMessage("runs the agent of one node: between its trainers and the run");
  absl::FlagsUsageConfig usage;
  usage.version_string = [] {
    flags_exit_code = 0;
    return absl::StrCat("isthmus agent ", kAgentVersion, "\n");
  };
  absl::SetFlagsUsageConfig(usage);
  for (int i = 1; i < argc; ++i) {
    if (absl::StartsWith(argv[i], "--help")) flags_exit_code = 0;
  }
  std::atexit(ExitWithFlagsCode);
  const std::vector<char*> positional = absl::ParseCommandLine(argc, argv);
  flags_exit_code = kFlagsRead;
  if (const absl::Status flags = CheckFlags(positional); !flags.ok()) {
    return Fail(kWrongFlags, flags.message());
  }
  StartLog(absl::StrCat("agent ", absl::GetFlag(FLAGS_node)), absl::GetFlag(FLAGS_log_level));
  // Blocked in all threads that are made from here on; WaitForEnd takes them one at a time.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return Serve(signals);
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) { return isthmus::Main(argc, argv); }
