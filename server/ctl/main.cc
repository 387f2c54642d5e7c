// isthmusctl: the operator's command line. Exit codes:
//   0  done
//   1  the coordinator refused; its sentence is printed
//   2  wrong usage
//   3  the coordinator cannot be reached, or does not answer in time
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/limits.h"
#include "base/main_flags.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/whole_file.h"
#include "google/protobuf/util/json_util.h"
#include "server/ctl/client.h"
#include "server/ctl/commands.h"
#include "server/ctl/deeds.h"
#include "server/ctl/export.h"
#include "server/ctl/presets.h"
#include "server/ctl/render.h"
#include "server/version.h"
#include "transport/addresses.h"
#include "transport/client.h"
#include "transport/errors.h"

constexpr int64_t kNewestRound = -1;

ABSL_FLAG(std::string, server, "",
          "the coordinator, HOST:PORT; default: the variable ISTHMUS_SERVER, else 127.0.0.1:7070");
ABSL_FLAG(bool, json, false, "print the messages of the coordinator's services as JSON");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(10), "longest wait for an answer, such as 10s");
ABSL_FLAG(std::string, reason, "",
          "why, of 'nodes drain', 'nodes evict' and 'runs pause'; at most 256 bytes");
ABSL_FLAG(std::string, node, "", "the node of 'runs choose' whose state is right");
ABSL_FLAG(std::string, out, "", "the file that 'checkpoint export' writes");
ABSL_FLAG(int64_t, round, kNewestRound,
          "the snapshot of 'checkpoint export' and 'runs fork'; -1: the newest");
ABSL_FLAG(std::string, run, "", "the run of commands about a node; empty: the only one");
ABSL_FLAG(std::vector<std::string>, set, {},
          "fields of the spec that 'runs update' and 'runs fork' set, such as optimizer.lr=0.0005, "
          "by comma");
ABSL_FLAG(std::string, spec, "", "file with the whole spec of 'runs update' and 'runs fork'");
ABSL_FLAG(uint64_t, from_round, 0,
          "the first round that 'runs update' holds in; 0: the next one that has not opened");
ABSL_FLAG(bool, dry_run, false, "only say what 'runs update' would change");
ABSL_FLAG(int, limit, 20, "rounds that 'rounds list' shows");

