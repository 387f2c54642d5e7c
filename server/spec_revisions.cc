#include "server/spec_revisions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "spec/rounds.h"
#include "spec/run_spec.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

absl::Status Refused(absl::string_view reason, const std::string& text) {
  return WithReason(absl::FailedPreconditionError(text), reason);
}

uint64_t RoundsCarried(const v1::RunSpec& spec) { return spec.aggregate().carry_rounds(); }

}  // namespace

SpecRevisions::SpecRevisions(const v1::RunSpec& first) {
  revisions_.push_back({1, 1, 0, std::make_shared<const v1::RunSpec>(first)});
}

// The newest of those that hold in it.
const SpecRevisions::Revision& SpecRevisions::At(uint64_t round) const {
  const auto later = std::upper_bound(
      revisions_.begin() + 1, revisions_.end(), round,
      [](uint64_t value, const Revision& revision) { return value < revision.from_round; });
  return *std::prev(later);
}

const v1::RunSpec& SpecRevisions::SpecOf(uint64_t round) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return *At(round).spec;
}

uint64_t SpecRevisions::RevisionOf(uint64_t round) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return At(round).number;
}

const v1::RunSpec& SpecRevisions::last() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return *revisions_.back().spec;
}

uint64_t SpecRevisions::last_number() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return revisions_.back().number;
}

uint64_t SpecRevisions::last_from_round() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return revisions_.back().from_round;
}

uint64_t SpecRevisions::StepAfter(uint64_t round) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return StepAfterLocked(round);
}

uint64_t SpecRevisions::StepAfterLocked(uint64_t round) const {
  if (round == 0) return 0;
  const Revision& revision = At(round);
  return StepAfterRounds(*revision.spec, revision.step_before, round + 1 - revision.from_round);
}

float SpecRevisions::LearningRateOf(uint64_t round) const {
  return LearningRate(SpecOf(round), StepAfter(round));
}

ContributionSize SpecRevisions::SizeLimitsOf(uint64_t round) const {
  std::lock_guard<std::mutex> lock(mutex_);
  // Nodes carried by the spec of the round before, or joined with the present one.
  uint64_t carried = RoundsCarried(*At(round).spec);
  if (round > 1) carried = std::max(carried, RoundsCarried(*At(round - 1).spec));
  const Revision* const first = &At(round > carried ? round - carried : 1);
  const Revision* const last = &At(round);
  ContributionSize limits;
  for (const Revision* one = first; one <= last; ++one) {
    const v1::AggregateSpec& own = one->spec->aggregate();
    // Rounded up: limits that were given need not be of whole rounds.
    const auto of_rounds = [&](uint64_t limit) {
      const uint64_t rounds = 1 + RoundsCarried(*one->spec);
      return (limit * std::max(rounds, 1 + carried) + rounds - 1) / rounds;
    };
    limits.steps = std::max(limits.steps, std::min(kStepsMax, of_rounds(own.steps_max())));
    limits.tokens = std::max(limits.tokens, std::min(kTokensMax, of_rounds(own.tokens_max())));
  }
  return limits;
}

uint64_t SpecRevisions::rounds() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return RoundsLocked();
}

uint64_t SpecRevisions::RoundsLocked() const {
  const Revision& last = revisions_.back();
  return last.from_round - 1 + RoundsLeft(*last.spec, last.step_before);
}

absl::Status SpecRevisions::Check(const v1::RunSpec& spec, uint64_t from_round) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Revision& last = revisions_.back();
  if (revisions_.size() >= kSpecRevisionsMax) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                          "the run has had ", revisions_.size(), " specs, the limit is ",
                          kSpecRevisionsMax, "; fork it to go on with others")),
                      "SPEC_REVISIONS");
  }
  if (from_round < last.from_round) {
    return Refused("FROM_ROUND", absl::StrCat("from_round is ", from_round, ", but revision ",
                                              last.number, " holds from round ", last.from_round,
                                              " on; give that or a later one"));
  }
  if (from_round > RoundsLocked() + 1) {
    return Refused("FROM_ROUND", absl::StrCat("from_round is ", from_round,
                                              ", but the run ends with round ", RoundsLocked()));
  }
  const uint64_t step_before = StepAfterLocked(from_round - 1);
  if (spec.steps() > step_before) return absl::OkStatus();
  return Refused("STEPS",
                 absl::StrCat("steps is ", spec.steps(), ", but round ", from_round,
                              " begins after step ", step_before, "; give more steps than that"));
}

void SpecRevisions::Add(const v1::StoredRevision& revision) {
  std::lock_guard<std::mutex> lock(mutex_);
  revisions_.push_back({revision.revision(), revision.from_round(),
                        StepAfterLocked(revision.from_round() - 1),
                        std::make_shared<const v1::RunSpec>(revision.spec())});
}

std::vector<v1::StoredRevision> SpecRevisions::After(uint64_t round) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<v1::StoredRevision> after;
  for (size_t i = 1; i < revisions_.size(); ++i) {
    const Revision& revision = revisions_[i];
    if (revision.from_round <= round) continue;
    after.emplace_back();
    after.back().set_revision(revision.number);
    after.back().set_from_round(revision.from_round);
    *after.back().mutable_spec() = *revision.spec;
  }
  return after;
}

}  // namespace isthmus
