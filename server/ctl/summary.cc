#include "server/ctl/summary.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "server/ctl/words.h"

namespace isthmus {
namespace {

// A round that takes five times as long as the mean, and five seconds, is worth a look. Before the
// first commit nothing is known of the usual; a minute is long for any first round.
constexpr uint64_t kStillFactor = 5;
constexpr uint64_t kStillMsMin = 5000;
constexpr uint64_t kStillFirstMs = 60000;
constexpr size_t kNamesMax = 3;

// How likely a node is the cause, highest first.
int Suspicion(const v1::Node& node) {
  switch (node.state()) {
    case v1::NODE_STATE_LEASE_ENDED:
      return 5;
    case v1::NODE_STATE_LEFT:
      return 4;
    case v1::NODE_STATE_NEVER_JOINED:
      return 3;
    case v1::NODE_STATE_CATCHING_UP:
      return 2;
    default:
      return node.waiting_for().empty() ? 0 : 1;
  }
}

// What is odd about a node, to follow its name after a comma; empty: nothing.
std::string Clause(const v1::Node& node) {
  const std::string reason =
      node.policy_reason().empty() ? "" : absl::StrCat(" (", node.policy_reason(), ")");
  if (node.state() == v1::NODE_STATE_EVICTED) {
    return absl::StrCat("which an operator has evicted", reason, ": admit it or another");
  }
  // Of one that is awaited in the round it finishes there is more to say.
  if (node.is_draining() && node.outcome() != v1::NODE_OUTCOME_OUTSTANDING) {
    return absl::StrCat("which an operator drains", reason, ": admit it or another");
  }
  switch (node.state()) {
    case v1::NODE_STATE_LEASE_ENDED:
      return absl::StrCat("which was lost ", Ago(node.state_ms()), " (last heard of ",
                          Ago(node.heartbeat_ms()), ")");
    case v1::NODE_STATE_LEFT:
      return absl::StrCat("which left ", Ago(node.state_ms()));
    case v1::NODE_STATE_NEVER_JOINED:
      return "which has not joined yet";
    case v1::NODE_STATE_CATCHING_UP:
      return absl::StrCat("which is catching up (it holds round ",
                          Grouped(node.acknowledged_round()), ")");
    default:
      break;
  }
  if (node.has_last_refusal() && (node.outcome() == v1::NODE_OUTCOME_REFUSED ||
                                  node.outcome() == v1::NODE_OUTCOME_ABSTAINED)) {
    return absl::StrCat(
        node.outcome() == v1::NODE_OUTCOME_REFUSED ? "which was refused: " : "which abstained: ",
        node.last_refusal().reason());
  }
  std::string heard = node.has_heartbeat_ms()
                          ? absl::StrCat("last heard of ", Ago(node.heartbeat_ms()))
                          : "never heard of";
  if (!node.waiting_for().empty()) {
    return absl::StrCat("which says \"", node.waiting_for(), "\" (", heard, ")");
  }
  return absl::StrCat("of which ", Size(node.received_bytes()), " are here (", heard, ")");
}

const v1::Node* FirstToLookAt(const std::vector<v1::Node>& nodes) {
  const v1::Node* first = nullptr;
  for (const v1::Node& node : nodes) {
    if (!node.is_waited_for()) continue;
    const bool worse =
        first == nullptr || Suspicion(node) > Suspicion(*first) ||
        (Suspicion(node) == Suspicion(*first) && node.heartbeat_ms() > first->heartbeat_ms());
    if (worse) first = &node;
  }
  return first;
}

std::string Whom(const v1::Run& run, const v1::Node* first) {
  const std::vector<std::string> names(run.waiting_nodes().begin(), run.waiting_nodes().end());
  std::string whom = List(names, kNamesMax);
  if (first == nullptr) return whom;
  if (names.size() > 1) {
    return absl::StrCat(whom, "; look at ", first->name(), " first, ", Clause(*first));
  }
  return absl::StrCat(whom, ", ", Clause(*first), "; look at ", first->name());
}

}  // namespace

bool StandsStill(const v1::Run& run) {
  if (run.waiting_nodes().empty()) return false;
  if (run.state() == v1::RUN_STATE_STARTING) return true;
  if (!run.has_mean_round_ms()) return run.waiting_ms() >= kStillFirstMs;
  return run.waiting_ms() >= std::max(kStillMsMin, kStillFactor * run.mean_round_ms());
}

std::string SummaryOf(const v1::Run& run, const std::vector<v1::Node>& nodes) {
  const std::string name = absl::StrCat("Run ", run.run());
  if (run.state() == v1::RUN_STATE_FINISHED) {
    return absl::StrCat(name, " is finished: all ", Grouped(run.committed_round()),
                        " rounds are committed.");
  }
  if (run.state() == v1::RUN_STATE_PAUSED) {
    return absl::StrCat(
        name, " is paused",
        run.pause_reason().empty() ? "" : absl::StrCat(" (", run.pause_reason(), ")"), ": round ",
        Grouped(run.committed_round() + 1), " of ", Grouped(run.steps()),
        " opens after 'isthmusctl runs resume ", run.run(), "'.");
  }
  if (run.state() == v1::RUN_STATE_DISPUTED) {
    return absl::StrCat(name, " stands: ", run.waiting_for(), ".");
  }
  const v1::Node* first = FirstToLookAt(nodes);
  const std::string span = Span(run.waiting_ms());
  if (run.state() == v1::RUN_STATE_STARTING) {
    return absl::StrCat(name, " has not begun: for ", span, " it has waited for ", Whom(run, first),
                        ".");
  }
  const std::string later =
      run.newest_open_round() == 0
          ? ""
          : absl::StrCat(" (up to ", Grouped(run.newest_open_round()), " are open)");
  const std::string round =
      absl::StrCat("round ", Grouped(run.open_round()), " of ", Grouped(run.steps()), later);
  if (run.waiting_nodes().empty())
    return absl::StrCat(name, " runs: ", round, " is being committed.");
  if (StandsStill(run)) {
    return absl::StrCat(name, " stands still: ", round, " has waited ", span, " for ",
                        Whom(run, first), ".");
  }
  const std::string usual =
      run.has_mean_round_ms() ? absl::StrCat(" (usual: ", Span(run.mean_round_ms()), ")") : "";
  return absl::StrCat(name, " runs: ", round, " has been open for ", span, usual, ", waiting for ",
                      List({run.waiting_nodes().begin(), run.waiting_nodes().end()}, kNamesMax),
                      ".");
}

}  // namespace isthmus