namespace isthmus {
namespace {

constexpr int kExitRefused = 1;
constexpr int kExitUnreachable = 3;
constexpr char kServerVariable[] = "ISTHMUS_SERVER";
constexpr char kDefaultServer[] = "127.0.0.1:7070";
constexpr absl::Duration kTimeoutMax = absl::Hours(1);
constexpr int kLimitMax = 100000;

int Fail(int code, absl::string_view sentence) {
  std::fprintf(stderr, "isthmusctl: %s\n", std::string(sentence).c_str());
  return code;
}

std::string ServerAddress() {
  if (!absl::GetFlag(FLAGS_server).empty()) return absl::GetFlag(FLAGS_server);
  const char* variable = std::getenv(kServerVariable);
  return variable != nullptr && *variable != 0 ? variable : kDefaultServer;
}

absl::Status CheckFlags() {
  const absl::Duration timeout = absl::GetFlag(FLAGS_timeout);
  if (timeout < absl::Milliseconds(1) || timeout > kTimeoutMax) {
    return absl::InvalidArgumentError(absl::StrCat("--timeout is ", absl::FormatDuration(timeout),
                                                   "; it must be 1ms to ",
                                                   absl::FormatDuration(kTimeoutMax)));
  }
  if (absl::GetFlag(FLAGS_limit) < 1 || absl::GetFlag(FLAGS_limit) > kLimitMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--limit is ", absl::GetFlag(FLAGS_limit), "; it must be 1 to ", kLimitMax));
  }
  if (absl::GetFlag(FLAGS_round) < kNewestRound) {
    return absl::InvalidArgumentError(
        absl::StrCat("--round is ", absl::GetFlag(FLAGS_round),
                     "; give the round of a snapshot, 0 or more, or leave it out for the newest"));
  }
  for (const std::string& field : absl::GetFlag(FLAGS_set)) {
    ISTHMUS_RETURN_IF_ERROR(CheckText("--set", field));
  }
  ISTHMUS_RETURN_IF_ERROR(CheckText("--run", absl::GetFlag(FLAGS_run)));
  ISTHMUS_RETURN_IF_ERROR(CheckText("--node", absl::GetFlag(FLAGS_node)));
  return CheckText("--reason", absl::GetFlag(FLAGS_reason));
}

// Exit code and sentence for a call that failed.
int FailCall(const absl::Status& status, const std::string& address) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      if (!ReasonOf(status).empty()) return Fail(kExitRefused, status.message());  // it answered
      return Fail(kExitUnreachable,
                  absl::StrCat("cannot reach a coordinator at ", address, " (", status.message(),
                               "); does it run there? --server or ", kServerVariable,
                               " names another address"));
    case absl::StatusCode::kDeadlineExceeded:
      return Fail(kExitUnreachable,
                  absl::StrCat("no answer from ", address, " within ",
                               absl::FormatDuration(absl::GetFlag(FLAGS_timeout)),
                               "; the coordinator may be stopped or overloaded, or something else "
                               "listens there (--timeout waits longer)"));
    case absl::StatusCode::kUnimplemented:
      return Fail(kExitRefused,
                  absl::StrCat(address,
                               " does not know this call: it is an agent, or a coordinator "
                               "of an older version"));
    default:
      return Fail(kExitRefused, status.message());
  }
}

absl::Status Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  // A line of a watch must be seen when it happens.
  if (std::fflush(stdout) != 0) return absl::InternalError("cannot write to standard output");
  return absl::OkStatus();
}

absl::Status PrintJson(const google::protobuf::Message& message, bool pretty) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = pretty;
  options.always_print_primitive_fields = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) {
    return absl::InternalError("the answer cannot be written as JSON");
  }
  if (!pretty) text.push_back('\n');
  return Print(text);
}

template <typename Items>
std::vector<typename Items::value_type> AsVector(const Items& items) {
  return {items.begin(), items.end()};
}

absl::Status ShowRun(MonitorClient* client, const std::string& name) {
  ISTHMUS_ASSIGN_OR_RETURN(const v1::GetRunResponse run, client->GetRun(name));
  if (absl::GetFlag(FLAGS_json)) return PrintJson(run, /*pretty=*/true);
  ISTHMUS_ASSIGN_OR_RETURN(const v1::ListNodesResponse nodes, client->ListNodes(name));
  return Print(RunText(run.run(), AsVector(nodes.nodes())));
}

// Says what has happened, and how the run stands since.
template <typename Response>
absl::Status Done(MonitorClient* monitor, const std::string& name,
                  const absl::StatusOr<Response>& response, const std::string& text) {
  ISTHMUS_RETURN_IF_ERROR(response.status());
  if (absl::GetFlag(FLAGS_json)) return PrintJson(*response, /*pretty=*/true);
  ISTHMUS_RETURN_IF_ERROR(Print(text));
  ISTHMUS_ASSIGN_OR_RETURN(const v1::GetRunResponse run, monitor->GetRun(name));
  return Print(absl::StrCat("The coordinator says: ", run.run().waiting_for(), "\n"));
}

// The coordinator reads it, and knows what is wrong with it.
absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kRunSpecFileBytesMax + 1, '\0');  // one more than it takes
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  // The coordinator would not even see it.
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    ISTHMUS_RETURN_IF_ERROR(CheckText(absl::StrCat("line ", i + 1, " of '", path, "'"), lines[i]));
  }
  if (!text.empty()) return text;
  return absl::NotFoundError(absl::StrCat("'", path, "' cannot be read, or is empty"));
}

