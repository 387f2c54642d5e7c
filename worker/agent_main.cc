// The agent's process: flags, signals, exit codes.
//   0  the run is finished and its ranks have left (--exit_when_finished), or SIGTERM or SIGINT
//   1  it cannot work: address or state folder in use, refused by the coordinator
//   2  flags
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/heaps.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/main_flags.h"
#include "base/status_macros.h"
#include "transport/addresses.h"
#include "transport/service.h"
#include "worker/agent.h"

ABSL_FLAG(std::string, node, "", "name of this node, as the run's spec names it");
ABSL_FLAG(std::string, run, "", "the run to take part in; empty: the only one of the coordinator");
ABSL_FLAG(std::string, coordinator, "", "HOST:PORT of the coordinator");
ABSL_FLAG(uint32_t, ranks, 1, "number of trainer processes of this node");
ABSL_FLAG(
    std::string, listen, "",
    "where the ranks reach it: unix:PATH, and HOST:PORT for those on other hosts of the node; "
    "several with commas between");
ABSL_FLAG(bool, allow_plaintext, false,
          "serve the ranks without encryption on addresses that other machines can reach: inside "
          "the node's own network only");
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

int Fail(int code, absl::string_view sentence) {
  std::fprintf(stderr, "agent: %s\n", std::string(sentence).c_str());
  return code;
}

std::vector<std::string> Listened() {
  return absl::StrSplit(absl::GetFlag(FLAGS_listen), ',', absl::SkipEmpty());
}

absl::Status CheckFlags() {
  for (const auto& [name, value] : {std::make_pair("node", absl::GetFlag(FLAGS_node)),
                                    std::make_pair("coordinator", absl::GetFlag(FLAGS_coordinator)),
                                    std::make_pair("listen", absl::GetFlag(FLAGS_listen))}) {
    if (value.empty()) return absl::InvalidArgumentError(absl::StrCat("--", name, " is missing"));
  }
  ISTHMUS_RETURN_IF_ERROR(CheckLogLevel(absl::GetFlag(FLAGS_log_level)));
  for (const std::string& text : Listened()) {
    const auto address = ParseAddress(text);
    if (!address.ok()) return address.status();
    if (!IsLocal(*address) && !absl::GetFlag(FLAGS_allow_plaintext)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--listen is '", text,
          "', which other machines can reach, and ranks speak without "
          "encryption; give an address of the node's own network with --allow_plaintext, or "
          "unix:PATH where all ranks are on this machine"));
    }
  }
  return absl::OkStatus();
}

// Waits for a signal or for the agent's own end.
void WaitForEnd(const sigset_t& signals, Agent* agent) {
  const timespec poll = {0, kPollMs * 1000000};
  FreePages pages;
  while (!agent->WaitEnded(0)) {
    pages.ReturnAtTimes();
    if (sigtimedwait(&signals, nullptr, &poll) > 0) return;
  }
}

// A coordinator that does not answer must not keep us: the lease ends without our word, too.
void StopInTime() {
  static auto* const sockets = new std::vector<std::string>();
  for (const std::string& text : Listened()) sockets->push_back(ParseAddress(text)->unix_path);
  struct sigaction action = {};
  action.sa_handler = [](int) {
    for (const std::string& socket : *sockets) {
      if (!socket.empty()) unlink(socket.c_str());
    }
    _exit(0);
  };
  sigaction(SIGALRM, &action, nullptr);
  alarm(kStopSecondsMax);
}

int Serve(const sigset_t& signals) {
  AgentOptions options;
  options.node = absl::GetFlag(FLAGS_node);
  options.run = absl::GetFlag(FLAGS_run);
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.ranks = absl::GetFlag(FLAGS_ranks);
  options.state_dir = absl::GetFlag(FLAGS_state_dir);
  options.exit_when_finished = absl::GetFlag(FLAGS_exit_when_finished);
  absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Start(options);
  if (!agent.ok()) {
    const bool flags = agent.status().code() == absl::StatusCode::kInvalidArgument;
    return Fail(flags ? kExitFlags : 1, agent.status().message());
  }
  GrpcServerOptions server_options;
  server_options.host = agent->get();
  server_options.addresses = Listened();
  server_options.allow_plaintext_beyond_loopback = absl::GetFlag(FLAGS_allow_plaintext);
  absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start(server_options);
  if (!server.ok()) return Fail(1, server.status().message());
  (*server)->SetServing(true);
  LogInfo("serving", {{"node", options.node},
                      {"address", absl::StrJoin((*server)->addresses(), ",")},
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
  UseHeaps(1);
  const Program program = {"agent", kAgentVersion,
                           "runs the agent of one node: between its trainers and the run"};
  absl::Status flags = ReadFlags(program, argc, argv);
  if (flags.ok()) flags = CheckFlags();
  if (!flags.ok()) return Fail(kExitFlags, flags.message());
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
