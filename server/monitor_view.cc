#include "server/monitor_view.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/limits.h"
#include "server/version.h"
#include "spec/rounds.h"
#include "spec/run_spec.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

// Nobody but this file reads a token; the letter keeps people from counting on numbers.
constexpr char kTokenPrefix[] = "p";

uint64_t Age(int64_t then_ms, int64_t now_ms) {
  return static_cast<uint64_t>(std::max<int64_t>(0, now_ms - then_ms));
}

// The oldest round that is open or being committed; 0: none.
uint64_t OldestOf(const RoundMachine& machine) {
  return machine.newest_round() == 0 ? 0 : machine.committed_round() + 1;
}

// What a node is to the oldest open round; where that is nothing, to one of those after it.
Standing StandingOf(const RoundMachine& machine, const std::string& node) {
  const Standing oldest = machine.StandingOf(node);
  if (oldest != Standing::kNotMember) return oldest;
  for (uint64_t round = OldestOf(machine) + 1; round <= machine.newest_round(); ++round) {
    const Standing later = machine.StandingIn(node, round);
    if (later != Standing::kNotMember) return later;
  }
  return oldest;
}

v1::NodeState StateOf(const RunFacts& facts, const NodeFacts& node) {
  const RoundMachine& machine = facts.machine;
  const NodePolicy policy = machine.PolicyOf(node.name);
  if (policy == NodePolicy::kEvict) return v1::NODE_STATE_EVICTED;
  if (machine.IsDiverged(node.name)) return v1::NODE_STATE_HEALING;
  if (!machine.IsLive(node.name)) {
    if (node.incarnation == 0) return v1::NODE_STATE_NEVER_JOINED;
    return node.trail.left ? v1::NODE_STATE_LEFT : v1::NODE_STATE_LEASE_ENDED;
  }
  switch (StandingOf(machine, node.name)) {
    case Standing::kOutstanding:
    case Standing::kComplete:
    case Standing::kRefused:
    case Standing::kAbstained:
      return v1::NODE_STATE_MEMBER;
    case Standing::kNotMember:
    case Standing::kLeft:
    case Standing::kLeaseEnded:
    case Standing::kEvicted:
    case Standing::kDiverged:
      break;
  }
  if (policy == NodePolicy::kDrain) return v1::NODE_STATE_DRAINING;
  return machine.Acknowledged(node.name) == machine.committed_round() ? v1::NODE_STATE_JOINED
                                                                      : v1::NODE_STATE_CATCHING_UP;
}

v1::RunState StateOf(const RoundMachine& machine) {
  if (machine.finished()) return v1::RUN_STATE_FINISHED;
  const bool nothing_open = machine.newest_round() == 0;
  if (machine.disputed() && nothing_open) return v1::RUN_STATE_DISPUTED;
  if (machine.paused() && nothing_open) return v1::RUN_STATE_PAUSED;
  const bool begun = machine.committed_round() > 0 || !nothing_open;
  return begun ? v1::RUN_STATE_RUNNING : v1::RUN_STATE_STARTING;
}

void SetModel(const RunFacts& facts, v1::Run* run) {
  run->set_model_fingerprint(facts.fingerprint);
  run->set_start_state_sha256(facts.start_state_sha256);
  run->set_parameters(facts.parameters);
  run->set_tensors(facts.tensors);
  run->set_contribution_bytes(facts.contribution_bytes);
}

void SetBudgets(const RunFacts& facts, v1::Run* run) {
  v1::Budgets* const budgets = run->mutable_budgets();
  budgets->set_disk_full(facts.store.full);
  budgets->set_disk_full_count(facts.store.times_full);
  const BudgetLook& budget = facts.budget;
  budgets->set_memory_bytes(budget.memory_bytes);
  budgets->set_memory_bytes_max(budget.limits.memory_bytes);
  budgets->set_spool_bytes(budget.spool_bytes);
  budgets->set_spool_bytes_max(budget.limits.spool_bytes);
  budgets->set_spooled_pieces(budget.spooled_pieces);
  budgets->set_pushed_back_pieces(budget.pushed_back_pieces);
  budgets->set_watches_dropped(facts.watches_dropped);
  v1::WriteTimes* const times = run->mutable_write_times();
  for (const uint32_t end : kStoreWriteBucketsMs) times->add_up_to_ms(end);
  for (const uint64_t count : facts.store.writes) times->add_counts(count);
  times->set_total_ms(facts.store.total_ms);
}

