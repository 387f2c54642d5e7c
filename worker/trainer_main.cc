// The trainer: one process a rank of a node. What it trains, and with which numbers, it learns from
// its agent. `trainer --eval_only CHECKPOINT DATA` evaluates what was trained. Exit codes:
//   0  the run is finished, or SIGTERM or SIGINT
//   1  it cannot train: a file, the agent's refusal, a lost rank
//   2  flags or environment

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/heaps.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/main_flags.h"
#include "base/status_macros.h"
#include "worker/accelerator.h"
#include "worker/eval.h"
#include "worker/process_group.h"
#include "worker/rank_client.h"
#include "worker/token_data.h"
#include "worker/trainer.h"

ABSL_FLAG(std::string, agent, "", "address of this node's agent: unix:PATH or HOST:PORT");
ABSL_FLAG(std::string, data, "",
          "data files and patterns of them, comma-separated; the same on all nodes");
ABSL_FLAG(std::string, heldout_data, "",
          "files of held-out tokens, the same on all nodes; default: the last part of --data");
ABSL_FLAG(int, rank, -1, "this process's rank in its node; default: the variable RANK");
ABSL_FLAG(int, ranks, -1, "ranks of this node; default: the variable WORLD_SIZE");
ABSL_FLAG(std::string, master_addr, "",
          "host of rank 0, where the ranks meet; default: the variable MASTER_ADDR");
ABSL_FLAG(int, master_port, -1, "port there; default: the variable MASTER_PORT");
ABSL_FLAG(std::string, start_file, "",
          "checkpoint (folder or safetensors) to start from; default: made from the run's seed");
ABSL_FLAG(std::string, save, "",
          "FOLDER/ or FILE.safetensors for the trained model (rank 0 writes it)");
ABSL_FLAG(std::string, summary_file, "", "JSON file for the result (rank 0 writes it)");
ABSL_FLAG(std::string, metrics_file, "", "file for a JSON line a round (rank 0 writes it)");
ABSL_FLAG(std::string, checkpoint_dir, "",
          "folder for this node's checkpoints; trainers started again go on from the newest");
ABSL_FLAG(int64_t, checkpoint_every, 0, "rounds between two checkpoints; default: 100");
ABSL_FLAG(int, sample, 0, "bytes of text to generate at the end");
ABSL_FLAG(std::string, sample_prompt, "The ", "what the text begins with");
ABSL_FLAG(int, threads, 1, "threads to compute with");
ABSL_FLAG(std::string, device, "",
          "cpu or cuda; default: cuda where this program has it and a GPU is there");
ABSL_FLAG(int, micro_batch, 0,
          "sequences a rank computes at a time, their gradients added up; 0: all of a step's");
// Without a run.
ABSL_FLAG(std::string, eval_only, "",
          "checkpoint to evaluate on --heldout_data, on --data or on the files named after it; "
          "prints one JSON line; needs no agent");
ABSL_FLAG(std::string, format, "", "with --eval_only: bytes (default), uint16 or uint32");
ABSL_FLAG(uint32_t, heldout_permille, 0,
          "with --eval_only: evaluate the last thousandths of the data; default: all of it");
ABSL_FLAG(uint32_t, eval_sequences, 0,
          "with --eval_only: sequences, at equal distances; default: as many as fit");
ABSL_FLAG(std::string, log_level, "info", "debug, info, warning or error");

