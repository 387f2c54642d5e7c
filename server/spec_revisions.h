// The specs of a run: the one it was made with, and those that operators gave it since. Each holds
// from a round on, and what a round's numbers are follows from the one that holds in it and from
// the steps of the rounds before.
//
//   revisions.SpecOf(round)         revisions.StepAfter(round)         revisions.rounds()
//
// References to specs stay good as long as the object. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "isthmus/v1/run_spec.pb.h"
#include "isthmus/v1/storage.pb.h"
#include "kernels/aggregate.h"

namespace isthmus {

class SpecRevisions {
 public:
  // `first`: complete, revision 1.
  explicit SpecRevisions(const v1::RunSpec& first);

  // What holds in a round, from 1. After the last one: what held there.
  const v1::RunSpec& SpecOf(uint64_t round) const;
  uint64_t RevisionOf(uint64_t round) const;
  // The step at which a round ends; 0 of round 0.
  uint64_t StepAfter(uint64_t round) const;
  float LearningRateOf(uint64_t round) const;
  // With local steps: what one contribution to the round may say of itself at most. It may carry
  // what was left out of rounds before, so a revision counts for as long as a delta of its time may
  // be carried; and where another one carries longer, for as many rounds as that.
  ContributionSize SizeLimitsOf(uint64_t round) const;
  // Of the whole run, as far as is known now.
  uint64_t rounds() const;

  const v1::RunSpec& last() const;
  uint64_t last_number() const;
  uint64_t last_from_round() const;

  // Whether a spec can hold from that round on: not before an earlier revision does, in a round
  // that comes, and with steps left for it.
  absl::Status Check(const v1::RunSpec& spec, uint64_t from_round) const;
  // One that Check was well with, or that the store has.
  void Add(const v1::StoredRevision& revision);

  // Those after the first, ascending, for the store; and those that hold after a round.
  std::vector<v1::StoredRevision> Stored() const { return After(0); }
  std::vector<v1::StoredRevision> After(uint64_t round) const;

 private:
  struct Revision {
    uint64_t number = 1;
    uint64_t from_round = 1;
    uint64_t step_before = 0;  // of from_round
    std::shared_ptr<const v1::RunSpec> spec;
  };
  const Revision& At(uint64_t round) const;
  uint64_t StepAfterLocked(uint64_t round) const;
  uint64_t RoundsLocked() const;

  mutable std::mutex mutex_;
  std::vector<Revision> revisions_;  // ascending by number and from_round
};

}  // namespace isthmus
