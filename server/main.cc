// The coordinator's process: flags, signals, exit codes.
//   0  SIGTERM or SIGINT, or the run is finished and its nodes have left (--exit_when_finished)
//   1  it cannot work: address in use, --ready_file not writable, a state folder that cannot be
//   used
//      or holds another run; --check_store found damage
//   2  flags, or a run spec that does not hold
//   3  the disk failed while the state was being written (kExitDisk): nothing was answered after
//      that, and a start on a sound disk goes on from what is there
//   4  it no longer takes new connections (transport/self_probe.h); a start makes that good
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/descriptors.h"
#include "base/heaps.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/main_flags.h"
#include "server/admin_service.h"
#include "server/contribution_budget.h"
#include "server/monitor_service.h"
#include "server/reflection.h"
#include "server/rocks_store.h"
#include "server/runs.h"
#include "server/store.h"
#include "server/version.h"
#include "spec/run_spec.h"
#include "transport/self_probe.h"
#include "transport/service.h"

ABSL_FLAG(std::string, run_spec, "",
          "file with the spec (text form of isthmus.v1.RunSpec) of a run that is there from the "
          "beginning. Empty: those that operators create (isthmusctl runs create)");
ABSL_FLAG(std::string, state_dir, "",
          "folder that keeps the runs through restarts and crashes; a coordinator that is started "
          "on it again goes on with them. Empty: in memory only");
ABSL_FLAG(uint64_t, keep_rounds, isthmus::kStoredRoundsDefault,
          "updates of so many last rounds are kept for nodes that are behind or start again from a "
          "checkpoint (more in deterministic mode: back to the oldest checkpoint)");
ABSL_FLAG(uint64_t, keep_bytes, isthmus::kStoredBytesDefault,
          "the same in bytes; whichever is less. In memory at most 512 MiB");
ABSL_FLAG(uint64_t, contribution_memory_mib, isthmus::kContributionMemoryMibDefault,
          "contributions to open rounds stay in memory up to this, for each run; beyond it they go "
          "to a spool file");
ABSL_FLAG(uint64_t, spool_mib, isthmus::kSpoolMibDefault,
          "size of the spool file, in the run's folder below --state_dir (without one there is "
          "none); beyond it nodes are told to try again");
ABSL_FLAG(
    std::string, check_store, "",
    "verify the state folder DIR, say what is in it, and end: 0 where all of it holds, else 1");
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
constexpr int kExitNoListener = 4;
// Each connection and each file of the state is one; a node has three connections.
constexpr uint64_t kDescriptorsWanted = 65536;
// How long --exit_when_finished waits for nodes that still fetch the last update.
constexpr int64_t kLingerMs = 10000;

int Fail(int code, absl::string_view sentence) {
  std::fprintf(stderr, "coordinator: %s\n", std::string(sentence).c_str());
  return code;
}

absl::Status CheckFlags() {
  if (absl::GetFlag(FLAGS_run_spec).empty() && absl::GetFlag(FLAGS_state_dir).empty()) {
    return absl::InvalidArgumentError(
        "--run_spec is missing: the file that describes the run; or --state_dir, which keeps the "
        "runs that operators create");
  }
  if (absl::GetFlag(FLAGS_keep_rounds) == 0 || absl::GetFlag(FLAGS_keep_bytes) == 0) {
    return absl::InvalidArgumentError(
        "--keep_rounds and --keep_bytes are at least 1; the last update is always kept");
  }
  const uint64_t memory = absl::GetFlag(FLAGS_contribution_memory_mib);
  const uint64_t spool = absl::GetFlag(FLAGS_spool_mib);
  if (memory == 0 || memory > kBudgetMibMax || spool > kBudgetMibMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--contribution_memory_mib is ", memory, " and --spool_mib ", spool,
                     "; the first is 1 to ", kBudgetMibMax, ", the second 0 to that"));
  }
  return CheckLogLevel(absl::GetFlag(FLAGS_log_level));
}

// Waits for a signal, with --exit_when_finished for the end of the run, or until no connection is
// taken any more. Meanwhile health says whether contributions are taken.
void WaitForEnd(const sigset_t& signals, const Runs& runs, const SelfProbe& probe,
                GrpcServer* server) {
  const timespec poll = {0, kPollMs * 1000000};
  const MonotonicClock clock;
  int64_t finished_ms = -1;
  bool serves = true;
  FreePages pages;
  while (sigtimedwait(&signals, nullptr, &poll) <= 0 && !probe.dead()) {
    pages.ReturnAtTimes();
    if (runs.store_full() == serves) {
      serves = !serves;
      server->SetServing(serves);
      LogInfo(serves ? "serving again" : "not serving: a disk is full");
    }
    if (!absl::GetFlag(FLAGS_exit_when_finished) || !runs.finished()) continue;
    if (finished_ms < 0) finished_ms = clock.NowMs();
    if (runs.live_nodes() == 0 || clock.NowMs() - finished_ms >= kLingerMs) return;
  }
}

StoreLimits LimitsOfFlags() {
  StoreLimits limits;
  limits.rounds_max = absl::GetFlag(FLAGS_keep_rounds);
  limits.bytes_max = absl::GetFlag(FLAGS_keep_bytes);
  return limits;
}

