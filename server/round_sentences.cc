// What the round's state machine says to people: whom a round waits for, and why.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/round.h"

namespace isthmus {
namespace {

std::string InBrackets(const std::string& text) {
  return text.empty() ? "" : absl::StrCat(" (", text, ")");
}

}  // namespace

Decision RoundMachine::Wait(int64_t now_ms) const {
  const uint32_t complete = Count(Standing::kComplete);
  const uint32_t needed = std::max(1u, Needed());
  const std::string whom =
      absl::StrCat("round ", committed_ + 1, ": waiting for ",
                   Count(Standing::kOutstanding) > 0 ? OutstandingSentence() : MissingSentence());
  const std::string quorum = absl::StrCat(
      "quorum ", needed, " of ", nodes_.size(),
      complete >= needed ? " reached" : absl::StrCat(" not reached (", complete, " complete)"),
      PolicySentence());
  const std::string after = paused_ ? absl::StrCat("; then ", PauseSentence()) : "";
  const int64_t left_ms = CloseLeftMs(now_ms);
  std::string time = "no deadline";
  if (left_ms == 0) time = "deadline passed";
  const std::string cause = absl::StrCat(whom, ", ", left_ms > 0 ? "" : time + ", ", quorum, after);
  if (left_ms > 0) time = absl::StrCat((left_ms + 999) / 1000, " s to deadline");
  return {Decision::Answer::kWait, absl::StrCat(whom, ", ", time, ", ", quorum, after), cause};
}

std::string RoundMachine::StartingSentence() const {
  std::vector<std::string> missing;
  for (const auto& [name, node] : nodes_) {
    if (!IsOut(node) && !HoldsBase(node)) missing.push_back(Describe(name, node));
  }
  if (start_awaited_ && Ready() >= std::max(1u, Needed())) {
    return absl::StrCat(
        "round 1 opens when the coordinator holds the start state, which comes from ",
        settings_.start_node, PolicySentence());
  }
  if (missing.empty()) missing.push_back("a node that an operator admits again");
  return absl::StrCat("round 1 opens when ", std::max(1u, Needed()), " of ", nodes_.size(),
                      " nodes hold the start state, held by ", Ready(), "; missing ",
                      absl::StrJoin(missing, ", "), PolicySentence());
}

std::string RoundMachine::OutstandingSentence() const {
  std::vector<std::string> names;
  for (const auto& [name, node] : nodes_) {
    if (node.standing == Standing::kOutstanding) names.push_back(Describe(name, node));
  }
  return absl::StrJoin(names, ", ");
}

std::string RoundMachine::MissingSentence() const {
  std::vector<std::string> names;
  for (const auto& [name, node] : nodes_) {
    if (node.standing == Standing::kComplete || IsOut(node)) continue;
    names.push_back(Describe(name, node));
  }
  if (names.empty()) return "an operator to admit a node again";
  return absl::StrCat("a node to come back or to send again: ", absl::StrJoin(names, ", "));
}

// Who is not awaited because an operator said so, to follow the rest of a sentence.
std::string RoundMachine::PolicySentence() const {
  std::string text;
  for (const auto& [name, node] : nodes_) {
    if (!IsOut(node)) continue;
    absl::StrAppend(&text, "; ", name,
                    node.policy == NodePolicy::kEvict ? " is evicted" : " drains",
                    InBrackets(node.policy_reason));
  }
  return text;
}

std::string RoundMachine::PauseSentence() const {
  return absl::StrCat("paused by an operator", pause_reason_.empty() ? "" : ": ", pause_reason_,
                      "; isthmusctl runs resume ", settings_.run);
}

std::string RoundMachine::Describe(const std::string& name, const Node& node) const {
  std::string what;
  switch (node.standing) {
    case Standing::kRefused:
      what = absl::StrCat("refused: ", node.reason);
      break;
    case Standing::kAbstained:
      what = absl::StrCat("abstained: ", node.reason);
      break;
    case Standing::kLeft:
      what = node.reason.empty() ? "left" : absl::StrCat("left: ", node.reason);
      break;
    case Standing::kLeaseEnded:
      what = "lease ended";
      break;
    case Standing::kEvicted:  // and admitted since
    case Standing::kNotMember:
      what = node.live ? absl::StrCat("catching up, holds round ", node.acknowledged)
                       : "not connected";
      break;
    case Standing::kOutstanding:
    case Standing::kComplete:
      what = node.waiting_for;
      break;
  }
  if (node.policy == NodePolicy::kDrain) {
    absl::StrAppend(&what, what.empty() ? "" : "; ", "drains after this round");
  }
  return absl::StrCat(name, InBrackets(what));
}

std::vector<std::string> RoundMachine::Awaited() const {
  std::vector<std::string> names, taken_out;
  if (phase_ == Phase::kCommitting || phase_ == Phase::kFinished) return names;
  if (paused_ && phase_ != Phase::kOpen) return names;  // an operator is
  const bool some_send = phase_ == Phase::kOpen && Count(Standing::kOutstanding) > 0;
  for (const auto& [name, node] : nodes_) {
    if (IsOut(node)) {
      taken_out.push_back(name);
      continue;
    }
    bool awaited = node.standing == Standing::kOutstanding;
    if (!some_send) awaited = node.standing != Standing::kComplete;
    if (phase_ == Phase::kStarting) awaited = !HoldsBase(node);
    if (awaited) names.push_back(name);
  }
  // Where nobody else can do it, one of those must be admitted again.
  return names.empty() ? taken_out : names;
}

}  // namespace isthmus
