// The one judge of recorded histories, for the simulator and for tests with real processes:
//
//   I1  every contribution is in exactly one update, or settled back, or counted as dropped by its
//       node; none counts twice
//   I2  an update is a pure function of the one before it and of the set of contributions: it is
//       folded anew from them here, plainly
//   I3  every node sees the same bytes for a round; rounds rise by one, none is skipped or issued
//       again; the replicated state is the same wherever a round was applied
//   I4  no update is seen by anyone before it is durable
//
// It knows nothing of the code it judges but the layout of pieces and the hash of a record.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "spec/grid.h"
#include "tests/history/history.h"

namespace isthmus {

struct Violation {
  std::string invariant;  // "I1" to "I4"
  std::string sentence;
  size_t event = 0;  // number of the event that broke it, from 0
};

class HistoryChecker {
 public:
  // `grid`: of the run's model; null: updates are not folded anew. `overlap` and `local_steps`, the
  // same in all rounds: of its spec.
  explicit HistoryChecker(std::shared_ptr<const Grid> grid, uint32_t overlap = 0,
                          uint64_t local_steps = 1)
      : grid_(std::move(grid)), overlap_(overlap), local_steps_(local_steps) {}

  void Take(const Event& event);
  // The run has ended in good order: nothing may be open any more.
  void Finish();

  const std::vector<Violation>& violations() const { return violations_; }
  uint64_t last_durable() const { return rounds_.size(); }
  uint64_t contributions() const { return contributions_.size(); }
  // What became of the contributions of all nodes. A contribution that a later life computed again,
  // bit for bit, is one.
  struct Ledger {
    uint64_t included = 0;
    uint64_t left_out = 0;
    uint64_t dropped = 0;
  };
  Ledger ledger() const;

 private:
  using Key = std::tuple<std::string, uint64_t, std::string>;  // node, round, digest
  struct Contribution {
    PiecesPtr pieces;
    std::set<uint64_t> lives;  // that computed it
    uint64_t included_in = 0;  // round; 0: none
    bool left_out = false;
    bool dropped = false;
  };
  struct Round {
    std::string sha256;
    std::shared_ptr<const v1::UpdateRecord> record;
    std::string payload;  // hash of its pieces; empty: they were not recorded
    std::string state;    // after it; empty: not known yet
  };
  struct Life {
    bool begun = false;
    uint64_t life = 0;
    uint64_t received = 0;
    uint64_t applied = 0;
    std::map<uint64_t, std::string> open;  // round -> digest of what is not settled
  };

  void TakeRestored(const Event& event);
  void TakeComputed(const Event& event);
  void TakeReceipt(const Event& event);
  void TakeReceived(const Event& event);
  void TakeSettled(const Event& event);
  void TakeApplied(const Event& event);
  void TakeDurable(const Event& event);
  void TakePublished(const Event& event);
  void CheckIncluded(const v1::UpdateRecord& record);
  void CheckFold(const v1::UpdateRecord& record, const PiecesPtr& update);
  void CheckState(const std::string& node, uint64_t round, const std::string& state);
  // The life that an event must belong to; null, and a violation, when it is another one.
  Life* LifeOf(const Event& event);
  // Null when the round is not durable.
  Round* Find(uint64_t round);
  static bool Names(const Round& round, const std::string& node, const std::string& digest);
  void Violate(const std::string& invariant, const std::string& sentence);

  const std::shared_ptr<const Grid> grid_;
  const uint32_t overlap_;
  const uint64_t local_steps_;
  size_t event_ = 0;
  std::vector<Round> rounds_;  // durable ones; [round - 1]
  std::string start_state_;
  std::map<std::string, Life> lives_;
  std::map<Key, Contribution> contributions_;
  std::vector<Violation> violations_;
};

// All of it at once. `complete`: the run has ended in good order.
std::vector<Violation> CheckHistory(const History& history, std::shared_ptr<const Grid> grid,
                                    bool complete);

}  // namespace isthmus
