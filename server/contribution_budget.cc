#include "server/contribution_budget.h"

#include <algorithm>

#include "base/check.h"

namespace isthmus {

ContributionBudget::ContributionBudget(const BudgetLimits& limits, size_t members)
    : members_(members) {
  ISTHMUS_CHECK(members >= 1);
  look_.limits = limits;
}

void ContributionBudget::SetOldest(uint64_t round, uint64_t need_bytes) {
  oldest_ = round;
  share_bytes_ = std::min(need_bytes, look_.limits.total() / members_);
}

BudgetPlace ContributionBudget::PlaceFor(const std::string& node, uint64_t round,
                                         uint64_t bytes) const {
  if (!Fits(node, round, bytes)) return BudgetPlace::kNone;
  const BudgetLimits& limits = look_.limits;
  if (bytes <= limits.memory_bytes && look_.memory_bytes <= limits.memory_bytes - bytes) {
    return BudgetPlace::kMemory;
  }
  return look_.spool_bytes < limits.spool_bytes ? BudgetPlace::kSpool : BudgetPlace::kNone;
}

// Whether what is held, and what is reserved and not used, stay within the limits.
bool ContributionBudget::Fits(const std::string& node, uint64_t round, uint64_t bytes) const {
  const bool is_oldest = round <= oldest_;
  uint64_t own = 0, shares_used = 0, others = 0;
  for (const auto& [held_round, nodes] : held_) {
    for (const auto& [name, held] : nodes) {
      if (held_round != oldest_) {
        others += held;
        continue;
      }
      shares_used += std::max(held, share_bytes_);
      if (name == node) own = held;
    }
  }
  const auto oldest = held_.find(oldest_);
  const size_t with_pieces = oldest == held_.end() ? 0 : oldest->second.size();
  const uint64_t unused = (members_ - std::min(members_, with_pieces)) * share_bytes_;
  const bool within_share = is_oldest && own + bytes <= share_bytes_;
  const uint64_t taken = shares_used + unused + others;
  if (within_share) return true;
  const uint64_t grows = is_oldest && own < share_bytes_ ? own + bytes - share_bytes_ : bytes;
  return taken + grows <= look_.limits.total();
}

void ContributionBudget::Add(const std::string& node, uint64_t round, BudgetPlace place,
                             uint64_t bytes) {
  if (place == BudgetPlace::kNone) {
    ++look_.pushed_back_pieces;
    return;
  }
  const bool spools = place == BudgetPlace::kSpool;
  (spools ? look_.spool_bytes : look_.memory_bytes) += bytes;
  if (spools) ++look_.spooled_pieces;
  held_[round][node] += bytes;
}

void ContributionBudget::Remove(const std::string& node, uint64_t round, BudgetPlace place,
                                uint64_t bytes) {
  uint64_t& used = place == BudgetPlace::kSpool ? look_.spool_bytes : look_.memory_bytes;
  const auto nodes = held_.find(round);
  ISTHMUS_CHECK(place != BudgetPlace::kNone && used >= bytes && nodes != held_.end());
  used -= bytes;
  uint64_t& held = nodes->second[node];
  ISTHMUS_CHECK(held >= bytes);
  held -= bytes;
  if (held == 0) nodes->second.erase(node);
  if (nodes->second.empty()) held_.erase(nodes);
}

}  // namespace isthmus
