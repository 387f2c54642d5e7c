// Whose state becomes the next snapshot, and whether the one that came may count (design rule 14).
// Pure: no clock, lock, thread, disk or network; the caller brings time and facts.
//
//   Propose     a round is about to open: is its state wanted, and of whom?
//   Begin       that is durable: its members are told with the round (DutyOf)
//   Report      a member says what its state hashes to
//   Whole       all pieces are there, and hash to this
//   Judge       accept, give up, or wait
//
// One plan at a time; that of the last round takes the place of an earlier one. One that is given
// up makes the next round's state wanted, of another member where there is one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "isthmus/v1/coordinator.pb.h"
#include "isthmus/v1/storage.pb.h"

namespace isthmus {

class SnapshotPlan {
 public:
  // A state is wanted when so many rounds have passed since the last snapshot, and after the last
  // round (`steps`; 0: there is none). 0 for every_rounds: never, whoever wants it.
  explicit SnapshotPlan(uint64_t every_rounds, uint64_t steps = 0)
      : every_rounds_(every_rounds), steps_(steps) {}

  // Another revision of the spec.
  void SetEvery(uint64_t every_rounds) { every_rounds_ = every_rounds; }
  void SetLastRound(uint64_t steps) { steps_ = steps; }

  // What a coordinator that starts again knows. Reports come again.
  void Resume(const absl::optional<v1::StoredSnapshotPlan>& plan,
              const std::vector<v1::StoredSnapshot>& snapshots, int64_t now_ms);

  // For the round that opens with these members (ascending), if its state is wanted. Changes
  // nothing.
  absl::optional<v1::StoredSnapshotPlan> Propose(uint64_t round,
                                                 const std::vector<std::string>& members) const;
  void Begin(const v1::StoredSnapshotPlan& plan, int64_t now_ms);
  // The next round's state is wanted, whatever the schedule says.
  void Want() { wanted_ = true; }

  v1::SnapshotDuty DutyOf(const std::string& node, uint64_t round) const;

  // Under way; null: none.
  const v1::StoredSnapshotPlan* plan() const { return plan_.has_value() ? &*plan_ : nullptr; }

  void Report(const std::string& node, uint64_t round, const std::string& sha256);
  // The round was committed, or a piece came: the uploader is not silent.
  void Progress(int64_t now_ms);
  // `claimed`: what the uploader said that its pieces hash to.
  void Whole(const std::string& sha256, const std::string& claimed, int64_t now_ms);
  bool whole() const { return !sha256_.empty(); }

  struct Verdict {
    enum class Answer { kWait, kAccept, kGiveUp };
    Answer answer = Answer::kWait;
    std::string sentence;  // why it is given up, or for whom it is waited
  };
  // `is_live`: the node has a lease. `committed_round`: the last one.
  Verdict Judge(const std::function<bool(const std::string&)>& is_live, uint64_t committed_round,
                int64_t now_ms) const;
  // What Judge said was done.
  void Accepted();
  void GaveUp();

 private:
  Verdict JudgeWhole(const std::function<bool(const std::string&)>& is_live, int64_t now_ms) const;

  uint64_t every_rounds_, steps_;
  uint64_t newest_ = 0;  // round of the newest snapshot
  bool wanted_ = false;
  std::string failed_node_;  // its upload was given up
  absl::optional<v1::StoredSnapshotPlan> plan_;
  std::map<std::string, std::string> reports_;  // by node
  std::string sha256_, claimed_;                // of the pieces; empty: not all are there
  int64_t progress_ms_ = 0;
  int64_t whole_ms_ = 0;
};

}  // namespace isthmus
