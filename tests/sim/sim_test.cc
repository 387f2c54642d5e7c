// Seeds of the simulator (R42). `bazel run tests/sim:simulate -- --seeds N --first S` runs any
// number of others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/log.h"
#include "tests/sim/plan.h"
#include "tests/sim/simulation.h"

namespace isthmus::sim {
namespace {

constexpr uint64_t kSeeds = 1000;

// Set by ISTHMUS_TEST_SEED to try others.
uint64_t FirstSeed() {
  const char* given = std::getenv("ISTHMUS_TEST_SEED");
  return given == nullptr ? 1 : std::strtoull(given, nullptr, 10);
}

class SimTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { StartLog("sim_test", "off"); }
};

std::string HowToSeeIt(uint64_t seed) {
  return "to see it: bazel run tests/sim:simulate -- --seed " + std::to_string(seed);
}

TEST_F(SimTest, AThousandSeeds) {
  const uint64_t first = FirstSeed();
  RecordProperty("first_seed", std::to_string(first));
  uint64_t included = 0, left_out = 0, dropped = 0, orders = 0, fetched = 0;
  uint64_t flipped = 0, healed = 0, choices = 0;
  for (uint64_t seed = first; seed < first + kSeeds; ++seed) {
    const Verdict verdict = Simulate(MakePlan(seed));
    ASSERT_EQ(verdict.failure, "") << "seed " << seed << "\n" << HowToSeeIt(seed);
    included += verdict.included;
    left_out += verdict.left_out;
    dropped += verdict.dropped;
    orders += verdict.orders;
    fetched += verdict.fetched;
    flipped += verdict.flipped;
    healed += verdict.healed;
    choices += verdict.choices;
  }
  std::printf(
      "seeds from %llu on: contributions included %llu, left out %llu, dropped %llu; "
      "drained, evicted, admitted, paused, resumed %llu; started from snapshots %llu\n",
      static_cast<unsigned long long>(first), static_cast<unsigned long long>(included),
      static_cast<unsigned long long>(left_out), static_cast<unsigned long long>(dropped),
      static_cast<unsigned long long>(orders), static_cast<unsigned long long>(fetched));
  std::printf("bits flipped %llu, nodes healed %llu, choices of an operator %llu\n",
              static_cast<unsigned long long>(flipped), static_cast<unsigned long long>(healed),
              static_cast<unsigned long long>(choices));
  // The worlds are rough enough that every outcome is common.
  EXPECT_GT(included, 10 * kSeeds);
  EXPECT_GT(left_out, kSeeds / 2);
  EXPECT_GT(dropped, kSeeds / 100);
  EXPECT_GT(orders, kSeeds / 2);
  EXPECT_GT(fetched, kSeeds / 20);
  EXPECT_GT(flipped, kSeeds / 10);
  EXPECT_GT(healed, kSeeds / 20);
  EXPECT_GT(choices, kSeeds / 100);
}

TEST_F(SimTest, ASeedIsOneHistory) {
  for (uint64_t seed = FirstSeed(); seed < FirstSeed() + 20; ++seed) {
    const Verdict once = Simulate(MakePlan(seed)), again = Simulate(MakePlan(seed));
    EXPECT_EQ(once.trace_hash, again.trace_hash) << "seed " << seed;
    EXPECT_EQ(once.state, again.state) << "seed " << seed;
  }
  EXPECT_NE(Simulate(MakePlan(1)).trace_hash, Simulate(MakePlan(2)).trace_hash);
}

// In deterministic mode a run with crashes ends in the very state of one without.
TEST_F(SimTest, DeterministicModeEndsWhereAnUndisturbedRunEnds) {
  PlanOptions undisturbed;
  undisturbed.faults = false;
  int compared = 0;
  for (uint64_t seed = FirstSeed(); compared < 100; ++seed) {
    const Plan plan = MakePlan(seed);
    if (!plan.replays()) continue;
    ++compared;
    const Verdict rough = Simulate(plan), calm = Simulate(MakePlan(seed, undisturbed));
    ASSERT_EQ(calm.failure, "") << "seed " << seed << " without faults";
    EXPECT_EQ(rough.state, calm.state) << "seed " << seed << "\n" << HowToSeeIt(seed);
  }
}

// R44: what faults do to the numbers. The band is what seeds differ by without any.
TEST_F(SimTest, ARunWithFaultsLearnsAsMuch) {
  constexpr int kRuns = 20;
  double calm = 0, rough = 0, worst_calm = 0, worst_rough = 0;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    const Verdict without = Simulate(MakeToyPlan(seed, /*faults=*/false));
    const Verdict with = Simulate(MakeToyPlan(seed, /*faults=*/true));
    ASSERT_EQ(without.failure, "") << "toy run " << seed;
    ASSERT_EQ(with.failure, "") << "toy run " << seed << " with faults";
    calm += without.loss / kRuns;
    rough += with.loss / kRuns;
    worst_calm = std::max(worst_calm, without.loss);
    worst_rough = std::max(worst_rough, with.loss);
  }
  std::printf("loss without faults %.5f (at most %.5f), with faults %.5f (at most %.5f)\n", calm,
              worst_calm, rough, worst_rough);
  EXPECT_LE(rough, worst_calm);
  EXPECT_LE(worst_rough, 2 * worst_calm);
}

// Bugs that were put in on purpose are found, each by the invariant that it breaks.
struct Planted {
  Bug bug;
  const char* name;
  const char* found_as;
};

class PlantedBugTest : public testing::TestWithParam<Planted> {};

TEST_P(PlantedBugTest, IsFound) {
  PlanOptions options;
  options.bug = GetParam().bug;
  constexpr uint64_t kTries = 60;
  uint64_t found = 0;
  for (uint64_t seed = 1; seed <= kTries; ++seed) {
    const std::string failure = Simulate(MakePlan(seed, options)).failure;
    if (failure.find(GetParam().found_as) != std::string::npos) ++found;
  }
  std::printf("%s: found by %llu of %llu seeds\n", GetParam().name,
              static_cast<unsigned long long>(found), static_cast<unsigned long long>(kTries));
  EXPECT_GE(found, 1u);
}

INSTANTIATE_TEST_SUITE_P(
    Bugs, PlantedBugTest,
    testing::Values(Planted{Bug::kPublishBeforePersist, "PublishBeforePersist", "I4: "},
                    Planted{Bug::kCountTwice, "CountTwice", "I1: "},
                    Planted{Bug::kSettleByReceipt, "SettleByReceipt",
                            "before its round is durable"},
                    Planted{Bug::kForgetLeftOut, "ForgetLeftOut", "differs from the plain one"}),
    [](const testing::TestParamInfo<Planted>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace isthmus::sim