namespace isthmus {
namespace {

constexpr char kVersion[] = "0.1.0";
// Less than a minute of rounds lost where a round takes half a second.
constexpr uint64_t kCheckpointEveryDefault = 100;

std::atomic<bool> stop_requested{false};

// A step of a large model, or a rank that hangs, must not keep the process: the alarm ends it.
void OnAlarm(int) { _exit(0); }

void OnStop(int) {
  stop_requested.store(true);
  alarm(kTrainerStopMs / 1000);
}

void HandleSignals() {
  struct sigaction action = {};
  action.sa_handler = OnStop;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  action.sa_handler = OnAlarm;
  sigaction(SIGALRM, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

// A flag's value, or that of the environment variable that launchers set.
absl::Status FromEnvironment(const char* flag, const char* variable, int* value) {
  if (*value >= 0) return absl::OkStatus();
  const char* text = std::getenv(variable);
  if (text == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("neither --", flag, " nor the variable ", variable, " is set"));
  }
  if (!absl::SimpleAtoi(text, value) || *value < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the variable ", variable, " is '", text, "'; it must be a number"));
  }
  return absl::OkStatus();
}

absl::Status ReadGroupFlags(ProcessGroupOptions* options) {
  options->rank = absl::GetFlag(FLAGS_rank);
  options->ranks = absl::GetFlag(FLAGS_ranks);
  ISTHMUS_RETURN_IF_ERROR(FromEnvironment("rank", "RANK", &options->rank));
  ISTHMUS_RETURN_IF_ERROR(FromEnvironment("ranks", "WORLD_SIZE", &options->ranks));
  if (options->ranks == 1) return absl::OkStatus();
  options->master_port = absl::GetFlag(FLAGS_master_port);
  ISTHMUS_RETURN_IF_ERROR(FromEnvironment("master_port", "MASTER_PORT", &options->master_port));
  options->master_addr = absl::GetFlag(FLAGS_master_addr);
  const char* address = std::getenv("MASTER_ADDR");
  if (options->master_addr.empty() && address != nullptr) options->master_addr = address;
  if (options->master_addr.empty()) {
    return absl::InvalidArgumentError("neither --master_addr nor the variable MASTER_ADDR is set");
  }
  return absl::OkStatus();
}

absl::Status CheckThreads() {
  if (absl::GetFlag(FLAGS_threads) >= 1 && absl::GetFlag(FLAGS_threads) <= kTrainerThreadsMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--threads is ", absl::GetFlag(FLAGS_threads),
                                                 "; it must be 1 to ", kTrainerThreadsMax));
}

// What says how to train has no place where nothing is trained: who gives it expects something.
absl::Status CheckNoRunFlags() {
  const std::pair<const char*, bool> given[] = {
      {"agent", !absl::GetFlag(FLAGS_agent).empty()},
      {"rank", absl::GetFlag(FLAGS_rank) >= 0},
      {"ranks", absl::GetFlag(FLAGS_ranks) >= 0},
      {"start_file", !absl::GetFlag(FLAGS_start_file).empty()},
      {"save", !absl::GetFlag(FLAGS_save).empty()},
      {"checkpoint_dir", !absl::GetFlag(FLAGS_checkpoint_dir).empty()},
      {"summary_file", !absl::GetFlag(FLAGS_summary_file).empty()},
      {"metrics_file", !absl::GetFlag(FLAGS_metrics_file).empty()},
      {"sample", absl::GetFlag(FLAGS_sample) != 0},
      {"micro_batch", absl::GetFlag(FLAGS_micro_batch) != 0},
      {"device", !absl::GetFlag(FLAGS_device).empty() && absl::GetFlag(FLAGS_device) != "cpu"},
  };
  for (const auto& [flag, is_given] : given) {
    if (!is_given) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, " is for a run; --eval_only evaluates a checkpoint, on the CPU, and ends"));
  }
  return absl::OkStatus();
}

// `words`: arguments that are no flags; a shell makes several of one pattern.
absl::StatusOr<EvalOptions> ReadEvalFlags(const std::vector<std::string>& words) {
  ISTHMUS_RETURN_IF_ERROR(CheckThreads());
  ISTHMUS_RETURN_IF_ERROR(CheckNoRunFlags());
  EvalOptions options;
  options.checkpoint = absl::GetFlag(FLAGS_eval_only);
  options.data = absl::GetFlag(FLAGS_data);
  if (!words.empty()) {
    if (!options.data.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--data names files, and so does '", words.front(), "'; give one of them"));
    }
    options.data = absl::StrJoin(words, ",");
  }
  if (const std::string held_out = absl::GetFlag(FLAGS_heldout_data); !held_out.empty()) {
    options.data = held_out;
    options.flag = "--heldout_data";
  }
  if (options.data.empty()) {
    return absl::InvalidArgumentError(
        "--eval_only has no data; name files after the checkpoint, or as --data");
  }
  if (const std::string format = absl::GetFlag(FLAGS_format); !format.empty()) {
    ISTHMUS_ASSIGN_OR_RETURN(options.format, ParseTokenFormat(format));
  }
  if (const uint32_t permille = absl::GetFlag(FLAGS_heldout_permille); permille != 0) {
    if (permille > 1000) {
      return absl::InvalidArgumentError(
          absl::StrCat("--heldout_permille is ", permille, "; it must be 1 to 1000"));
    }
    options.heldout_permille = permille;
  }
  options.eval_sequences = absl::GetFlag(FLAGS_eval_sequences);
  if (options.eval_sequences > kSequencesMax) {
    return absl::InvalidArgumentError(absl::StrCat("--eval_sequences is ", options.eval_sequences,
                                                   "; it must be at most ", kSequencesMax));
  }
  return options;
}