void SetStateCheck(const RunFacts& facts, v1::Run* run) {
  const auto copy = [](const v1::StoredStateHash& from, v1::ReportedState* to) {
    to->set_node(from.node());
    to->set_sha256(from.sha256());
  };
  const v1::StoredStateCheck& stored = facts.state_check;
  v1::StateCheck* const check = run->mutable_state_check();
  check->set_every_rounds(facts.spec->check_every());
  check->set_agreed_round(stored.has_dispute() ? stored.dispute().agreed_round()
                                               : stored.agreed_round());
  check->set_disputed_round(stored.dispute().round());
  for (const v1::StoredStateHash& state : stored.dispute().states()) {
    copy(state, check->add_disputed());
  }
  for (const v1::StoredDivergence& divergence : stored.diverged()) {
    v1::HealingNode* const healing = check->add_healing();
    copy(divergence.state(), healing->mutable_state());
    healing->set_round(divergence.round());
    healing->set_right_sha256(divergence.right_sha256());
  }
  check->set_diverged_count(stored.diverged_count());
  check->set_healed_count(stored.healed_count());
}

}  // namespace

v1::NodeOutcome OutcomeOf(Standing standing) {
  switch (standing) {
    case Standing::kNotMember:
      return v1::NODE_OUTCOME_NOT_MEMBER;
    case Standing::kOutstanding:
      return v1::NODE_OUTCOME_OUTSTANDING;
    case Standing::kComplete:
      return v1::NODE_OUTCOME_INCLUDED;
    case Standing::kRefused:
      return v1::NODE_OUTCOME_REFUSED;
    case Standing::kAbstained:
      return v1::NODE_OUTCOME_ABSTAINED;
    case Standing::kLeft:
      return v1::NODE_OUTCOME_LEFT;
    case Standing::kLeaseEnded:
      return v1::NODE_OUTCOME_LEASE_ENDED;
    case Standing::kEvicted:
      return v1::NODE_OUTCOME_EVICTED;
    case Standing::kDiverged:
      return v1::NODE_OUTCOME_DIVERGED;
  }
  return v1::NODE_OUTCOME_UNSPECIFIED;
}

std::vector<v1::RoundNode> RoundNodes(const RoundMachine& machine, uint64_t round,
                                      const std::vector<std::string>& names) {
  std::vector<v1::RoundNode> nodes;
  for (const std::string& name : names) {
    v1::RoundNode node;
    node.set_node(name);
    node.set_outcome(OutcomeOf(machine.StandingIn(name, round)));
    node.set_reason(machine.ReasonIn(name, round));
    nodes.push_back(std::move(node));
  }
  return nodes;
}

v1::Run ViewOfRun(const RunFacts& facts, const RoundHistory::Pace& pace, bool with_spec) {
  const RoundMachine& machine = facts.machine;
  v1::Run run;
  run.set_run(facts.spec->run());
  run.set_state(StateOf(machine));
  run.set_waiting_for(facts.stopped.empty() ? machine.Decide(facts.now_ms).sentence
                                            : facts.stopped);
  for (std::string& name : machine.Awaited()) run.add_waiting_nodes(std::move(name));
  if (run.state() != v1::RUN_STATE_FINISHED) {
    const bool begun = run.state() == v1::RUN_STATE_RUNNING || machine.committed_round() > 0;
    run.set_waiting_ms(Age(begun ? machine.opened_ms() : facts.started_ms, facts.now_ms));
  }
  run.set_open_round(OldestOf(machine));
  if (machine.newest_round() > run.open_round()) run.set_newest_open_round(machine.newest_round());
  run.set_committed_round(machine.committed_round());
  run.set_steps(facts.rounds);
  run.set_quorum(EffectiveQuorum(*facts.spec));
  run.set_nodes(static_cast<uint32_t>(facts.nodes.size()));
  uint32_t live = 0;
  for (const NodeFacts& node : facts.nodes) live += machine.IsLive(node.name) ? 1 : 0;
  run.set_live_nodes(live);
  if (pace.last_commit_ms.has_value()) {
    run.set_last_commit_ms(Age(*pace.last_commit_ms, facts.now_ms));
  }
  run.set_rounds_last_minute(pace.rounds_last_minute);
  if (pace.mean_round_ms.has_value()) {
    run.set_mean_round_ms(static_cast<uint64_t>(*pace.mean_round_ms));
  }
  run.set_is_paused(machine.paused());
  run.set_pause_reason(machine.pause_reason());
  SetModel(facts, &run);
  SetBudgets(facts, &run);
  SetStateCheck(facts, &run);
  run.set_last_update_sha256(facts.last_update_sha256);
  if (with_spec) *run.mutable_spec() = *facts.spec;
  run.set_spec_revision(facts.spec_revision);
  if (facts.fork.has_value()) {
    run.mutable_forked_from()->set_run(facts.fork->run());
    run.mutable_forked_from()->set_round(facts.fork->round());
  }
  for (const v1::StoredRevision& revision : facts.coming) {
    v1::ComingRevision* coming = run.add_coming_revisions();
    coming->set_revision(revision.revision());
    coming->set_from_round(revision.from_round());
  }
  const absl::Time started = facts.wall - absl::Milliseconds(facts.now_ms - facts.started_ms);
  run.mutable_started_at()->set_seconds(absl::ToUnixSeconds(started));
  run.set_server_version(kServerVersion);
  return run;
}

