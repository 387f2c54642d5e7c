#include "server/fork.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/coordinator.h"
#include "spec/grid.h"
#include "spec/section_ranges.h"
#include "spec/stages.h"
#include "spec/state_hash.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

constexpr uint64_t kPieceElements = kSnapshotPieceBytesMax / sizeof(float);
constexpr uint64_t kBitsOfOne = 0x3ff0000000000000;  // 1.0 as float64

bool SameOptimizer(const v1::RunSpec& a, const v1::RunSpec& b) {
  return a.has_outer() == b.has_outer() && StateSections(a) == StateSections(b) &&
         (a.has_outer() ? a.outer().kind() == b.outer().kind()
                        : a.optimizer().base() == b.optimizer().base());
}

bool SameHosted(const v1::RunSpec& a, const v1::RunSpec& b) {
  return IsHosted(a) && IsHosted(b) && a.outer().kind() == b.outer().kind() &&
         HostedSections(a) == HostedSections(b);
}

// Writes the new run's state after round 0, section by section, and hashes it.
class Copier {
 public:
  Copier(const ForkSource& from, const Grid& grid, Store* to)
      : from_(from),
        grid_(grid),
        to_(to),
        pieces_(from.store->Pieces(from.snapshot.facts().round())) {
    plain_.set_sections(1);
    plain_.set_elements(grid.elements());
  }

  // Section `section` of the other run's snapshot. Its hash alone.
  absl::StatusOr<std::string> Copy(uint32_t section) {
    StateHasher hasher(grid_, plain_);
    for (const SectionRange& range : pieces_) {
      if (range.section != section) continue;
      ISTHMUS_ASSIGN_OR_RETURN(const std::string piece,
                               from_.store->ReadPiece(from_.snapshot.facts().round(), range));
      ISTHMUS_RETURN_IF_ERROR(Write(range, piece, &hasher));
    }
    return hasher.Finish();
  }

  absl::StatusOr<std::string> Zero(uint32_t section) {
    StateHasher hasher(grid_, plain_);
    for (uint64_t begin = 0; begin < grid_.elements(); begin += kPieceElements) {
      const SectionRange range = {section, begin,
                                  std::min(grid_.elements(), begin + kPieceElements)};
      ISTHMUS_RETURN_IF_ERROR(Write(range, std::string(PieceBytes(range), '\0'), &hasher));
    }
    return hasher.Finish();
  }

  uint64_t bytes() const { return bytes_; }

 private:
  absl::Status Write(const SectionRange& range, const std::string& piece, StateHasher* hasher) {
    ISTHMUS_RETURN_IF_ERROR(hasher->Add(piece));
    bytes_ += piece.size();
    return to_->WritePiece(0, range, piece);
  }

  const ForkSource& from_;
  const Grid& grid_;
  Store* const to_;
  const std::vector<SectionRange> pieces_;
  v1::SnapshotFacts plain_;  // of one section at step 0: its state is the section
  uint64_t bytes_ = 0;
};

void AddWithout(absl::string_view what, std::string* without) {
  absl::StrAppend(without, without->empty() ? "" : " and ", what);
}

