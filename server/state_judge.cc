#include "server/state_judge.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/sha256.h"

namespace isthmus {
namespace {

// Snapshots that are distrusted go when newer ones count, so a few of the newest are all there are.
constexpr size_t kDistrustedMax = 4 * kSnapshotsKept;

// By state, the nodes that have it.
std::map<std::string, std::vector<std::string>> ByState(const v1::StoredDispute& dispute) {
  std::map<std::string, std::vector<std::string>> nodes;
  for (const v1::StoredStateHash& state : dispute.states()) {
    nodes[state.sha256()].push_back(state.node());
  }
  return nodes;
}

std::string WhoHasWhat(const v1::StoredDispute& dispute) {
  std::vector<std::string> sides;
  for (const auto& [sha256, nodes] : ByState(dispute)) {
    sides.push_back(absl::StrCat(HexPrefix(sha256), " on ", absl::StrJoin(nodes, ", ")));
  }
  return absl::StrJoin(sides, "; ");
}

absl::Status Wrong(const std::string& text) { return absl::FailedPreconditionError(text); }

const std::string* StateOf(const v1::StoredDispute& dispute, const std::string& node) {
  for (const v1::StoredStateHash& state : dispute.states()) {
    if (state.node() == node) return &state.sha256();
  }
  return nullptr;
}

}  // namespace

std::string DisputeSentence(const std::string& run, const v1::StoredDispute& dispute) {
  return absl::StrCat("nodes' states differ after round ", dispute.round(),
                      " and none has a majority: ", WhoHasWhat(dispute), "; ",
                      dispute.agreed_round() == 0
                          ? "no round before it is known to be in agreement"
                          : absl::StrCat("the last round in agreement is ", dispute.agreed_round()),
                      "; say whose state is right: isthmusctl runs choose ", run, " --node=NODE");
}

std::string DivergenceSentence(const v1::StoredDivergence& divergence) {
  return absl::StrCat("its state after round ", divergence.round(), " is ",
                      HexPrefix(divergence.state().sha256()), ", right is ",
                      HexPrefix(divergence.right_sha256()));
}

void StateJudge::Resume(const v1::StoredStateCheck& stored) {
  something_ = true;
  for (const v1::StoredDivergence& one : stored.diverged()) diverged_[one.state().node()] = one;
  if (stored.has_choice()) choice_ = stored.choice();
  distrusted_.assign(stored.distrusted_snapshots().begin(), stored.distrusted_snapshots().end());
  agreed_round_ = stored.agreed_round();
  diverged_count_ = stored.diverged_count();
  healed_count_ = stored.healed_count();
  if (!stored.has_dispute()) return;
  dispute_ = stored.dispute();
  Checked* const checked = At(dispute_->round());
  for (const v1::StoredStateHash& state : dispute_->states()) {
    checked->reports[state.node()] = state.sha256();
  }
  Compare(checked);
}

v1::StoredStateCheck StateJudge::Stored() const {
  v1::StoredStateCheck stored;
  for (const auto& [node, divergence] : diverged_) *stored.add_diverged() = divergence;
  if (dispute_.has_value()) *stored.mutable_dispute() = *dispute_;
  if (choice_.has_value()) *stored.mutable_choice() = *choice_;
  for (const uint64_t round : distrusted_) stored.add_distrusted_snapshots(round);
  stored.set_agreed_round(agreed_round());
  stored.set_diverged_count(diverged_count_);
  stored.set_healed_count(healed_count_);
  return stored;
}

// Null: it is older than all that are kept.
StateJudge::Checked* StateJudge::At(uint64_t round) {
  const auto found = rounds_.find(round);
  if (found != rounds_.end()) return &found->second;
  if (rounds_.size() >= kCheckedRoundsKept) {
    // The one that is disputed stays, and there is only one.
    auto oldest = rounds_.begin();
    if (dispute_.has_value() && oldest->first == dispute_->round()) ++oldest;
    if (round < oldest->first) return nullptr;
    if (Agrees(oldest->second)) agreed_round_ = std::max(agreed_round_, oldest->first);
    rounds_.erase(oldest);
  }
  Checked& made = rounds_[round];
  made.members = nodes_;
  return &made;
}

void StateJudge::Closed(uint64_t round, std::vector<std::string> members) {
  if (Checked* const checked = At(round)) checked->members = std::move(members);
}

void StateJudge::Host(uint64_t round, const std::string& sha256) {
  Checked* const checked = At(round);
  if (checked == nullptr) return;
  checked->right = sha256;
  Compare(checked);
}

void StateJudge::Compare(Checked* checked) {
  const std::string* one = checked->right.empty() ? nullptr : &checked->right;
  checked->differs = false;
  for (const auto& [node, sha256] : checked->reports) {
    if (one == nullptr) one = &sha256;
    checked->differs = checked->differs || sha256 != *one;
  }
}

void StateJudge::Report(const std::string& node, uint64_t round, const std::string& sha256,
                        int64_t now_ms) {
  if (diverged_.count(node) != 0) return;
  Checked* const checked = At(round);
  if (checked == nullptr) return;
  if (checked->reports.empty()) checked->first_ms = now_ms;
  std::string& said = checked->reports[node];
  if (said == sha256) return;  // every heartbeat says it again
  said = sha256;
  Compare(checked);
}

void StateJudge::Forget(const std::string& node) {
  for (auto& [round, checked] : rounds_) {
    if (checked.reports.erase(node) != 0) Compare(&checked);
  }
}

StateJudge::Tally StateJudge::Count(const Checked& checked) const {
  Tally tally;
  std::map<std::string, size_t> counts;
  for (const std::string& member : checked.members) {
    if (diverged_.count(member) != 0) continue;
    ++tally.members;
    const auto report = checked.reports.find(member);
    if (report == checked.reports.end()) continue;
    ++tally.reported;
    ++counts[report->second];
  }
  for (const auto& [sha256, count] : counts) {
    if (count <= tally.most) continue;
    tally.best = sha256;
    tally.most = count;
  }
  tally.all_equal = counts.size() <= 1;
  return tally;
}

// What was decided for the round, as long as a node that reports holds it: one that was lost and
// computed the round again may have come to another state, and nobody could be healed any more.
std::string StateJudge::RightOf(const Checked& checked) const {
  const auto holds = [&](const auto& report) { return report.second == checked.right; };
  if (hosted_ || checked.reports.empty() ||
      std::any_of(checked.reports.begin(), checked.reports.end(), holds)) {
    return checked.right;
  }
  return "";
}

bool StateJudge::Agrees(const Checked& checked) const {
  const Tally tally = Count(checked);
  if (!tally.all_equal || tally.reported == 0) return false;
  const std::string right = RightOf(checked);
  if (!right.empty()) return tally.best == right;
  return !hosted_ && 2 * tally.most > tally.members;
}

uint64_t StateJudge::AgreedBefore(uint64_t round) const {
  uint64_t agreed = agreed_round_;
  for (const auto& [number, checked] : rounds_) {
    if (number < round && Agrees(checked)) agreed = std::max(agreed, number);
  }
  return agreed;
}

std::string StateJudge::RightAfter(uint64_t round) const {
  const auto found = rounds_.find(round);
  if (found == rounds_.end()) return "";
  const std::string right = RightOf(found->second);
  if (!right.empty() || hosted_) return right;
  const Tally tally = Count(found->second);
  return 2 * tally.most > tally.members ? tally.best : "";
}

// The last round before that one after which the node is known to have had what is right.
uint64_t StateJudge::LastRightOf(const std::string& node, uint64_t before) const {
  uint64_t last = 0;
  for (const auto& [round, checked] : rounds_) {
    const auto report = checked.reports.find(node);
    if (round >= before || report == checked.reports.end()) continue;
    if (report->second == RightAfter(round)) last = round;
  }
  return last;
}

StateJudge::Verdict StateJudge::Heal(uint64_t round, const Checked& checked,
                                     const std::string& right) const {
  Verdict verdict;
  for (const auto& [node, sha256] : checked.reports) {
    if (sha256 != right && diverged_.count(node) == 0) verdict.diverged.push_back(node);
  }
  if (verdict.diverged.empty()) return verdict;
  verdict.kind = Verdict::Kind::kHeal;
  verdict.round = round;
  verdict.right = right;
  verdict.states = checked.reports;
  return verdict;
}

StateJudge::Verdict StateJudge::JudgeRound(uint64_t round, const Checked& checked,
                                           const std::function<bool(const std::string&)>& is_live,
                                           int64_t now_ms) const {
  const std::string right = RightOf(checked);
  if (!right.empty()) return Heal(round, checked, right);
  if (hosted_) return {};
  const Tally tally = Count(checked);
  if (2 * tally.most > tally.members) return Heal(round, checked, tally.best);
  if (tally.all_equal) return {};
  // Who comes back in a dispute may end it, and is not waited for.
  const bool is_disputed = dispute_.has_value() && dispute_->round() == round;
  const bool all_said =
      std::all_of(checked.members.begin(), checked.members.end(), [&](const std::string& member) {
        return checked.reports.count(member) != 0 || diverged_.count(member) != 0 ||
               !is_live(member);
      });
  if (!is_disputed && !all_said && now_ms - checked.first_ms < kStateVerdictMs) return {};
  if (2 * tally.most > tally.reported) return Heal(round, checked, tally.best);
  Verdict verdict;
  verdict.kind = Verdict::Kind::kDispute;
  verdict.round = round;
  for (const std::string& member : checked.members) {
    const auto report = checked.reports.find(member);
    if (report != checked.reports.end()) verdict.states.insert(*report);
  }
  return verdict;
}

StateJudge::Verdict StateJudge::Judge(const std::function<bool(const std::string&)>& is_live,
                                      int64_t now_ms) const {
  for (const auto& [round, checked] : rounds_) {
    if (!checked.differs) continue;
    Verdict verdict = JudgeRound(round, checked, is_live, now_ms);
    if (verdict.kind == Verdict::Kind::kHeal) return verdict;
    if (verdict.kind != Verdict::Kind::kDispute) continue;
    // One is enough to be asked about, and its choice may be the answer to those after it.
    const bool known = dispute_.has_value() &&
                       dispute_->SerializeAsString() == DisputeOf(verdict).SerializeAsString();
    return known ? Verdict() : verdict;
  }
  Verdict verdict;
  if (dispute_.has_value()) verdict.kind = Verdict::Kind::kSettled;
  if (dispute_.has_value()) verdict.round = dispute_->round();
  return verdict;
}

v1::StoredDispute StateJudge::DisputeOf(const Verdict& verdict) const {
  v1::StoredDispute dispute;
  dispute.set_round(verdict.round);
  // Of the same dispute after a restart less may be known.
  const bool same = dispute_.has_value() && dispute_->round() == verdict.round;
  dispute.set_agreed_round(
      std::max(AgreedBefore(verdict.round), same ? dispute_->agreed_round() : 0));
  for (const auto& [node, sha256] : verdict.states) {
    v1::StoredStateHash* const state = dispute.add_states();
    state->set_node(node);
    state->set_sha256(sha256);
  }
  return dispute;
}

absl::StatusOr<StateJudge::Verdict> StateJudge::Choose(const std::string& node) const {
  if (!dispute_.has_value()) {
    if (!choice_.has_value()) {
      return Wrong("nodes' states do not differ without a majority: there is nothing to choose");
    }
    const v1::StoredDispute& past = choice_->dispute();
    const std::string* const had = StateOf(past, node);
    if (had != nullptr && *had == choice_->sha256()) return Verdict();
    return Wrong(absl::StrCat("there is nothing to choose any more: for round ", past.round(),
                              " state ", HexPrefix(choice_->sha256()), " was chosen, of ",
                              WhoHasWhat(past)));
  }
  const std::string* const sha256 = StateOf(*dispute_, node);
  if (sha256 == nullptr) {
    return Wrong(absl::StrCat("node '", node, "' has not said what its state after round ",
                              dispute_->round(), " is; those that have: ", WhoHasWhat(*dispute_)));
  }
  // Others may have reported since.
  Verdict verdict;
  const auto checked = rounds_.find(dispute_->round());
  if (checked != rounds_.end()) verdict = Heal(dispute_->round(), checked->second, *sha256);
  if (verdict.kind != Verdict::Kind::kHeal) {
    return Wrong("the states that differed do not any more; rounds open again by themselves");
  }
  verdict.chosen = true;
  return verdict;
}

std::vector<uint64_t> StateJudge::Suspects(const Verdict& verdict,
                                           const std::vector<v1::StoredSnapshot>& snapshots) const {
  std::vector<uint64_t> rounds;
  for (const v1::StoredSnapshot& snapshot : snapshots) {
    const auto& diverged = verdict.diverged;
    const std::string& node = snapshot.node();
    const uint64_t round = snapshot.facts().round();
    if (std::find(diverged.begin(), diverged.end(), node) == diverged.end() || round == 0) continue;
    const std::string right = RightAfter(round);
    if (round > LastRightOf(node, verdict.round) &&
        (right.empty() || snapshot.facts().state_sha256() != right)) {
      rounds.push_back(round);
    }
  }
  return rounds;
}

v1::StoredStateCheck StateJudge::After(const Verdict& verdict) const {
  StateJudge then = *this;
  then.Accept(verdict);
  return then.Stored();
}

void StateJudge::Accept(const Verdict& verdict) {
  something_ = true;
  if (verdict.kind == Verdict::Kind::kDispute) {
    dispute_ = DisputeOf(verdict);
    return;
  }
  const bool ends = dispute_.has_value() && dispute_->round() == verdict.round;
  if (verdict.chosen) {
    choice_.emplace();
    *choice_->mutable_dispute() = *dispute_;
    choice_->set_sha256(verdict.right);
  }
  if (ends) dispute_.reset();
  if (verdict.kind != Verdict::Kind::kHeal) return;
  Checked* const judged = At(verdict.round);
  judged->right = verdict.right;
  for (const std::string& node : verdict.diverged) {
    v1::StoredDivergence& one = diverged_[node];
    one.mutable_state()->set_node(node);
    one.mutable_state()->set_sha256(verdict.states.at(node));
    one.set_round(verdict.round);
    one.set_right_sha256(verdict.right);
    ++diverged_count_;
    Forget(node);
  }
  Compare(judged);
  distrusted_.insert(distrusted_.end(), verdict.distrusted.begin(), verdict.distrusted.end());
  std::sort(distrusted_.begin(), distrusted_.end());
  if (distrusted_.size() > kDistrustedMax) {
    distrusted_.erase(distrusted_.begin(), distrusted_.end() - kDistrustedMax);
  }
}

const v1::StoredDivergence* StateJudge::Find(const std::string& node) const {
  const auto found = diverged_.find(node);
  return found == diverged_.end() ? nullptr : &found->second;
}

void StateJudge::Healed(const std::string& node) {
  if (diverged_.erase(node) == 0) return;
  ++healed_count_;
  Forget(node);
}

bool StateJudge::Distrusts(uint64_t snapshot_round) const {
  return std::binary_search(distrusted_.begin(), distrusted_.end(), snapshot_round);
}

}  // namespace isthmus
