// What a seed stands for: the run, and how rough its world is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/v1/coordinator.pb.h"
#include "isthmus/v1/run_spec.pb.h"

namespace isthmus::sim {

// Bugs that are put in on purpose, to see that they are found. None of them is in the product.
enum class Bug {
  kNone,
  kPublishBeforePersist,  // the store says yes before it has written
  kCountTwice,            // what was sent again after a lost connection is sent for the next round
                          // as well
  kSettleByReceipt,       // a node takes a receipt for the update's word
  kForgetLeftOut,         // what was left out is not given back
};

struct Plan {
  uint64_t seed = 0;
  v1::RunSpec spec;
  v1::Manifest manifest;
  size_t piece_bytes = 0;
  Bug bug = Bug::kNone;

  // The network, in thousandths of messages, until the faults end.
  int loss_permille = 0;
  int replay_permille = 0;
  int delay_max_ms = 0;
  // Of the copies, some are not copies: other bytes under the same names (R25).
  int forge_permille = 0;

  // Faults come about so often until they end, of the kinds that are on; 0: never.
  int64_t faults_end_ms = 0;
  int64_t fault_every_ms = 0;
  bool crash_coordinator = false;
  bool pause_coordinator = false;
  bool store_faults = false;  // a full disk, and crashes in the middle of a write
  bool crash_agent = false;
  bool crash_trainer = false;
  bool pause_node = false;
  bool partition = false;
  bool leave = false;
  // An operator's, taken back after a while.
  bool drain = false;
  bool evict = false;
  bool pause_run = false;
  // Of rounds, in thousandths: some node's gradient is not a number; its contribution is spoilt on
  // the way out; all nodes' are not numbers.
  int abstain_permille = 0;
  int spoil_permille = 0;
  int all_abstain_permille = 0;
  // A bit of a node's state becomes another one, once after a round, in so many thousandths of the
  // rounds up to flip_until; nodes are compared often (spec.check_every). An operator chooses whose
  // state is right where none has a majority, any of them.
  int flip_permille = 0;
  uint64_t flip_until = 0;

  // Updates kept, where it is few: nodes that are behind need snapshots. 0: all.
  uint64_t keep_rounds = 0;
  int64_t compute_max_ms = 0;
  // A trainer that starts again has its checkpoint of so many rounds ago at most; 0: none.
  uint64_t checkpoint_every = 0;

  bool replays() const { return spec.deterministic(); }
  // Simulated time after which a run whose faults have ended must be finished.
  int64_t limit_ms() const;
  // What becomes of a node's contribution to a round, the same in every life of it.
  enum class Fate { kGood, kAbstains, kSpoilt };
  Fate FateOf(size_t node, uint64_t round) const;
  bool FlipsAfter(size_t node, uint64_t round) const;
};

struct PlanOptions {
  bool faults = true;
  bool accounting = false;  // beta 1 (as near as it may be), sign off: sums can be compared
  Bug bug = Bug::kNone;
};
Plan MakePlan(uint64_t seed, const PlanOptions& options = {});

// A run of three nodes that is long enough to learn something: kills of agents, pauses of the
// coordinator and partitions (R8, R11, R16), or nothing at all.
Plan MakeToyPlan(uint64_t seed, bool faults);

// One line for people.
std::string Describe(const Plan& plan);

}  // namespace isthmus::sim
