// Runs seeds of the simulator:
//
//   simulate --seeds 1000 --first 1      stops at the first that fails, and says how to see it
//   simulate --seed 17                   one, with a trace for people
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/log.h"
#include "tests/sim/plan.h"
#include "tests/sim/simulation.h"

namespace isthmus::sim {
namespace {

struct Flags {
  uint64_t seeds = 1000;
  uint64_t first = 1;
  uint64_t seed = 0;  // 0: many
  bool accounting = false;
  bool keep_going = false;
  uint64_t bug = 0;
};

int Usage() {
  std::fprintf(stderr,
               "usage: simulate [--seeds N] [--first S] [--seed S] [--accounting] [--keep_going]\n"
               "                [--bug 1..4]\n");
  return 2;
}

bool Parse(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--accounting") {
      flags->accounting = true;
      continue;
    }
    if (name == "--keep_going") {
      flags->keep_going = true;
      continue;
    }
    if (i + 1 == argc) return false;
    char* end = nullptr;
    const uint64_t value = std::strtoull(argv[++i], &end, 10);
    if (end == argv[i] || *end != '\0') return false;
    if (name == "--seeds") {
      flags->seeds = value;
    } else if (name == "--first") {
      flags->first = value;
    } else if (name == "--seed") {
      flags->seed = value;
    } else if (name == "--bug" && value <= static_cast<uint64_t>(Bug::kForgetLeftOut)) {
      flags->bug = value;
    } else {
      return false;
    }
  }
  return true;
}

int One(uint64_t seed, const PlanOptions& options) {
  const Plan plan = MakePlan(seed, options);
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), Describe(plan).c_str());
  const Verdict verdict = Simulate(plan, /*verbose=*/true);
  std::printf("seed %llu: %s; trace %016llx, %.1f s simulated, %llu rounds\n",
              static_cast<unsigned long long>(seed),
              verdict.failure.empty() ? "all is well" : verdict.failure.c_str(),
              static_cast<unsigned long long>(verdict.trace_hash),
              static_cast<double>(verdict.simulated_ms) / 1000.0,
              static_cast<unsigned long long>(verdict.rounds));
  return verdict.failure.empty() ? 0 : 1;
}

int Many(const Flags& flags, const PlanOptions& options) {
  uint64_t included = 0, left_out = 0, dropped = 0, rounds = 0, failed = 0;
  uint64_t coordinators = 0, trainers = 0, fetched = 0;
  double simulated_s = 0, sum_error = 0;
  for (uint64_t seed = flags.first; seed < flags.first + flags.seeds; ++seed) {
    const Verdict verdict = Simulate(MakePlan(seed, options));
    included += verdict.included;
    left_out += verdict.left_out;
    dropped += verdict.dropped;
    rounds += verdict.rounds;
    coordinators += verdict.coordinator_lives;
    trainers += verdict.trainer_lives;
    fetched += verdict.fetched;
    simulated_s += static_cast<double>(verdict.simulated_ms) / 1000.0;
    sum_error = std::max(sum_error, verdict.sum_error);
    if (verdict.failure.empty()) continue;
    ++failed;
    std::printf("seed %llu fails: %s\n  to see it: simulate --seed %llu%s\n",
                static_cast<unsigned long long>(seed), verdict.failure.c_str(),
                static_cast<unsigned long long>(seed), flags.accounting ? " --accounting" : "");
    std::fflush(stdout);
    if (!flags.keep_going) break;
  }
  std::printf(
      "seeds from %llu on: %llu; failed %llu; rounds %llu; contributions included %llu, left out "
      "%llu, dropped %llu; coordinators started %llu, trainers %llu; started from snapshots %llu; "
      "%.0f s simulated",
      static_cast<unsigned long long>(flags.first), static_cast<unsigned long long>(flags.seeds),
      static_cast<unsigned long long>(failed), static_cast<unsigned long long>(rounds),
      static_cast<unsigned long long>(included), static_cast<unsigned long long>(left_out),
      static_cast<unsigned long long>(dropped), static_cast<unsigned long long>(coordinators),
      static_cast<unsigned long long>(trainers), static_cast<unsigned long long>(fetched),
      simulated_s);
  if (flags.accounting) std::printf("; sums agree within %.2e", sum_error);
  std::printf("\n");
  return failed == 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  Flags flags;
  if (!Parse(argc, argv, &flags)) return Usage();
  StartLog("simulate", flags.seed != 0 ? "info" : "error");
  PlanOptions options;
  options.accounting = flags.accounting;
  options.bug = static_cast<Bug>(flags.bug);
  return flags.seed != 0 ? One(flags.seed, options) : Many(flags, options);
}

}  // namespace
}  // namespace isthmus::sim

int main(int argc, char** argv) { return isthmus::sim::Main(argc, argv); }