// What the coordinator alone keeps of a hosted model.
absl::Status CopyHosted(const ForkSource& from, const v1::RunSpec& spec, Copier* copier,
                        ForkStart* start) {
  v1::HostedState& hosted = *start->batch.snapshot->mutable_hosted();
  const v1::HostedState& theirs = from.snapshot.hosted();
  hosted.set_beta1_power_bits(kBitsOfOne);
  hosted.set_beta2_power_bits(kBitsOfOne);
  Sha256 all;
  if (SameHosted(from.spec, spec)) {
    const uint32_t first = from.snapshot.facts().sections();
    for (uint32_t section = first; section < first + theirs.sections(); ++section) {
      ISTHMUS_ASSIGN_OR_RETURN(const std::string hash, copier->Copy(section));
      all.Update(hash);
    }
    hosted.set_sections(theirs.sections());
    hosted.set_beta1_power_bits(theirs.beta1_power_bits());
    hosted.set_beta2_power_bits(theirs.beta2_power_bits());
  } else if (theirs.sections() > 0) {
    AddWithout("the outer optimizer's state, which starts at zero", &start->without);
  }
  hosted.set_sha256(all.Finish());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ForkStart> CopyForFork(const ForkSource& from, const v1::RunSpec& spec, Store* to) {
  ISTHMUS_ASSIGN_OR_RETURN(const Grid grid, Grid::Make(from.run.manifest(), spec.codec()));
  Copier copier(from, grid, to);
  ForkStart start;
  v1::StoredSnapshot& snapshot = start.batch.snapshot.emplace();
  v1::SnapshotFacts& facts = *snapshot.mutable_facts();
  facts = from.snapshot.facts();
  facts.set_run(spec.run());
  facts.set_round(0);
  facts.clear_update_sha256();
  facts.set_step(0);
  facts.set_sections(StateSections(spec));
  const bool same = SameOptimizer(from.spec, spec);
  if (!same) {
    facts.set_beta1_power_bits(kBitsOfOne);
    facts.set_beta2_power_bits(kBitsOfOne);
    if (from.snapshot.facts().sections() > 1) {
      AddWithout("the optimizer's moments, which start at zero", &start.without);
    }
  }
  std::vector<std::string> sections;
  for (uint32_t section = 0; section < facts.sections(); ++section) {
    ISTHMUS_ASSIGN_OR_RETURN(std::string hash,
                             section == 0 || same ? copier.Copy(section) : copier.Zero(section));
    sections.push_back(std::move(hash));
  }
  facts.set_state_sha256(StateSha256(sections, facts));
  if (IsHosted(spec)) {
    ISTHMUS_RETURN_IF_ERROR(CopyHosted(from, spec, &copier, &start));
  } else if (from.snapshot.hosted().sections() > 0) {
    AddWithout("the outer optimizer's state, which starts at zero", &start.without);
  }
  snapshot.set_payload_bytes(copier.bytes());
  snapshot.set_node(spec.nodes(0).name());  // of whom it is does not matter any more

  v1::StoredRun& run = start.batch.run.emplace();
  run.set_format(from.run.format());
  *run.mutable_spec() = spec;
  run.set_spec_revision(1);
  *run.mutable_manifest() = from.run.manifest();
  run.set_fingerprint(from.run.fingerprint());
  run.set_start_state_sha256(facts.state_sha256());
  run.mutable_fork()->set_run(from.spec.run());
  run.mutable_fork()->set_round(from.snapshot.facts().round());
  return start;
}

absl::StatusOr<ForkSource> Coordinator::SourceOfFork(const absl::optional<uint64_t>& round) const {
  std::lock_guard<std::mutex> lock(mutex_);
  ISTHMUS_RETURN_IF_ERROR(CheckServingLocked());
  std::vector<std::string> rounds;
  ForkSource source;
  for (const v1::StoredSnapshot& snapshot : snapshots_) {
    rounds.push_back(absl::StrCat(snapshot.facts().round()));
    if (round.value_or(snapshot.facts().round()) == snapshot.facts().round()) {
      source.snapshot = snapshot;
    }
  }
  if (source.snapshot.has_facts()) {
    source.store = store_;
    source.run = StoredRunOf(model_, heldout_sha256_);
    source.spec = revisions_.last();
    return source;
  }
  if (rounds.empty()) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "run '", spec_.run(), "' has no snapshot to fork from",
                          spec_.allow_drift() ? ": its nodes drift apart (allow_drift)"
                                              : "; ask for one: isthmusctl runs checkpoint")),
                      "NO_SNAPSHOT");
  }
  return WithReason(
      absl::NotFoundError(absl::StrCat("run '", spec_.run(), "' has no snapshot of round ", *round,
                                       " (any more); it has round ", absl::StrJoin(rounds, ", "))),
      "NO_SUCH_SNAPSHOT");
}

}  // namespace isthmus
