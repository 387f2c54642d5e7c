// How much of contributions to open rounds is held, and where the next piece goes: to memory while
// there is room, beyond it to the spool file, and only past both limits is it pushed back. Pure
// arithmetic; the I/O is server/piece_keeper.h.
//
// Nobody can be kept from the round that commits next by the others: each member has a share
// reserved for its contribution to that round. What is not reserved goes to whoever comes first, to
// later rounds too. As a round commits, the next one's pieces move into the shares.
//
//   BudgetPlace place = budget.PlaceFor("fra-1", round, bytes);
//   if (place != BudgetPlace::kNone) budget.Add("fra-1", round, place, bytes);
//
// Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/limits.h"

namespace isthmus {

struct BudgetLimits {
  uint64_t memory_bytes = kContributionMemoryMibDefault << 20;
  // A piece that begins below it may end past it, so that no room is left over between the two.
  uint64_t spool_bytes = kSpoolMibDefault << 20;
  uint64_t total() const { return memory_bytes + spool_bytes; }
};

enum class BudgetPlace { kNone, kMemory, kSpool };

struct BudgetLook {
  BudgetLimits limits;
  uint64_t memory_bytes = 0;
  uint64_t spool_bytes = 0;
  // Since the start.
  uint64_t spooled_pieces = 0;
  uint64_t pushed_back_pieces = 0;
};

class ContributionBudget {
 public:
  // `members`: nodes of the run, at least 1.
  ContributionBudget(const BudgetLimits& limits, size_t members);

  // The oldest round that takes contributions, and what a member may need for it: so much is
  // reserved for each, as far as there is. Whatever is held of rounds before it is on its way out.
  void SetOldest(uint64_t round, uint64_t need_bytes);

  // Where a piece of that many bytes would go. kNone: nowhere, try again when a round has
  // committed.
  BudgetPlace PlaceFor(const std::string& node, uint64_t round, uint64_t bytes) const;

  // It went there. kNone: it was pushed back.
  void Add(const std::string& node, uint64_t round, BudgetPlace place, uint64_t bytes);
  void Remove(const std::string& node, uint64_t round, BudgetPlace place, uint64_t bytes);

  const BudgetLook& look() const { return look_; }
  uint64_t share_bytes() const { return share_bytes_; }

 private:
  bool Fits(const std::string& node, uint64_t round, uint64_t bytes) const;

  const size_t members_;
  BudgetLook look_;
  uint64_t oldest_ = 0;
  uint64_t share_bytes_ = 0;
  std::map<uint64_t, std::map<std::string, uint64_t>> held_;  // bytes by round and node
};

}  // namespace isthmus
