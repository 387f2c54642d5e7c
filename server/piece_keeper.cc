#include "server/piece_keeper.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "server/piece_spool.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

BudgetLimits WithSpool(BudgetLimits limits, bool has_spool) {
  if (!has_spool) limits.spool_bytes = 0;
  return limits;
}

}  // namespace

// What a piece counts, as long as it lives.
class PieceKeeper::Charge {
 public:
  Charge(std::shared_ptr<Ledger> ledger, std::string node, uint64_t round, BudgetPlace place,
         uint64_t bytes)
      : ledger_(std::move(ledger)),
        node_(std::move(node)),
        round_(round),
        place_(place),
        bytes_(bytes) {}
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge() {
    held.reset();
    std::lock_guard<std::mutex> lock(ledger_->mutex);
    ledger_->budget.Remove(node_, round_, place_, bytes_);
  }

  std::shared_ptr<const absl::string_view> held;
  absl::string_view bytes;

 private:
  const std::shared_ptr<Ledger> ledger_;
  const std::string node_;
  const uint64_t round_;
  const BudgetPlace place_;
  const uint64_t bytes_;
};

PieceKeeper::PieceKeeper(BudgetLimits limits, size_t members, std::string spool_dir)
    : limits_(WithSpool(limits, !spool_dir.empty())),
      ledger_(std::make_shared<Ledger>(limits_, members)),
      spool_(limits_.spool_bytes == 0
                 ? nullptr
                 : std::make_unique<PieceSpool>(std::move(spool_dir), kSpoolFileBytes)) {}

PieceKeeper::~PieceKeeper() = default;

void PieceKeeper::SetOldest(uint64_t round, uint64_t need_bytes) {
  std::lock_guard<std::mutex> lock(ledger_->mutex);
  ledger_->budget.SetOldest(round, need_bytes);
}

absl::Status PieceKeeper::Keep(const std::string& node, uint64_t round, HeldPiece* piece) {
  const uint64_t bytes = piece->bytes->size() + kPieceOverheadBytes;
  BudgetPlace place;
  {
    std::lock_guard<std::mutex> lock(ledger_->mutex);
    place = ledger_->budget.PlaceFor(node, round, bytes);
    ledger_->budget.Add(node, round, place, bytes);
  }
  if (place == BudgetPlace::kNone) return PushedBack(node, round, bytes);
  const auto charge = std::make_shared<Charge>(ledger_, node, round, place, bytes);
  charge->held = piece->bytes;
  if (place == BudgetPlace::kSpool) {
    auto written = spool_->Write(*piece->bytes);  // may wait for the disk
    if (!written.ok()) {
      LogWarning("a piece of a contribution is pushed back",
                 {{"node", node}, {"why", std::string(written.status().message())}});
      std::lock_guard<std::mutex> lock(ledger_->mutex);
      ledger_->budget.Add(node, round, BudgetPlace::kNone, bytes);
      return WithRetryAfterMs(WithReason(written.status(), "SPOOL_FAILED"), kRetryAfterMs);
    }
    charge->held = *std::move(written);
  }
  charge->bytes = *charge->held;
  piece->bytes = std::shared_ptr<const absl::string_view>(charge, &charge->bytes);
  return absl::OkStatus();
}

absl::Status PieceKeeper::PushedBack(const std::string& node, uint64_t round, uint64_t bytes) {
  const BudgetLook look = Look();
  return WithRetryAfterMs(
      WithReason(
          absl::ResourceExhaustedError(absl::StrCat(
              "no room for a piece of ", bytes, " bytes of node '", node, "' for round ", round,
              ": contributions to open rounds have ", look.memory_bytes, " bytes in memory, limit ",
              limits_.memory_bytes, " (--contribution_memory_mib), and ", look.spool_bytes,
              " in the spool file, limit ", limits_.spool_bytes,
              " (--spool_mib), of which each node's share is reserved; try again when a round has "
              "committed")),
          "OPEN_CONTRIBUTION_BYTES"),
      kRetryAfterMs);
}

BudgetLook PieceKeeper::Look() const {
  std::lock_guard<std::mutex> lock(ledger_->mutex);
  return ledger_->budget.look();
}

uint64_t PieceKeeper::share_bytes() const {
  std::lock_guard<std::mutex> lock(ledger_->mutex);
  return ledger_->budget.share_bytes();
}

}  // namespace isthmus