absl::Status Create(AdminClient* admin, MonitorClient* monitor, const Request& request) {
  ISTHMUS_ASSIGN_OR_RETURN(const std::string spec, ReadText(request.file));
  const absl::StatusOr<v1::CreateRunResponse> created = admin->CreateRun(spec);
  const std::string name = created.ok() ? created->spec().run() : "";
  return Done(monitor, name, created, created.ok() ? CreatedText(*created) : "");
}

absl::Status Fork(AdminClient* admin, MonitorClient* monitor, const Request& request) {
  v1::ForkRunRequest fork;
  fork.set_run(request.run);
  fork.set_name(request.name);
  if (absl::GetFlag(FLAGS_round) >= 0) {
    fork.set_round(static_cast<uint64_t>(absl::GetFlag(FLAGS_round)));
  }
  if (const std::string file = absl::GetFlag(FLAGS_spec); !file.empty()) {
    ISTHMUS_ASSIGN_OR_RETURN(*fork.mutable_spec(), ReadText(file));
  }
  for (const std::string& field : absl::GetFlag(FLAGS_set)) fork.add_set(field);
  for (const std::string& field : request.fields) fork.add_set(field);
  const absl::StatusOr<v1::ForkRunResponse> forked = admin->ForkRun(fork);
  return Done(monitor, request.name, forked, forked.ok() ? ForkedText(request.run, *forked) : "");
}

absl::Status Update(AdminClient* admin, MonitorClient* monitor, const Request& request) {
  v1::UpdateRunRequest update;
  update.set_run(request.run);
  if (const std::string file = absl::GetFlag(FLAGS_spec); !file.empty()) {
    ISTHMUS_ASSIGN_OR_RETURN(*update.mutable_spec(), ReadText(file));
  }
  for (const std::string& field : absl::GetFlag(FLAGS_set)) update.add_set(field);
  for (const std::string& field : request.fields) update.add_set(field);
  update.set_from_round(absl::GetFlag(FLAGS_from_round));
  update.set_dry_run(absl::GetFlag(FLAGS_dry_run));
  const absl::StatusOr<v1::UpdateRunResponse> updated = admin->UpdateRun(update);
  return Done(monitor, request.run, updated,
              updated.ok() ? UpdatedText(request.run, *updated, update.dry_run()) : "");
}

template <typename NodeRequest>
NodeRequest AboutNode(const Request& request) {
  NodeRequest about;
  about.set_run(request.run);
  about.set_node(request.node);
  return about;
}

template <typename NodeRequest>
NodeRequest AboutNode(const Request& request, const std::string& reason) {
  NodeRequest about = AboutNode<NodeRequest>(request);
  about.set_reason(reason);
  return about;
}

absl::Status Choose(AdminClient* admin, MonitorClient* monitor, const Request& request) {
  v1::ChooseStateRequest choice;
  choice.set_run(request.run);
  choice.set_node(absl::GetFlag(FLAGS_node));
  if (choice.node().empty()) {
    return absl::InvalidArgumentError(
        "--node is not set; 'runs choose' wants the node whose state is right, and 'runs show' "
        "says who has what");
  }
  const absl::StatusOr<v1::ChooseStateResponse> chosen = admin->ChooseState(choice);
  return Done(monitor, request.run, chosen, chosen.ok() ? ChosenText(request.run, *chosen) : "");
}