absl::StatusOr<std::unique_ptr<Store>> OpenStore(const std::string& dir) {
  StoreLimits limits = LimitsOfFlags();
  if (!dir.empty()) {
    LogInfo("the run is kept on disk", {{"state_dir", dir}});
    return OpenRocksStore({dir, limits});
  }
  limits.bytes_max = std::min<uint64_t>(limits.bytes_max, kKeptUpdateBytesMax);
  LogWarning("the run is kept in memory only: it ends with this process; --state_dir keeps it");
  return MakeMemoryStore(limits);
}

int CheckStore(const std::string& dir) {
  const absl::StatusOr<StoreReport> report = CheckRocksStore({dir, StoreLimits()});
  if (!report.ok()) return Fail(1, report.status().message());
  for (const std::string& line : report->lines) std::printf("%s\n", line.c_str());
  if (!report->status.ok()) {
    std::printf("%s is damaged: %s\n", dir.c_str(), std::string(report->status.message()).c_str());
    return 1;
  }
  std::printf("%s is sound\n", dir.c_str());
  return 0;
}

std::string WaitingFor(const Runs& runs) {
  const std::vector<Coordinator*> all = runs.All();
  if (all.size() == 1) return all.front()->WaitingFor();
  return all.empty() ? "an operator to create a run" : absl::StrCat(all.size(), " runs");
}

int Serve(const sigset_t& signals, absl::optional<v1::RunSpec> spec) {
  RunsOptions options;
  options.spec = std::move(spec);
  options.state_dir = absl::GetFlag(FLAGS_state_dir);
  options.open_store = OpenStore;
  options.contributions = {absl::GetFlag(FLAGS_contribution_memory_mib) << 20,
                           absl::GetFlag(FLAGS_spool_mib) << 20};
  const absl::StatusOr<std::unique_ptr<Runs>> runs = Runs::Start(std::move(options));
  if (!runs.ok()) return Fail(1, runs.status().message());

  const uint64_t descriptors = RaiseDescriptorLimit(kDescriptorsWanted);
  EnableReflection();
  MonitorServer monitor(runs->get());
  GrpcServerOptions server_options;
  server_options.more.push_back(monitor.added());
  AdminServer admin(runs->get());
  server_options.more.push_back(admin.added());
  server_options.host = runs->get();
  server_options.addresses = absl::StrSplit(absl::GetFlag(FLAGS_listen), ',', absl::SkipEmpty());
  server_options.allow_plaintext_beyond_loopback = absl::GetFlag(FLAGS_allow_plaintext);
  absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start(server_options);
  if (!server.ok()) {
    const bool flags = absl::IsInvalidArgument(server.status());
    return Fail(flags ? kExitFlags : 1, server.status().message());
  }
  absl::optional<SelfProbe> probe;
  probe.emplace(SelfProbeOptions{(*server)->addresses()});
  LogInfo("serving", {{"address", absl::StrJoin((*server)->addresses(), ",")},
                      {"version", kServerVersion},
                      {"descriptors_max", absl::StrCat(descriptors)},
                      {"waiting_for", WaitingFor(**runs)}});
  if (const auto ready = WriteReadyFile(absl::GetFlag(FLAGS_ready_file), (*server)->addresses());
      !ready.ok()) {
    return Fail(1, ready.message());
  }
  WaitForEnd(signals, **runs, *probe, server->get());
  const bool is_closed = probe->dead();
  if (is_closed) {
    LogError("no longer takes new connections; ending, so that a supervisor starts it again",
             {{"why", std::string(probe->why().message())}});
  }
  probe.reset();  // its own address closes from here on
  LogInfo("stopping", {{"drain_ms_max", absl::StrCat(kDrainMs)}});
  (*server)->SetServing(false);
  (*runs)->Stop();  // ends the watches, which would not end by themselves
  (*server)->Shutdown(kDrainMs);
  LogInfo("stopped");
  return is_closed ? kExitNoListener : 0;
}

int Main(int argc, char** argv) {
  UseHeaps(2);
  ReturnLargeBlocks();
  const Program program = {"coordinator", kServerVersion,
                           "coordinates one training run between its nodes"};
  absl::Status flags = ReadFlags(program, argc, argv);
  if (flags.ok() && !absl::GetFlag(FLAGS_check_store).empty()) {
    return CheckStore(absl::GetFlag(FLAGS_check_store));
  }
  if (flags.ok()) flags = CheckFlags();
  if (!flags.ok()) return Fail(kExitFlags, flags.message());
  absl::optional<v1::RunSpec> spec;
  if (const std::string file = absl::GetFlag(FLAGS_run_spec); !file.empty()) {
    const absl::StatusOr<v1::RunSpec> read = ReadRunSpecFile(file);
    if (!read.ok()) return Fail(kExitFlags, read.status().message());
    spec = *read;
  }
  StartLog("coordinator", absl::GetFlag(FLAGS_log_level));
  // Blocked in all threads that are made from here on; WaitForEnd takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return Serve(signals, std::move(spec));
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) { return isthmus::Main(argc, argv); }
