// Keeps the pieces of contributions to open rounds within their budget
// (server/contribution_budget.h): a piece stays in memory or goes to a spool file, and where it is
// makes no difference to who reads it. It counts until the last who holds it lets it go.
//
//   PieceKeeper keeper(limits, members, "/var/lib/isthmus/run/spool");
//   ISTHMUS_RETURN_IF_ERROR(keeper.Keep("fra-1", round, &piece));
//
// Spool files are of no use to anybody after this process: they have no name once they are open, so
// that whatever ends the process frees their room. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/contribution.h"
#include "server/contribution_budget.h"

namespace isthmus {

// A piece costs this much beside its bytes (map node, shared pointers), so that many tiny ones are
// counted as what they take.
inline constexpr uint64_t kPieceOverheadBytes = 256;

class PieceSpool;

class PieceKeeper {
 public:
  // `spool_dir` is made when it is needed, and what an earlier process left there goes. Empty:
  // there is no spool file, whatever the limits say.
  PieceKeeper(BudgetLimits limits, size_t members, std::string spool_dir);
  ~PieceKeeper();

  // See ContributionBudget::SetOldest.
  void SetOldest(uint64_t round, uint64_t need_bytes);

  // Takes the piece to where it belongs; `piece` has the same bytes afterwards.
  //   RESOURCE_EXHAUSTED  both limits are reached, or the spool file cannot be written (no room, a
  //                       disk that fails); with RetryInfo. `piece` is as it was
  absl::Status Keep(const std::string& node, uint64_t round, HeldPiece* piece);

  BudgetLook Look() const;
  uint64_t share_bytes() const;
  const BudgetLimits& limits() const { return limits_; }

 private:
  struct Ledger {
    explicit Ledger(const BudgetLimits& limits, size_t members) : budget(limits, members) {}
    mutable std::mutex mutex;
    ContributionBudget budget;
  };
  class Charge;

  absl::Status PushedBack(const std::string& node, uint64_t round, uint64_t bytes);

  const BudgetLimits limits_;
  const std::shared_ptr<Ledger> ledger_;  // pieces may outlive the keeper
  const std::unique_ptr<PieceSpool> spool_;
};

}  // namespace isthmus
