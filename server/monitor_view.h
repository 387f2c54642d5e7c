// Views of a run for operators: pure functions from a copy of the coordinator's state and the
// rounds kept to the messages of MonitorService.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "isthmus/v1/monitor.pb.h"
#include "server/monitor_facts.h"
#include "server/monitor_history.h"
#include "server/round.h"

namespace isthmus {

v1::NodeOutcome OutcomeOf(Standing standing);

// What became of every node's contribution to a round that is open or being committed, as the
// machine knows it now.
std::vector<v1::RoundNode> RoundNodes(const RoundMachine& machine, uint64_t round,
                                      const std::vector<std::string>& names);

// With `with_spec` false the spec is left out.
v1::Run ViewOfRun(const RunFacts& facts, const RoundHistory::Pace& pace, bool with_spec);

v1::Node ViewOfNode(const RunFacts& facts, const NodeFacts& node);

// `round` as it is now: an open one gets its sentence and deadline, and what became of each node.
v1::Round ViewOfRound(const RunFacts& facts, v1::Round round);

// A page: `begin` is the place of its first item in the whole list, `size` how many at most.
struct Page {
  uint64_t begin = 0;
  size_t size = 0;
};
// INVALID_ARGUMENT: page_size below 0, or a token that no call of this kind gave out. An empty
// token means `first`.
absl::StatusOr<Page> ReadPage(int32_t page_size, const std::string& page_token, uint64_t first);
std::string PageToken(uint64_t begin);

}  // namespace isthmus
