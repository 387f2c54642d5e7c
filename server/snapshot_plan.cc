#include "server/snapshot_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/sha256.h"

namespace isthmus {

void SnapshotPlan::Resume(const absl::optional<v1::StoredSnapshotPlan>& plan,
                          const std::vector<v1::StoredSnapshot>& snapshots, int64_t now_ms) {
  bool done = false;
  for (const v1::StoredSnapshot& snapshot : snapshots) {
    newest_ = std::max<uint64_t>(newest_, snapshot.facts().round());
    done = done || (plan.has_value() && snapshot.facts().round() == plan->round());
  }
  if (plan.has_value() && !done && plan->round() >= newest_) Begin(*plan, now_ms);
}

absl::optional<v1::StoredSnapshotPlan> SnapshotPlan::Propose(
    uint64_t round, const std::vector<std::string>& members) const {
  const bool last = round == steps_;
  const bool due = wanted_ || round >= newest_ + every_rounds_ || last;
  if (every_rounds_ == 0 || members.empty() || !due) return absl::nullopt;
  // Nothing comes after the last one, so it takes the place of one that is still under way.
  if (plan_.has_value() && !last) return absl::nullopt;
  v1::StoredSnapshotPlan plan;
  plan.set_round(round);
  // The one after the last that failed, so that members that cannot are passed over, all of them.
  const auto next = std::upper_bound(members.begin(), members.end(), failed_node_);
  plan.set_node(next != members.end() ? *next : members.front());
  for (const std::string& member : members) plan.add_members(member);
  return plan;
}

void SnapshotPlan::Begin(const v1::StoredSnapshotPlan& plan, int64_t now_ms) {
  plan_ = plan;
  wanted_ = false;
  reports_.clear();
  sha256_.clear();
  progress_ms_ = now_ms;
}

v1::SnapshotDuty SnapshotPlan::DutyOf(const std::string& node, uint64_t round) const {
  if (!plan_.has_value() || plan_->round() != round) return v1::SNAPSHOT_DUTY_UNSPECIFIED;
  return node == plan_->node() ? v1::SNAPSHOT_DUTY_UPLOAD : v1::SNAPSHOT_DUTY_REPORT;
}

void SnapshotPlan::Report(const std::string& node, uint64_t round, const std::string& sha256) {
  if (!plan_.has_value() || plan_->round() != round) return;
  const auto& members = plan_->members();
  if (std::find(members.begin(), members.end(), node) != members.end()) reports_[node] = sha256;
}

void SnapshotPlan::Progress(int64_t now_ms) { progress_ms_ = now_ms; }

void SnapshotPlan::Whole(const std::string& sha256, const std::string& claimed, int64_t now_ms) {
  if (!plan_.has_value()) return;
  sha256_ = sha256;
  claimed_ = claimed;
  whole_ms_ = now_ms;
  reports_[plan_->node()] = claimed;
}

SnapshotPlan::Verdict SnapshotPlan::Judge(const std::function<bool(const std::string&)>& is_live,
                                          uint64_t committed_round, int64_t now_ms) const {
  using Answer = Verdict::Answer;
  if (!plan_.has_value()) return {};
  if (whole()) return JudgeWhole(is_live, now_ms);
  const std::string& node = plan_->node();
  if (!is_live(node)) {
    return {Answer::kGiveUp, absl::StrCat("node '", node, "', which was to upload it, is gone")};
  }
  // The round may take as long as it likes.
  if (committed_round < plan_->round()) return {};
  if (now_ms - progress_ms_ < kSnapshotStallMs) {
    return {Answer::kWait, absl::StrCat("waiting for node '", node, "' to upload it")};
  }
  return {Answer::kGiveUp,
          absl::StrCat("nothing of it came from node '", node, "' for ", kSnapshotStallMs, " ms")};
}

SnapshotPlan::Verdict SnapshotPlan::JudgeWhole(
    const std::function<bool(const std::string&)>& is_live, int64_t now_ms) const {
  using Answer = Verdict::Answer;
  if (sha256_ != claimed_) {
    return {Answer::kGiveUp, absl::StrCat("its pieces hash to ", HexPrefix(sha256_), ", node '",
                                          plan_->node(), "' says ", HexPrefix(claimed_))};
  }
  size_t agree = 0;
  std::vector<std::string> differ, missing;
  for (const std::string& member : plan_->members()) {
    const auto report = reports_.find(member);
    if (report != reports_.end()) {
      if (report->second == sha256_) {
        ++agree;
      } else {
        differ.push_back(absl::StrCat(member, " ", HexPrefix(report->second)));
      }
    } else if (is_live(member)) {
      missing.push_back(member);
    }
  }
  if (2 * agree > static_cast<size_t>(plan_->members_size())) return {Answer::kAccept, ""};
  if (!missing.empty() && now_ms - whole_ms_ < kSnapshotVerdictMs) {
    return {Answer::kWait,
            absl::StrCat("waiting for the reports of ", absl::StrJoin(missing, ", "))};
  }
  if (agree > differ.size()) return {Answer::kAccept, ""};
  return {Answer::kGiveUp,
          absl::StrCat("it hashes to ", HexPrefix(sha256_), ", and ", differ.size(), " of ",
                       agree + differ.size(),
                       " members report another state: ", absl::StrJoin(differ, ", "))};
}

void SnapshotPlan::Accepted() {
  newest_ = std::max<uint64_t>(newest_, plan_->round());
  failed_node_.clear();
  plan_.reset();
  sha256_.clear();
}

void SnapshotPlan::GaveUp() {
  failed_node_ = plan_->node();
  wanted_ = true;
  plan_.reset();
  sha256_.clear();
}

}  // namespace isthmus
