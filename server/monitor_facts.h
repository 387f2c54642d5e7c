// What the coordinator remembers for operators beside what it needs itself, and the copy of its
// state that views are made from. The copy is taken under the coordinator's lock in a time that
// grows with the nodes alone; everything else about a view happens without the lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "isthmus/v1/monitor.pb.h"
#include "isthmus/v1/run_spec.pb.h"
#include "isthmus/v1/storage.pb.h"
#include "server/contribution_budget.h"
#include "server/round.h"
#include "server/store_trail.h"

namespace isthmus {

// Kept for each node. -1: there was none.
struct NodeTrail {
  int64_t since_ms = -1;      // it joined, left or was lost
  int64_t heartbeat_ms = -1;  // heartbeat or join
  bool left = false;          // by itself, at the last change
  uint64_t received_bytes = 0;
  std::string client_version;
  // The last refusal or abstention.
  int64_t refused_ms = -1;
  uint64_t refused_round = 0;  // 0: a join
  v1::NodeOutcome refused_outcome = v1::NODE_OUTCOME_UNSPECIFIED;
  std::string refused_reason;
};

struct NodeFacts {
  std::string name;
  uint64_t incarnation = 0;
  bool watches = false;
  NodeTrail trail;
};

struct RunFacts {
  explicit RunFacts(const RoundMachine& at) : machine(at) {}

  RoundMachine machine;
  int64_t now_ms = 0;
  absl::Time wall;
  int64_t started_ms = 0;
  // Of the open round, or the next one; lives as long as the coordinator, never changes.
  const v1::RunSpec* spec = nullptr;
  uint64_t spec_revision = 0;
  uint64_t rounds = 0;                     // of the whole run
  absl::optional<v1::StoredFork> fork;     // where the start state came from; absent: no fork
  std::vector<v1::StoredRevision> coming;  // that hold in later rounds, ascending
  std::string stopped;           // why the run stands still, if no node can change it; else empty
  StoreLook store;               // what writes have come to
  BudgetLook budget;             // of contributions
  uint64_t watches_dropped = 0;  // because their watchers fell behind
  v1::StoredStateCheck state_check;  // whether nodes hold one state
  std::string last_update_sha256;    // of the last committed round's record
  std::vector<NodeFacts> nodes;      // ascending by name
  // Of the model; empty and 0 until a node has joined.
  std::string fingerprint;
  std::string start_state_sha256;
  uint64_t parameters = 0;
  uint32_t tensors = 0;
  uint64_t contribution_bytes = 0;
};

}  // namespace isthmus
