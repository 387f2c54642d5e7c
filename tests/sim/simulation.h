// A run of one seed from its start to its end, and the verdict.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/plain_residual.h"
#include "tests/sim/plan.h"

namespace isthmus::sim {

struct Verdict {
  std::string failure;  // empty: all is well
  uint64_t trace_hash = 0;
  int64_t simulated_ms = 0;
  uint64_t rounds = 0;
  uint64_t included = 0, left_out = 0, dropped = 0;  // contributions
  uint64_t coordinator_lives = 0, trainer_lives = 0;
  uint64_t orders = 0;   // of operators, that were heard
  uint64_t fetched = 0;  // snapshots that nodes started from
  // Bits of nodes' states; nodes that were healed of it; choices of an operator.
  uint64_t flipped = 0, healed = 0, choices = 0;
  std::string state;  // hash of the replicated state at the end
  // Of the relative error of: inputs = included + residuals + what was dropped; over all values.
  // Only where beta is 1 as nearly as can be.
  double sum_error = 0;
  double loss = 0;  // mean square distance of the parameters from where all gradients lead
};

Verdict Simulate(const Plan& plan, bool verbose = false);

}  // namespace isthmus::sim