absl::Status Change(AdminClient* admin, MonitorClient* monitor, const Request& request) {
  const std::string& node = request.node;
  const std::string reason = absl::GetFlag(FLAGS_reason);
  switch (request.command) {
    case Command::kNodesDrain: {
      const auto drained = admin->DrainNode(AboutNode<v1::DrainNodeRequest>(request, reason));
      return Done(monitor, request.run, drained, drained.ok() ? DrainedText(node, *drained) : "");
    }
    case Command::kNodesEvict:
      return Done(monitor, request.run,
                  admin->EvictNode(AboutNode<v1::EvictNodeRequest>(request, reason)),
                  EvictedText(node));
    case Command::kNodesAdmit:
      return Done(monitor, request.run, admin->AdmitNode(AboutNode<v1::AdmitNodeRequest>(request)),
                  AdmittedText(node));
    case Command::kRunsCreate:
      return Create(admin, monitor, request);
    case Command::kRunsFork:
      return Fork(admin, monitor, request);
    case Command::kRunsUpdate:
      return Update(admin, monitor, request);
    case Command::kRunsPause: {
      const absl::StatusOr<v1::PauseRunResponse> paused = admin->PauseRun(request.run, reason);
      return Done(monitor, request.run, paused,
                  paused.ok() ? PausedText(request.run, *paused) : "");
    }
    case Command::kRunsResume:
      return Done(monitor, request.run, admin->ResumeRun(request.run), ResumedText(request.run));
    case Command::kRunsChoose:
      return Choose(admin, monitor, request);
    default: {
      const absl::StatusOr<v1::CheckpointRunResponse> asked = admin->CheckpointRun(request.run);
      return Done(monitor, request.run, asked, asked.ok() ? CheckpointText(*asked) : "");
    }
  }
}

bool Changes(Command command) {
  return command == Command::kNodesDrain || command == Command::kNodesEvict ||
         command == Command::kNodesAdmit || command == Command::kRunsCheckpoint ||
         command == Command::kRunsCreate || command == Command::kRunsFork ||
         command == Command::kRunsUpdate || command == Command::kRunsPause ||
         command == Command::kRunsResume || command == Command::kRunsChoose;
}

// Not within --timeout, which is for short answers: it may be much, and tells how far it is.
absl::Status Export(const std::string& address, const Request& request) {
  ExportOptions options;
  options.run = request.run;
  options.path = absl::GetFlag(FLAGS_out);
  if (absl::GetFlag(FLAGS_round) >= 0) {
    options.round = static_cast<uint64_t>(absl::GetFlag(FLAGS_round));
  }
  ISTHMUS_RETURN_IF_ERROR(CheckCanWrite(options.path));
  const bool shows = isatty(fileno(stderr)) == 1;
  options.progress = [shows](uint64_t bytes, uint64_t of) {
    if (shows) {
      std::fprintf(stderr, "\r%llu of %llu MiB", static_cast<unsigned long long>(bytes >> 20),
                   static_cast<unsigned long long>(of >> 20));
    }
  };
  ClientOptions client_options;
  client_options.address = address;
  ISTHMUS_ASSIGN_OR_RETURN(const auto client, Client::Make(client_options));
  const absl::StatusOr<v1::SnapshotFacts> facts = ExportSnapshot(client.get(), options);
  if (shows) std::fprintf(stderr, "\n");
  ISTHMUS_RETURN_IF_ERROR(facts.status());
  if (absl::GetFlag(FLAGS_json)) return PrintJson(*facts, /*pretty=*/true);
  return Print(absl::StrCat("wrote ", options.path, ": the parameters after round ", facts->round(),
                            " of run ", facts->run(), " (state ", HexPrefix(facts->state_sha256()),
                            ", checked). Trainers begin from it with --start_file.\n"));
}