int EvalOnly(const std::vector<std::string>& words) {
  const absl::StatusOr<EvalOptions> options = ReadEvalFlags(words);
  if (!options.ok()) {
    std::fprintf(stderr, "trainer: %s\n", std::string(options.status().message()).c_str());
    return kExitFlags;
  }
  SetTorchThreads(absl::GetFlag(FLAGS_threads));
  const absl::StatusOr<EvalResult> result = Evaluate(*options);
  if (!result.ok()) {
    std::fprintf(stderr, "trainer: %s\n", std::string(result.status().message()).c_str());
    return 1;
  }
  std::printf("%s\n", EvalJson(*result).c_str());
  return 0;
}

absl::Status CheckFlags(const std::vector<std::string>& words) {
  if (!words.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", words.front(), "' is no flag; flags begin with --"));
  }
  if (!absl::GetFlag(FLAGS_format).empty() || absl::GetFlag(FLAGS_heldout_permille) != 0 ||
      absl::GetFlag(FLAGS_eval_sequences) != 0) {
    return absl::InvalidArgumentError(
        "--format, --heldout_permille and --eval_sequences are for --eval_only; a run has them in "
        "its spec, as data.format and so on");
  }
  if (absl::GetFlag(FLAGS_agent).empty()) {
    return absl::InvalidArgumentError("--agent is not set; it is unix:PATH or HOST:PORT");
  }
  if (absl::GetFlag(FLAGS_data).empty()) {
    return absl::InvalidArgumentError("--data is not set; name one or more data files");
  }
  ISTHMUS_RETURN_IF_ERROR(CheckThreads());
  if (absl::GetFlag(FLAGS_micro_batch) < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--micro_batch is ", absl::GetFlag(FLAGS_micro_batch), "; it must be 0 or more"));
  }
  const bool has_folder = !absl::GetFlag(FLAGS_checkpoint_dir).empty();
  const int64_t every = absl::GetFlag(FLAGS_checkpoint_every);
  if (every < 0 || every > static_cast<int64_t>(kStepsMax) || (every > 0 && !has_folder)) {
    return absl::InvalidArgumentError(absl::StrCat("--checkpoint_every is ", every,
                                                   "; it must be 0 (the default) to ", kStepsMax,
                                                   ", and wants a --checkpoint_dir"));
  }
  if (absl::GetFlag(FLAGS_sample) < 0 || absl::GetFlag(FLAGS_sample) > kSampleBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("--sample is ", absl::GetFlag(FLAGS_sample),
                                                   "; it must be 0 to ", kSampleBytesMax));
  }
  if (absl::GetFlag(FLAGS_sample_prompt).empty()) {
    return absl::InvalidArgumentError("--sample_prompt is empty; it must have a byte");
  }
  return CheckLogLevel(absl::GetFlag(FLAGS_log_level));
}

// The GPU with the number LOCAL_RANK, or without that variable the number of the rank.
absl::StatusOr<Accelerator> ReadDeviceFlag(int rank) {
  int local_rank = std::getenv("LOCAL_RANK") == nullptr ? rank : -1;
  ISTHMUS_RETURN_IF_ERROR(FromEnvironment("rank", "LOCAL_RANK", &local_rank));
  return ChooseAccelerator(absl::GetFlag(FLAGS_device), local_rank);
}

// Why it was stopped: a signal to one rank ends all of them.
const char* StopReason() {
  return stop_requested.load() ? "stopped by signal" : "another rank of this node was stopped";
}

// For tests alone (docs/faults.md): after this round a bit of rank 0's state is flipped.
constexpr char kTestFlipVariable[] = "ISTHMUS_TEST_FLIP_ROUND";

