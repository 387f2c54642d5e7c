// Whose state is right, where nodes' states are compared (design rule 16). Pure: no clock, lock,
// thread, disk or network; the caller brings time and facts.
//
//   Closed      a checked round takes no contributions any more: its members are known
//   Host        the coordinator hosts the model, and its own state after that round is this one
//   Report      a node says what its state hashes to
//   Judge       what follows, oldest round first: a node heals, nobody knows, or nothing
//   Choose      an operator says who is right
//   After       what must be durable before Accept
//   Accept      it is: the verdict holds
//   Healed      the node has joined with a state that is right
//
// A state is right when more than half of a round's members have it; when all members that live
// have reported, or kStateVerdictMs have passed, more than half of those that reported are enough.
// Members that heal have no voice. What was decided for a round stays: a report that comes later
// and differs makes another node heal. Where nothing was decided, late reports count.
//
// Of kCheckedRoundsKept rounds reports are kept, of each node one a round.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "isthmus/v1/storage.pb.h"

namespace isthmus {

class StateJudge {
 public:
  // `nodes` of the run, ascending: the members of a round of which no other are known. `hosted`:
  // nothing is right but what Host says.
  explicit StateJudge(std::vector<std::string> nodes, bool hosted = false)
      : nodes_(std::move(nodes)), hosted_(hosted) {}

  // What a coordinator that starts again knows. Reports come again.
  void Resume(const v1::StoredStateCheck& stored);
  // The same, to be kept.
  v1::StoredStateCheck Stored() const;
  bool has_something() const { return something_; }

  void Closed(uint64_t round, std::vector<std::string> members);
  void Host(uint64_t round, const std::string& sha256);
  void Report(const std::string& node, uint64_t round, const std::string& sha256, int64_t now_ms);
  // The node has no voice any more, since an operator has taken it out.
  void Forget(const std::string& node);

  struct Verdict {
    enum class Kind {
      kNothing,
      kHeal,     // `diverged` are to start from a snapshot
      kDispute,  // no state has a majority
      kSettled,  // what was disputed is not so any more
    };
    Kind kind = Kind::kNothing;
    uint64_t round = 0;
    std::string right;                          // kHeal
    std::vector<std::string> diverged;          // kHeal, ascending
    std::map<std::string, std::string> states;  // of that round, by node
    bool chosen = false;                        // by an operator
    // Rounds of snapshots that are to be given to nobody: of Suspects.
    std::vector<uint64_t> distrusted;
  };
  // Changes nothing. `is_live`: the node has a lease.
  Verdict Judge(const std::function<bool(const std::string&)>& is_live, int64_t now_ms) const;
  // kNothing: that was chosen before. FAILED_PRECONDITION: there is nothing to choose, the node has
  // not reported, or another state was chosen.
  absl::StatusOr<Verdict> Choose(const std::string& node) const;

  // Those of these snapshots that a node has uploaded after it last had what was right.
  std::vector<uint64_t> Suspects(const Verdict& verdict,
                                 const std::vector<v1::StoredSnapshot>& snapshots) const;
  v1::StoredStateCheck After(const Verdict& verdict) const;
  void Accept(const Verdict& verdict);
  // Null: the node's state does not differ, as far as is known.
  const v1::StoredDivergence* Find(const std::string& node) const;
  void Healed(const std::string& node);

  const std::map<std::string, v1::StoredDivergence>& diverged() const { return diverged_; }
  // Null: there is none.
  const v1::StoredDispute* dispute() const { return dispute_.has_value() ? &*dispute_ : nullptr; }
  const v1::StoredChoice* choice() const { return choice_.has_value() ? &*choice_ : nullptr; }
  bool Distrusts(uint64_t snapshot_round) const;
  // The last round after which all that reported had one state, more than half of its members; 0:
  // none yet.
  uint64_t agreed_round() const { return AgreedBefore(~uint64_t{0}); }
  // What is known to be right after that round; empty: nothing is.
  std::string RightAfter(uint64_t round) const;

 private:
  struct Checked {
    std::vector<std::string> members;
    std::map<std::string, std::string> reports;  // by node
    std::string right;                           // decided; empty: not
    int64_t first_ms = 0;                        // of the first report
    bool differs = false;                        // a report from another, or from what is right
  };
  struct Tally {
    size_t members = 0;   // that have a voice
    size_t reported = 0;  // of those
    std::string best;     // what most have; the least of several
    size_t most = 0;
    bool all_equal = true;
  };

  Checked* At(uint64_t round);
  static void Compare(Checked* checked);  // sets `differs`
  Tally Count(const Checked& checked) const;
  std::string RightOf(const Checked& checked) const;
  bool Agrees(const Checked& checked) const;
  uint64_t AgreedBefore(uint64_t round) const;
  uint64_t LastRightOf(const std::string& node, uint64_t before) const;
  Verdict Heal(uint64_t round, const Checked& checked, const std::string& right) const;
  Verdict JudgeRound(uint64_t round, const Checked& checked,
                     const std::function<bool(const std::string&)>& is_live, int64_t now_ms) const;
  v1::StoredDispute DisputeOf(const Verdict& verdict) const;

  std::vector<std::string> nodes_;
  bool hosted_;
  std::map<uint64_t, Checked> rounds_;
  std::map<std::string, v1::StoredDivergence> diverged_;  // by node
  absl::optional<v1::StoredDispute> dispute_;
  absl::optional<v1::StoredChoice> choice_;
  std::vector<uint64_t> distrusted_;  // ascending
  uint64_t agreed_round_ = 0;         // of rounds that are not kept any more
  uint64_t diverged_count_ = 0, healed_count_ = 0;
  bool something_ = false;
};

// For people: who has what, which round was the last in agreement, and what to do.
std::string DisputeSentence(const std::string& run, const v1::StoredDispute& dispute);
std::string DivergenceSentence(const v1::StoredDivergence& divergence);

}  // namespace isthmus
