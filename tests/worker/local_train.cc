// Trains a run on real text inside this process, ranks and nodes as threads, without agent and
// coordinator: to look at learning and at the cost of a step.
//
//   local_train RUN_SPEC TEXT_FILE RANKS_PER_NODE [SAMPLE_BYTES]

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "spec/run_spec.h"
#include "tests/worker/local_run.h"
#include "worker/process_group.h"
#include "worker/trainer.h"

namespace isthmus {
namespace {

void TrainNode(LocalRun* run, const std::string& node, int ranks, bool quiet,
               const TrainerOptions& common) {
  auto groups = StartThreadProcessGroups(ranks);
  if (!groups.ok()) return;
  std::vector<std::thread> threads;
  for (auto& group : *groups) {
    threads.emplace_back([&, mine = group.get()] {
      auto client = run->Client(node, mine->rank());
      TrainerOptions options = common;
      options.group = mine;
      options.client = client.get();
      options.quiet = quiet;
      auto trainer = Trainer::Make(options);
      const absl::Status status = trainer.ok() ? (*trainer)->Run() : trainer.status();
      if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

int Main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: local_train RUN_SPEC TEXT_FILE RANKS_PER_NODE [SAMPLE_BYTES]\n");
    return 2;
  }
  const auto spec = ReadRunSpecFile(argv[1]);
  if (!spec.ok()) {
    std::fprintf(stderr, "%s\n", spec.status().ToString().c_str());
    return 1;
  }
  SetTorchThreads(1);
  const int ranks = std::atoi(argv[3]);
  std::map<std::string, int> nodes;
  for (const auto& node : spec->nodes()) nodes[node.name()] = ranks;
  LocalRun run(*spec, nodes);
  TrainerOptions options;
  options.data = argv[2];
  options.sample_bytes = argc > 4 ? std::atoi(argv[4]) : 0;
  std::vector<std::thread> threads;
  for (const auto& node : nodes) {
    const bool quiet = node.first != nodes.begin()->first;
    threads.emplace_back([&, node, quiet] { TrainNode(&run, node.first, ranks, quiet, options); });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) { return isthmus::Main(argc, argv); }