TrainerOptions ReadTrainerOptions(int rank) {
  TrainerOptions options;
  const char* flip = std::getenv(kTestFlipVariable);
  if (flip != nullptr && rank == 0 && !absl::SimpleAtoi(flip, &options.test_flip_round)) {
    LogWarning("no number of a round", {{kTestFlipVariable, flip}});
  }
  options.data = absl::GetFlag(FLAGS_data);
  options.heldout_data = absl::GetFlag(FLAGS_heldout_data);
  options.start_file = absl::GetFlag(FLAGS_start_file);
  options.save_file = absl::GetFlag(FLAGS_save);
  options.summary_file = absl::GetFlag(FLAGS_summary_file);
  options.metrics_file = absl::GetFlag(FLAGS_metrics_file);
  options.checkpoint_dir = absl::GetFlag(FLAGS_checkpoint_dir);
  const int64_t every = absl::GetFlag(FLAGS_checkpoint_every);
  options.checkpoint_every = every > 0 ? static_cast<uint64_t>(every) : kCheckpointEveryDefault;
  options.sample_bytes = absl::GetFlag(FLAGS_sample);
  options.sample_prompt = absl::GetFlag(FLAGS_sample_prompt);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.micro_batch = absl::GetFlag(FLAGS_micro_batch);
  options.stop = [] { return stop_requested.load(); };
  return options;
}

absl::Status Train(ProcessGroupOptions group_options, const Accelerator& accelerator) {
  group_options.upgrade = accelerator.upgrade;
  TrainerOptions options = ReadTrainerOptions(group_options.rank);
  options.device = accelerator.device;
  ISTHMUS_RETURN_IF_ERROR(CheckTrainerFiles(options, group_options.rank));
  RankClientOptions client_options;
  client_options.agent = absl::GetFlag(FLAGS_agent);
  client_options.stop = options.stop;
  // The same wait, met again, is worth no second line.
  std::string logged;
  client_options.on_waiting = [&logged](const std::string& sentence) {
    if (sentence.empty() || sentence == logged) return;
    LogInfo("waiting", {{"for", sentence}});
    logged = sentence;
  };
  ISTHMUS_ASSIGN_OR_RETURN(auto client, RankClient::Make(client_options));
  if (group_options.ranks > 1) {
    LogInfo(absl::StrCat("rank ", group_options.rank, " of ", group_options.ranks,
                         " waits for the other ranks at ", group_options.master_addr, ":",
                         group_options.master_port, " (MASTER_ADDR:MASTER_PORT)"));
  }
  ISTHMUS_ASSIGN_OR_RETURN(auto group, StartProcessGroup(group_options));

  options.group = group.get();
  options.client = client.get();
  ISTHMUS_ASSIGN_OR_RETURN(auto trainer, Trainer::Make(options));
  const absl::Status status = trainer->Run();
  if (stop_requested.load() || absl::IsCancelled(status)) {
    client->Leave(StopReason());
  } else if (!status.ok()) {
    // The run need not wait for this node's lease to end.
    client->Leave(std::string(status.message().substr(0, kReasonBytesMax)));
  }
  return status;
}

int Main(int argc, char** argv) {
  UseHeaps(1);
  const Program program = {"trainer", kVersion,
                           "one rank of a node: trains the model of its agent's run"};
  ProcessGroupOptions group;
  const std::vector<std::string> words = ReadFlagsAndWords(program, argc, argv);
  if (!absl::GetFlag(FLAGS_eval_only).empty()) return EvalOnly(words);
  absl::Status flags = CheckFlags(words);
  if (flags.ok()) flags = ReadGroupFlags(&group);
  if (flags.ok()) flags = CheckProcessGroupOptions(group);
  absl::StatusOr<Accelerator> accelerator = Accelerator();
  if (flags.ok()) accelerator = ReadDeviceFlag(group.rank);
  if (flags.ok()) flags = accelerator.status();
  if (!flags.ok()) {
    std::fprintf(stderr, "trainer: %s\n", std::string(flags.message()).c_str());
    return kExitFlags;
  }
  StartLog(absl::StrCat("trainer-", group.rank), absl::GetFlag(FLAGS_log_level));
  HandleSignals();
  SetTorchThreads(absl::GetFlag(FLAGS_threads));
  const absl::Status status = Train(group, *accelerator);
  if (status.ok()) return 0;
  if (stop_requested.load() || absl::IsCancelled(status)) {
    LogInfo(StopReason());
    return 0;
  }
  std::fprintf(stderr, "trainer: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) { return isthmus::Main(argc, argv); }
