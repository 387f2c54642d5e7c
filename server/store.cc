#include "server/store.h"

#include <mutex>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

// An update costs this much beside its payload, so that void updates are counted too.
constexpr size_t kUpdateOverheadBytes = 4096;

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(size_t bytes_max) : bytes_max_(bytes_max) {}

  absl::Status Commit(StoredUpdatePtr update) override {
    std::lock_guard<std::mutex> lock(mutex_);
    ISTHMUS_CHECK(update->record.round() == last_round_ + 1);
    last_round_ = update->record.round();
    bytes_ += Cost(*update);
    updates_.push_back(std::move(update));
    while (bytes_ > bytes_max_ && updates_.size() > 1) {
      bytes_ -= Cost(*updates_.front());
      updates_.pop_front();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<StoredUpdatePtr>> ReadAfter(uint64_t last_round) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (last_round > last_round_) return NotKept(last_round);
    if (last_round + updates_.size() < last_round_) return NotKept(last_round + 1);
    const auto first = updates_.end() - static_cast<std::ptrdiff_t>(last_round_ - last_round);
    return std::vector<StoredUpdatePtr>(first, updates_.end());
  }

  uint64_t last_round() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return last_round_;
  }

  absl::StatusOr<std::string> RecordSha256(uint64_t round) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (round == 0) return std::string();
    const uint64_t before_first = last_round_ - updates_.size();
    if (round > last_round_ || round < before_first) return NotKept(round);
    if (round == before_first) return updates_.front()->record.previous_sha256();
    return updates_[round - before_first - 1]->record.sha256();
  }

 private:
  static size_t Cost(const StoredUpdate& update) { return update.bytes() + kUpdateOverheadBytes; }

  absl::Status NotKept(uint64_t round) const {
    return WithReason(
        absl::OutOfRangeError(absl::StrCat(
            "the update of round ", round, " is not kept; rounds ",
            last_round_ - updates_.size() + 1, " to ", last_round_, " are (limit ", bytes_max_,
            " bytes). A node further behind cannot catch up by updates: start it from a state of "
            "one of these rounds")),
        "UPDATES_NOT_KEPT");
  }

  const size_t bytes_max_;
  mutable std::mutex mutex_;
  std::deque<StoredUpdatePtr> updates_;  // the newest ones without gaps, up to last_round_
  size_t bytes_ = 0;
  uint64_t last_round_ = 0;
};

}  // namespace

std::unique_ptr<Store> MakeMemoryStore(size_t bytes_max) {
  return std::make_unique<MemoryStore>(bytes_max);
}

}  // namespace isthmus
