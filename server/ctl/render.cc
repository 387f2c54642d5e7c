#include "server/ctl/render.h"

#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/sha256.h"
#include "server/ctl/summary.h"
#include "server/ctl/table.h"
#include "server/ctl/words.h"

namespace isthmus {
namespace {

// NODE_STATE_CATCHING_UP -> "catching up".
std::string Words(absl::string_view enum_name, absl::string_view prefix) {
  return absl::AsciiStrToLower(
      absl::StrReplaceAll(absl::StripPrefix(enum_name, prefix), {{"_", " "}}));
}

// "member", "member, drains".
std::string StateWords(const v1::Node& node) {
  const std::string state = Words(v1::NodeState_Name(node.state()), "NODE_STATE_");
  const bool is_said = node.state() == v1::NODE_STATE_DRAINING;
  return node.is_draining() && !is_said ? absl::StrCat(state, ", drains") : state;
}

std::string OutcomeWords(v1::NodeOutcome outcome) {
  if (outcome == v1::NODE_OUTCOME_UNSPECIFIED) return "";
  if (outcome == v1::NODE_OUTCOME_INCLUDED) return "complete";
  return Words(v1::NodeOutcome_Name(outcome), "NODE_OUTCOME_");
}

std::string Hash(const std::string& sha256) { return sha256.empty() ? "" : HexPrefix(sha256); }

std::string TimeOfDay(const google::protobuf::Timestamp& at, absl::TimeZone zone,
                      const char* format) {
  return absl::FormatTime(
      format, absl::FromUnixSeconds(at.seconds()) + absl::Nanoseconds(int64_t{at.nanos()}), zone);
}

std::string Said(const v1::Node& node) {
  // What an operator says of it explains more than anything it says itself.
  if (!node.policy_reason().empty()) return absl::StrCat("operator: ", node.policy_reason());
  if (!node.waiting_for().empty()) return node.waiting_for();
  if (!node.has_last_refusal()) return "";
  const v1::Refusal& refusal = node.last_refusal();
  const bool abstained = refusal.outcome() == v1::NODE_OUTCOME_ABSTAINED;
  const std::string what = refusal.round() == 0
                               ? "join refused"
                               : absl::StrCat(abstained ? "abstained from" : "refused in",
                                              " round ", Grouped(refusal.round()));
  return absl::StrCat(what, " ", Ago(refusal.age_ms()), ": ", refusal.reason());
}

// "2 of 3; b abstained: non-finite gradient".
std::string Who(const v1::Round& round) {
  size_t included = 0;
  std::vector<std::string> others;
  for (const v1::RoundNode& node : round.nodes()) {
    if (node.outcome() == v1::NODE_OUTCOME_INCLUDED) {
      ++included;
      continue;
    }
    others.push_back(absl::StrCat(node.node(), " ", OutcomeWords(node.outcome()),
                                  node.reason().empty() ? "" : ": ", node.reason()));
  }
  std::string who = absl::StrCat(included, " of ", round.nodes_size());
  if (!others.empty()) absl::StrAppend(&who, "; ", absl::StrJoin(others, "; "));
  return who;
}

std::string RoundStateWords(const v1::Round& round) {
  if (round.is_void()) return "void";
  return Words(v1::RoundState_Name(round.state()), "ROUND_STATE_");
}

void Line(std::string* text, absl::string_view name, absl::string_view value) {
  if (!value.empty()) absl::StrAppendFormat(text, "  %-14s %s\n", name, value);
}

// "compared every 100 rounds, in agreement after round 300; b heals since round 400".
std::string StatesLine(const v1::StateCheck& check) {
  if (check.every_rounds() == 0) return "";
  std::string text = absl::StrCat("compared every ", Grouped(check.every_rounds()), " rounds");
  if (check.agreed_round() > 0) {
    absl::StrAppend(&text, ", in agreement after round ", Grouped(check.agreed_round()));
  }
  if (check.disputed_round() > 0) {
    absl::StrAppend(&text, ", not after round ", Grouped(check.disputed_round()));
  }
  for (const v1::HealingNode& healing : check.healing()) {
    absl::StrAppend(&text, "; ", healing.state().node(), " heals since round ",
                    Grouped(healing.round()));
  }
  if (check.healed_count() > 0) {
    absl::StrAppend(&text, "; ", Grouped(check.healed_count()), " healed so far");
  }
  return text;
}

}  // namespace

std::string RunText(const v1::Run& run, const std::vector<v1::Node>& nodes) {
  std::string text = absl::StrCat(SummaryOf(run, nodes), "\n\n");
  Line(&text, "coordinator", run.waiting_for());
  Line(&text, "rounds",
       absl::StrCat(
           Grouped(run.committed_round()), " of ", Grouped(run.steps()), " committed, ",
           absl::StrFormat("%.1f", run.rounds_last_minute()), " in the last minute",
           run.has_last_commit_ms() ? ", the last one " + Ago(run.last_commit_ms()) : "",
           run.has_mean_round_ms() ? ", usual " + Span(run.mean_round_ms()) + " each" : ""));
  if (run.spec_revision() > 1 || run.coming_revisions_size() > 0) {
    std::string revisions = absl::StrCat("revision ", run.spec_revision());
    for (const v1::ComingRevision& coming : run.coming_revisions()) {
      absl::StrAppend(&revisions, ", revision ", coming.revision(), " from round ",
                      Grouped(coming.from_round()));
    }
    Line(&text, "spec", revisions);
  }
  if (run.has_forked_from()) {
    Line(&text, "forked from",
         absl::StrCat("run ", run.forked_from().run(), " after round ",
                      Grouped(run.forked_from().round())));
  }
  if (run.is_paused()) {
    Line(&text, "paused", run.pause_reason().empty() ? "no reason given" : run.pause_reason());
  }
  Line(&text, "states", StatesLine(run.state_check()));
  Line(&text, "nodes",
       absl::StrCat(run.live_nodes(), " of ", run.nodes(), " live, quorum ", run.quorum()));
  if (run.parameters() > 0) {
    Line(&text, "model",
         absl::StrCat(Grouped(run.parameters()), " parameters in ", run.tensors(),
                      " tensors, fingerprint ", Hash(run.model_fingerprint())));
    Line(&text, "contribution", absl::StrCat(Size(run.contribution_bytes()), " a node and round"));
    Line(&text, "start state", Hash(run.start_state_sha256()));
  }
  Line(&text, "last update", Hash(run.last_update_sha256()));
  Line(&text, "version", run.server_version());
  if (!nodes.empty()) absl::StrAppend(&text, "\n", NodesText(nodes));
  return text;
}

std::string RunsText(const std::vector<v1::Run>& runs) {
  Table table({"RUN", "STATE", "ROUND", "OF", "LIVE", "WAITS FOR"});
  for (const v1::Run& run : runs) {
    if (run.state() == v1::RUN_STATE_UNSPECIFIED) {
      table.Add({run.run(), "not served", "", "", "", run.waiting_for()});
      continue;
    }
    table.Add({run.run(), Words(v1::RunState_Name(run.state()), "RUN_STATE_"),
               Grouped(run.committed_round()), Grouped(run.steps()),
               absl::StrCat(run.live_nodes(), " of ", run.nodes()), run.waiting_for()});
  }
  return table.Text();
}

std::string NodesText(const std::vector<v1::Node>& nodes) {
  Table table(
      {"NODE", "STATE", "FOR", "ROUND", "RECEIVED", "HEARD", "LEASE", "HOLDS", "VERSION", "SAYS"});
  for (const v1::Node& node : nodes) {
    const bool joined = node.incarnation() > 0;
    table.Add({absl::StrCat(node.is_waited_for() ? "> " : "  ", node.name()), StateWords(node),
               Span(node.state_ms()), OutcomeWords(node.outcome()),
               joined ? Size(node.received_bytes()) : "",
               node.has_heartbeat_ms() ? Ago(node.heartbeat_ms()) : "",
               node.lease_left_ms() > 0 ? Span(node.lease_left_ms()) : "",
               joined ? absl::StrCat("round ", Grouped(node.acknowledged_round())) : "",
               node.client_version(), Said(node)});
  }
  return table.Text();
}

std::string RoundsText(const std::vector<v1::Round>& rounds, absl::TimeZone zone) {
  Table table({"ROUND", "STATE", "OPENED", "TOOK", "BYTES", "LR", "SHA-256", "NODES"});
  for (const v1::Round& round : rounds) {
    table.Add({Grouped(round.round()), RoundStateWords(round),
               TimeOfDay(round.opened_at(), zone, "%Y-%m-%d %H:%M:%S"), Span(round.duration_ms()),
               round.payload_bytes() > 0 ? Grouped(round.payload_bytes()) : "",
               absl::StrCat(round.learning_rate()), Hash(round.sha256()), Who(round)});
  }
  return table.Text();
}

std::string ChangeText(const v1::WatchRoundsResponse& change, absl::TimeZone zone) {
  const v1::Round& round = change.round();
  const std::string at = TimeOfDay(change.at(), zone, "%H:%M:%S");
  const std::string name = absl::StrCat(at, "  round ", Grouped(round.round()), ": ");
  switch (change.change()) {
    case v1::ROUND_CHANGE_OPENED:
      return absl::StrCat(name, "opened");
    case v1::ROUND_CHANGE_COMPLETE:
      return absl::StrCat(name, change.node(), " is complete (", Who(round), ")");
    case v1::ROUND_CHANGE_COMMITTED:
      return absl::StrCat(name, round.is_void() ? "void, nothing was merged" : "committed",
                          " after ", Span(round.duration_ms()), ", ",
                          Grouped(round.payload_bytes()), " bytes, nodes ", Who(round), ", sha256 ",
                          Hash(round.sha256()));
    case v1::ROUND_CHANGE_FINISHED:
      return absl::StrCat(at, "  the run is finished");
    default:
      return absl::StrCat(at, "  ", change.waiting_for());
  }
}

}  // namespace isthmus
