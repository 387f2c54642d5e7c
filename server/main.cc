// The coordinator's process: flags, signals, exit codes.
//   0  SIGTERM or SIGINT, or the run is finished and its nodes have left (--exit_when_finished)
//   1  it cannot work: address in use, --ready_file not writable
//   2  flags, or a run spec that does not hold
#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/main_flags.h"
#include "server/coordinator.h"
#include "server/monitor_service.h"
#include "server/reflection.h"
#include "server/store.h"
#include "server/version.h"
#include "spec/run_spec.h"
#include "transport/service.h"

ABSL_FLAG(std::string, run_spec, "", "file with the run's spec (text form of isthmus.v1.RunSpec)");
ABSL_FLAG(std::string, listen, "127.0.0.1:7070",
          "HOST:PORT to serve on, several with commas between; port 0: any free one");
ABSL_FLAG(bool, allow_plaintext, false,
          "serve without encryption on addresses that other machines can reach");
ABSL_FLAG(bool, exit_when_finished, false,
          "end when the run is finished and all nodes have left, at most 10 s after it");
ABSL_FLAG(std::string, log_level, "info", "debug, info, warning or error");
ABSL_FLAG(std::string, ready_file, "",
          "file that gets the addresses served, one a line, as soon as they are");

namespace isthmus {
namespace {

constexpr int kPollMs = 100;
// How long --exit_when_finished waits for nodes that still fetch the last update.
constexpr int64_t kLingerMs = 10000;

int Fail(int code, absl::string_view sentence) {
  std::fprintf(stderr, "coordinator: %s\n", std::string(sentence).c_str());
  return code;
}

absl::Status CheckFlags() {
  if (absl::GetFlag(FLAGS_run_spec).empty()) {
    return absl::InvalidArgumentError("--run_spec is missing: the file that describes the run");
  }
  return CheckLogLevel(absl::GetFlag(FLAGS_log_level));
}

// Waits for a signal, or with --exit_when_finished for the end of the run.
void WaitForEnd(const sigset_t& signals, const Coordinator& coordinator) {
  const timespec poll = {0, kPollMs * 1000000};
  const MonotonicClock clock;
  int64_t finished_ms = -1;
  while (sigtimedwait(&signals, nullptr, &poll) <= 0) {
    if (!absl::GetFlag(FLAGS_exit_when_finished) || !coordinator.finished()) continue;
    if (finished_ms < 0) finished_ms = clock.NowMs();
    if (coordinator.live_nodes() == 0 || clock.NowMs() - finished_ms >= kLingerMs) return;
  }
}

int Serve(const sigset_t& signals, v1::RunSpec spec) {
  CoordinatorOptions options;
  options.spec = std::move(spec);
  options.store = MakeMemoryStore(kKeptUpdateBytesMax);
  absl::StatusOr<std::unique_ptr<Coordinator>> coordinator = Coordinator::Start(std::move(options));
  if (!coordinator.ok()) return Fail(1, coordinator.status().message());

  EnableReflection();
  MonitorServer monitor(coordinator->get());
  GrpcServerOptions server_options;
  server_options.more.push_back(monitor.added());
  server_options.host = coordinator->get();
  server_options.addresses = absl::StrSplit(absl::GetFlag(FLAGS_listen), ',', absl::SkipEmpty());
  server_options.allow_plaintext_beyond_loopback = absl::GetFlag(FLAGS_allow_plaintext);
  absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start(server_options);
  if (!server.ok()) {
    const bool flags = absl::IsInvalidArgument(server.status());
    return Fail(flags ? kExitFlags : 1, server.status().message());
  }
  LogInfo("serving", {{"address", absl::StrJoin((*server)->addresses(), ",")},
                      {"version", kServerVersion},
                      {"waiting_for", (*coordinator)->WaitingFor()}});
  if (const auto ready = WriteReadyFile(absl::GetFlag(FLAGS_ready_file), (*server)->addresses());
      !ready.ok()) {
    return Fail(1, ready.message());
  }
  WaitForEnd(signals, **coordinator);
  LogInfo("stopping", {{"drain_ms_max", absl::StrCat(kDrainMs)}});
  (*server)->SetServing(false);
  (*coordinator)->Stop();  // ends the watches, which would not end by themselves
  (*server)->Shutdown(kDrainMs);
  LogInfo("stopped");
  return 0;
}

int Main(int argc, char** argv) {
  const Program program = {"coordinator", kServerVersion,
                           "coordinates one training run between its nodes"};
  absl::Status flags = ReadFlags(program, argc, argv);
  if (flags.ok()) flags = CheckFlags();
  if (!flags.ok()) return Fail(kExitFlags, flags.message());
  absl::StatusOr<v1::RunSpec> spec = ReadRunSpecFile(absl::GetFlag(FLAGS_run_spec));
  if (!spec.ok()) return Fail(kExitFlags, spec.status().message());
  StartLog("coordinator", absl::GetFlag(FLAGS_log_level));
  // Blocked in all threads that are made from here on; WaitForEnd takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return Serve(signals, *std::move(spec));
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) { return isthmus::Main(argc, argv); }