v1::Node ViewOfNode(const RunFacts& facts, const NodeFacts& node) {
  const RoundMachine& machine = facts.machine;
  const NodeTrail& trail = node.trail;
  v1::Node view;
  view.set_name(node.name);
  view.set_state(StateOf(facts, node));
  int64_t since_ms = trail.since_ms >= 0 ? trail.since_ms : facts.started_ms;
  // Membership and catching up begin with the round, where that is later.
  if (view.state() == v1::NODE_STATE_CATCHING_UP)
    since_ms = std::max(since_ms, machine.opened_ms());
  view.set_state_ms(Age(since_ms, facts.now_ms));
  if (OldestOf(machine) != 0) {
    view.set_outcome(OutcomeOf(machine.StandingOf(node.name)));
  }
  view.set_waiting_for(machine.WaitingFor(node.name));
  const std::vector<std::string> awaited = machine.Awaited();
  view.set_is_waited_for(std::find(awaited.begin(), awaited.end(), node.name) != awaited.end());
  view.set_incarnation(node.incarnation);
  view.set_lease_left_ms(static_cast<uint64_t>(machine.LeaseLeftMs(node.name, facts.now_ms)));
  if (trail.heartbeat_ms >= 0) view.set_heartbeat_ms(Age(trail.heartbeat_ms, facts.now_ms));
  view.set_acknowledged_round(machine.Acknowledged(node.name));
  view.set_received_bytes(trail.received_bytes);
  view.set_watches(node.watches);
  view.set_client_version(trail.client_version);
  if (trail.refused_ms >= 0) {
    v1::Refusal* refusal = view.mutable_last_refusal();
    refusal->set_reason(trail.refused_reason);
    refusal->set_round(trail.refused_round);
    refusal->set_outcome(trail.refused_outcome);
    refusal->set_age_ms(Age(trail.refused_ms, facts.now_ms));
  }
  view.set_is_draining(machine.PolicyOf(node.name) == NodePolicy::kDrain);
  view.set_policy_reason(machine.PolicyReasonOf(node.name));
  for (const v1::StoredDivergence& divergence : facts.state_check.diverged()) {
    if (divergence.state().node() == node.name) view.set_diverged_round(divergence.round());
  }
  const int place = NodeIndex(*facts.spec, node.name);
  if (place >= 0) view.set_data_parts(facts.spec->nodes(place).data_parts());
  return view;
}

v1::Round ViewOfRound(const RunFacts& facts, v1::Round round) {
  if (round.state() == v1::ROUND_STATE_COMMITTED) return round;
  const RoundMachine& machine = facts.machine;
  // The two were read one after the other; what does not belong together is left as it was kept.
  const uint64_t oldest = OldestOf(machine);
  if (oldest == 0 || round.round() < oldest || round.round() > machine.newest_round()) return round;
  round.set_waiting_for(round.round() == oldest ? machine.Decide(facts.now_ms).sentence
                                                : absl::StrCat("round ", oldest, " commits first"));
  const int64_t left_ms = machine.CloseLeftMs(facts.now_ms, round.round());
  if (left_ms >= 0) round.set_deadline_left_ms(static_cast<uint64_t>(left_ms));
  std::vector<std::string> names;
  for (const NodeFacts& node : facts.nodes) names.push_back(node.name);
  round.clear_nodes();
  for (v1::RoundNode& node : RoundNodes(machine, round.round(), names))
    *round.add_nodes() = std::move(node);
  return round;
}

absl::StatusOr<Page> ReadPage(int32_t page_size, const std::string& page_token, uint64_t first) {
  if (page_size < 0) {
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat("page_size is ", page_size, "; it is 0 (for ",
                                                kPageSizeDefault, ") to ", kPageSizeMax)),
        "WRONG_PAGE_SIZE");
  }
  Page page{first, page_size == 0 ? kPageSizeDefault
                                  : std::min(static_cast<size_t>(page_size), kPageSizeMax)};
  if (page_token.empty()) return page;
  absl::string_view digits = page_token;
  if (!absl::ConsumePrefix(&digits, kTokenPrefix) || !absl::SimpleAtoi(digits, &page.begin)) {
    return WithReason(
        absl::InvalidArgumentError("page_token is not one that a call before this gave; leave it "
                                   "empty to begin with the first page"),
        "WRONG_PAGE_TOKEN");
  }
  return page;
}

std::string PageToken(uint64_t begin) { return absl::StrCat(kTokenPrefix, begin); }

}  // namespace isthmus
