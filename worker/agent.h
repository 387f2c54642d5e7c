// The agent of a node: one process between its ranks and the coordinator. To ranks it is a server
// of the very service whose client it is upstream.
//
//   rank 0 --JoinRun-->|                |                    all ranks there:
//   rank 1 --JoinRun-->|  rank_group    |--JoinRun---------> one member of the run
//   ranks  --Submit--->|  bundle        |--Submit----------> one contribution
//   ranks  <--watch----|  round_log     |<--watch----------- every update once
//
// agent.cc is one round's way through the agent; agent_ranks.cc admits ranks and watches them;
// agent_control.cc starts and ends things. The ranks keep their pieces until the round is settled,
// so an agent may die at any time and come back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/round_host.h"

namespace isthmus {

inline constexpr char kAgentVersion[] = "0.1.0";

struct AgentOptions {
  std::string node;         // as the run's spec names it
  std::string run;          // empty: the only one that the coordinator has
  std::string coordinator;  // "HOST:PORT"
  uint32_t ranks = 1;
  std::string state_dir;  // empty: nothing outlives the process
  bool exit_when_finished =
      false;  // ends when the run is finished or refused and the ranks have left
};

// Thread-safe. Serve it with transport/service.h on a unix socket.
class Agent : public RoundHost {
 public:
  // INVALID_ARGUMENT: node name, number of ranks or address. Else as StateFolder::Open.
  static absl::StatusOr<std::unique_ptr<Agent>> Start(const AgentOptions& options);
  // Without Stop before it: as if the process had been killed.
  ~Agent() override = default;

  // Whether the agent has ended by itself, waiting for that at most so long.
  virtual bool WaitEnded(int timeout_ms) = 0;
  // Why: OK when its ranks have left, else the coordinator's refusal.
  virtual absl::Status ended() const = 0;

  // Leaves the run, ends the ranks' watches with UNAVAILABLE. Idempotent.
  virtual void Stop(const std::string& reason) = 0;
};

}  // namespace isthmus