absl::Status Show(MonitorClient* client, const Request& request) {
  const bool json = absl::GetFlag(FLAGS_json);
  const absl::TimeZone zone = absl::LocalTimeZone();
  switch (request.command) {
    case Command::kRunsShow:
      return ShowRun(client, request.run);
    case Command::kRunsList: {
      ISTHMUS_ASSIGN_OR_RETURN(const v1::ListRunsResponse runs, client->ListRuns());
      return json ? PrintJson(runs, true) : Print(RunsText(AsVector(runs.runs())));
    }
    case Command::kNodesList: {
      ISTHMUS_ASSIGN_OR_RETURN(const v1::ListNodesResponse nodes, client->ListNodes(request.run));
      return json ? PrintJson(nodes, true) : Print(NodesText(AsVector(nodes.nodes())));
    }
    case Command::kRoundsList: {
      ISTHMUS_ASSIGN_OR_RETURN(const v1::ListRoundsResponse rounds,
                               client->ListRounds(request.run, absl::GetFlag(FLAGS_limit)));
      return json ? PrintJson(rounds, true) : Print(RoundsText(AsVector(rounds.rounds()), zone));
    }
    case Command::kRoundsWatch: {
      absl::Status printed;
      ISTHMUS_RETURN_IF_ERROR(
          client->WatchRounds(request.run, [&](const v1::WatchRoundsResponse& change) {
            if (printed.ok()) {
              printed = json ? PrintJson(change, false)
                             : Print(absl::StrCat(ChangeText(change, zone), "\n"));
            }
          }));
      return printed;
    }
    default:
      break;
  }
  return absl::OkStatus();
}

absl::Status Health(const std::string& address, int timeout_ms) {
  ISTHMUS_ASSIGN_OR_RETURN(const auto health, CheckHealth(address, timeout_ms));
  using Response = grpc::health::v1::HealthCheckResponse;
  const std::string status = Response::ServingStatus_Name(health.status());
  ISTHMUS_RETURN_IF_ERROR(absl::GetFlag(FLAGS_json) ? PrintJson(health, /*pretty=*/true)
                                                    : Print(absl::StrCat(status, "\n")));
  if (health.status() == Response::SERVING) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(address, " says ", status, ": it is about to end, or its disk is full; ",
                   "'isthmusctl runs show' says why while it answers"));
}

absl::Status Execute(const std::string& address, const Request& request) {
  if (request.command == Command::kCheckpointExport) return Export(address, request);
  const auto timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(absl::GetFlag(FLAGS_timeout)));
  if (request.command == Command::kHealth) return Health(address, timeout_ms);
  ISTHMUS_ASSIGN_OR_RETURN(const auto monitor, MonitorClient::Make(address, timeout_ms));
  if (!Changes(request.command)) return Show(monitor.get(), request);
  ISTHMUS_ASSIGN_OR_RETURN(const auto admin, AdminClient::Make(address, timeout_ms));
  return Change(admin.get(), monitor.get(), request);
}

int Main(int argc, char** argv) {
  const Program program = {"isthmusctl", kServerVersion, HelpText()};
  const bool short_help = std::any_of(
      argv + 1, argv + argc, [](const char* argument) { return std::string(argument) == "-h"; });
  if (short_help) return Print(HelpText()).ok() ? 0 : kExitRefused;
  const std::vector<std::string> words = ReadFlagsAndWords(program, argc, argv);
  const absl::StatusOr<Request> request = ReadRequest(words);
  if (!request.ok()) return Fail(kExitFlags, request.status().message());
  if (const absl::Status flags = CheckFlags(); !flags.ok()) {
    return Fail(kExitFlags, flags.message());
  }
  if (request->command == Command::kHelp) return Print(HelpText()).ok() ? 0 : kExitRefused;
  if (request->command == Command::kVersion) {
    return Print(absl::StrCat("isthmusctl ", kServerVersion, "\n")).ok() ? 0 : kExitRefused;
  }
  if (request->command == Command::kPresets) return Print(PresetsText()).ok() ? 0 : kExitRefused;
  if (request->command == Command::kCheckpointExport && absl::GetFlag(FLAGS_out).empty()) {
    return Fail(kExitFlags, "--out is empty; name the file to write, such as model.safetensors");
  }
  const std::string address = ServerAddress();
  if (const auto parsed = ParseAddress(address); !parsed.ok()) {
    return Fail(kExitFlags, absl::StrCat("--server: ", parsed.status().message()));
  }
  const absl::Status done = Execute(address, *request);
  return done.ok() ? 0 : FailCall(done, address);
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) { return isthmus::Main(argc, argv); }
