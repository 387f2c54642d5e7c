// The ledger over random fault sequences. Each run checks on its way that every contribution is
// named once (tests/history/checker.h) and that each node's residual has the bits of the plain
// model (tests/sim/plain_residual.h) after everything that changes it; here the sums as well.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "base/log.h"
#include "tests/sim/plan.h"
#include "tests/sim/simulation.h"

namespace isthmus::sim {
namespace {

TEST(AccountingTest, InputsAreUpdatesAndResidual) {
  StartLog("accounting_test", "off");
  PlanOptions options;
  options.accounting = true;
  constexpr uint64_t kSequences = 1000;
  double worst = 0;
  uint64_t included = 0, left_out = 0, dropped = 0;
  for (uint64_t seed = 1; seed <= kSequences; ++seed) {
    const Verdict verdict = Simulate(MakePlan(seed, options));
    ASSERT_EQ(verdict.failure, "")
        << "seed " << seed << "\nto see it: bazel run tests/sim:simulate -- --accounting --seed "
        << seed;
    EXPECT_LE(verdict.sum_error, 1e-5) << "seed " << seed;
    worst = std::max(worst, verdict.sum_error);
    included += verdict.included;
    left_out += verdict.left_out;
    dropped += verdict.dropped;
  }
  std::printf(
      "%llu sequences: contributions included %llu, left out %llu, dropped %llu; sums agree "
      "within %.1e\n",
      static_cast<unsigned long long>(kSequences), static_cast<unsigned long long>(included),
      static_cast<unsigned long long>(left_out), static_cast<unsigned long long>(dropped), worst);
}

}  // namespace
}  // namespace isthmus::sim
