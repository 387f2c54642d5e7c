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
  const Opened& at = open_.front();
  const uint32_t complete = Count(at, Standing::kComplete);
  const uint32_t needed = std::max(1u, Needed(at));
  const bool outstanding = Count(at, Standing::kOutstanding) > 0;
  const std::string whom = absl::StrCat("round ", at.round, ": waiting for ",
                                        outstanding ? OutstandingSentence() : MissingSentence());
  const std::string quorum = absl::StrCat(
      "quorum ", needed, " of ", nodes_.size(),
      complete >= needed ? " reached" : absl::StrCat(" not reached (", complete, " complete)"),
      PolicySentence());
  const std::string after = blocked() ? absl::StrCat("; then ", BlockedSentence()) : "";
  const int64_t left_ms = CloseLeftMs(at, now_ms);
  std::string time = "no deadline";
  if (left_ms == 0) time = "deadline passed";
  const std::string cause = absl::StrCat(whom, ", ", left_ms > 0 ? "" : time + ", ", quorum, after);
  if (left_ms > 0) time = absl::StrCat((left_ms + 999) / 1000, " s to deadline");
  return {Decision::Answer::kWait,
          absl::StrCat(whom, ", ", time, ", ", quorum, AlsoOpenSentence(), after), cause};
}

// With overlap: what follows the round that is waited for.
std::string RoundMachine::AlsoOpenSentence() const {
  std::string text;
  for (size_t i = 1; i < open_.size(); ++i) {
    absl::StrAppend(&text, "; round ", open_[i].round, " is open too, ",
                    Count(open_[i], Standing::kComplete), " complete");
  }
  return text;
}

std::string RoundMachine::StartingSentence() const {
  std::vector<std::string> missing;
  for (const auto& [name, node] : nodes_) {
    if (!IsOut(name, idle_) && !HoldsBase(node, committed_ + 1)) missing.push_back(Describe(name));
  }
  const uint32_t needed = std::max(1u, Needed(idle_));
  if (start_awaited_ && Ready() >= needed) {
    return absl::StrCat(
        "round 1 opens when the coordinator holds the start state, which comes from ",
        settings_.start_node, PolicySentence());
  }
  if (missing.empty()) missing.push_back("a node that an operator admits again");
  return absl::StrCat("round 1 opens when ", needed, " of ", nodes_.size(),
                      " nodes hold the start state, held by ", Ready(), "; missing ",
                      absl::StrJoin(missing, ", "), PolicySentence());
}

std::string RoundMachine::OutstandingSentence() const {
  std::vector<std::string> names;
  for (const auto& [name, part] : Front().parts) {
    if (part.standing == Standing::kOutstanding) names.push_back(Describe(name));
  }
  return absl::StrJoin(names, ", ");
}

std::string RoundMachine::MissingSentence() const {
  std::vector<std::string> names;
  for (const auto& [name, part] : Front().parts) {
    if (part.standing == Standing::kComplete || IsOut(name, Front())) continue;
    names.push_back(Describe(name));
  }
  if (names.empty()) return "an operator to admit a node again";
  return absl::StrCat("a node to come back or to send again: ", absl::StrJoin(names, ", "));
}

// Who is not awaited because an operator said so, to follow the rest of a sentence.
std::string RoundMachine::PolicySentence() const {
  std::string text;
  for (const auto& [name, node] : nodes_) {
    if (!IsOut(name, Front())) continue;
    const bool is_diverged = !node.diverged.empty() && node.policy != NodePolicy::kEvict;
    absl::StrAppend(&text, "; ", name,
                    is_diverged                         ? " heals from a snapshot"
                    : node.policy == NodePolicy::kEvict ? " is evicted"
                                                        : " drains",
                    InBrackets(is_diverged ? node.diverged : node.policy_reason));
  }
  return text;
}

std::string RoundMachine::BlockedSentence() const {
  if (!dispute_.empty()) return dispute_;
  return absl::StrCat("paused by an operator", pause_reason_.empty() ? "" : ": ", pause_reason_,
                      "; isthmusctl runs resume ", settings_.run);
}

std::string RoundMachine::Describe(const std::string& name) const {
  const Node& node = Find(name);
  const Part& part = PartOf(Front(), name);
  std::string what;
  switch (part.standing) {
    case Standing::kRefused:
      what = absl::StrCat("refused: ", part.reason);
      break;
    case Standing::kAbstained:
      what = absl::StrCat("abstained: ", part.reason);
      break;
    case Standing::kLeft:
      what = part.reason.empty() ? "left" : absl::StrCat("left: ", part.reason);
      break;
    case Standing::kLeaseEnded:
      what = "lease ended";
      break;
    case Standing::kEvicted:  // and admitted since
    case Standing::kDiverged:
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
    absl::StrAppend(&what, what.empty() ? "" : "; ", "drains after ",
                    overlap_ == 0 ? "this round" : absl::StrCat("round ", node.last_round));
  }
  return absl::StrCat(name, InBrackets(what));
}

std::vector<std::string> RoundMachine::Awaited() const {
  std::vector<std::string> names, taken_out;
  if (committing_ || phase_ == Phase::kFinished) return names;
  if (blocked() && open_.empty()) return names;  // an operator is
  const Opened& at = Front();
  const bool some_send = !open_.empty() && Count(at, Standing::kOutstanding) > 0;
  for (const auto& [name, node] : nodes_) {
    if (IsOut(name, at)) {
      taken_out.push_back(name);
      continue;
    }
    const Standing standing = PartOf(at, name).standing;
    bool awaited = standing == Standing::kOutstanding;
    if (!some_send) awaited = standing != Standing::kComplete;
    if (phase_ == Phase::kStarting) awaited = !HoldsBase(node, committed_ + 1);
    if (awaited) names.push_back(name);
  }
  // Where nobody else can do it, one of those must be admitted again.
  return names.empty() ? taken_out : names;
}

}  // namespace isthmus
