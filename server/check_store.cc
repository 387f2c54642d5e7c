// coordinator --check_store: reads everything and says what holds.
#include <rocksdb/db.h>
#include <rocksdb/env.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/rocks_folder.h"
#include "server/spec_revisions.h"
#include "spec/grid.h"
#include "spec/piece.h"
#include "spec/rounds.h"
#include "spec/section_ranges.h"
#include "spec/stages.h"
#include "spec/state_hash.h"
#include "spec/update_record.h"

namespace isthmus {
namespace {

absl::Status Broken(const std::string& what) { return absl::DataLossError(what); }

class Checker {
 public:
  Checker(const RocksFolder* folder, std::vector<std::string>* lines)
      : folder_(folder), lines_(lines) {}

  absl::Status Check() {
    ISTHMUS_RETURN_IF_ERROR(folder_->Explain(folder_->db()->VerifyChecksum()));
    lines_->push_back("the checksums of all table files hold");
    ISTHMUS_ASSIGN_OR_RETURN(span_, folder_->ReadSpan());
    ISTHMUS_ASSIGN_OR_RETURN(state_, folder_->ReadState());
    ISTHMUS_RETURN_IF_ERROR(CheckRun());
    ISTHMUS_RETURN_IF_ERROR(CheckNodes());
    ISTHMUS_RETURN_IF_ERROR(CheckSettlements());
    ISTHMUS_RETURN_IF_ERROR(CheckUpdates());
    ISTHMUS_RETURN_IF_ERROR(CheckOpening());
    ISTHMUS_RETURN_IF_ERROR(CheckSnapshots());
    return CheckAggregates();
  }

 private:
  absl::Status CheckRun() {
    if (!state_.run.has_value()) {
      lines_->push_back("no run was started on it");
      if (span_.last_round() == 0 && state_.nodes.empty()) return absl::OkStatus();
      return Broken("it has rounds or nodes, but not what the run is");
    }
    const v1::StoredRun& run = *state_.run;
    for (const v1::NodeSpec& node : run.spec().nodes()) names_.insert(node.name());
    revisions_ = std::make_unique<SpecRevisions>(run.spec());
    for (const v1::StoredRevision& revision : run.revisions()) revisions_->Add(revision);
    rounds_ = revisions_->rounds();
    lines_->push_back(absl::StrCat("run '", run.spec().run(), "' of ", rounds_, " rounds, nodes ",
                                   absl::StrJoin(names_, ", ")));
    if (!run.has_manifest()) return absl::OkStatus();
    ISTHMUS_ASSIGN_OR_RETURN(Grid grid, Grid::Make(run.manifest(), run.spec().codec()));
    grid_ = std::make_unique<Grid>(std::move(grid));
    lines_->push_back(absl::StrCat("model ", HexPrefix(run.fingerprint()), ", start state ",
                                   HexPrefix(run.start_state_sha256()), ", ", grid_->elements(),
                                   " elements"));
    return absl::OkStatus();
  }

  absl::Status CheckNodes() {
    for (const v1::StoredNode& node : state_.nodes) {
      if (names_.count(node.node()) == 0) {
        return Broken(absl::StrCat("node '", node.node(), "' is not one of the spec's"));
      }
      lines_->push_back(absl::StrCat("node '", node.node(), "': incarnation ", node.incarnation(),
                                     ", attempt ", node.attempt(), node.left() ? ", left" : ""));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<v1::StoredSettlement> Settlement(uint64_t round) const {
    v1::StoredSettlement settlement;
    const absl::Status status = folder_->Read(folder_->settled(), SettledKey(round), &settlement);
    if (!absl::IsNotFound(status)) {
      ISTHMUS_RETURN_IF_ERROR(status);
      return settlement;
    }
    return Broken(absl::StrCat("the settlement of round ", round, " is not there"));
  }

  absl::Status CheckSettlements() {
    for (uint64_t round = span_.first_settled(); round <= span_.last_round(); ++round) {
      ISTHMUS_RETURN_IF_ERROR(Settlement(round).status());
    }
    return absl::OkStatus();
  }

  absl::Status CheckUpdates() {
    if (span_.last_round() == 0) {
      lines_->push_back("no round is committed");
      return absl::OkStatus();
    }
    const uint64_t first = span_.first_round();
    std::string previous;
    bool knows_previous = first == 1;
    if (first > span_.first_settled()) {
      ISTHMUS_ASSIGN_OR_RETURN(const v1::StoredSettlement before, Settlement(first - 1));
      previous = before.sha256();
      knows_previous = true;
    }
    uint64_t bytes = 0;
    for (uint64_t round = first; round <= span_.last_round(); ++round) {
      const absl::StatusOr<StoredUpdatePtr> update = folder_->ReadUpdate(round);
      if (!update.ok()) return update.status();
      if (!knows_previous) previous = (*update)->record.previous_sha256();
      knows_previous = true;
      ISTHMUS_RETURN_IF_ERROR(UseSpecOf(round));
      const absl::Status sound = CheckUpdate(**update, previous);
      if (!sound.ok()) return Broken(absl::StrCat("round ", round, ": ", sound.message()));
      previous = (*update)->record.sha256();
      bytes += (*update)->bytes();
    }
    if (bytes != span_.payload_bytes()) {
      return Broken(absl::StrCat("the updates kept have ", bytes, " bytes, the span says ",
                                 span_.payload_bytes()));
    }
    lines_->push_back(absl::StrCat("updates of rounds ", first, " to ", span_.last_round(), ", ",
                                   bytes, " bytes: the chain of records and every payload hold"));
    lines_->push_back(absl::StrCat("settlements of rounds ", span_.first_settled(), " to ",
                                   span_.last_round(), "; last record ", HexPrefix(previous)));
    return absl::OkStatus();
  }

  // How payloads are written may change from revision to revision.
  absl::Status UseSpecOf(uint64_t round) {
    if (grid_ == nullptr || revisions_->RevisionOf(round) == grid_revision_) {
      return absl::OkStatus();
    }
    grid_revision_ = revisions_->RevisionOf(round);
    const absl::Status taken = grid_->TakeCodec(revisions_->SpecOf(round).codec());
    if (taken.ok()) return absl::OkStatus();
    return Broken(absl::StrCat("the spec of round ", round, ": ", taken.message()));
  }

  absl::Status CheckUpdate(const StoredUpdate& update, const std::string& previous) const {
    ISTHMUS_RETURN_IF_ERROR(CheckUpdateRecord(update.record, previous));
    ISTHMUS_ASSIGN_OR_RETURN(const v1::StoredSettlement settlement,
                             Settlement(update.record.round()));
    if (settlement.sha256() != update.record.sha256()) {
      return Broken("its settlement is of another record");
    }
    if (update.record.is_void() || update.pieces.empty()) return absl::OkStatus();
    if (grid_ == nullptr) return Broken("there is no model that its payload could be of");
    std::vector<const std::string*> pieces;
    for (const WatchEvent& event : update.pieces) pieces.push_back(&event->piece().data());
    ISTHMUS_ASSIGN_OR_RETURN(const std::string digest, PayloadDigest(*grid_, pieces));
    if (digest == update.record.payload_sha256()) return absl::OkStatus();
    return Broken(absl::StrCat("its payload has SHA-256 ", HexPrefix(digest), ", its record says ",
                               HexPrefix(update.record.payload_sha256())));
  }

  absl::Status CheckOpening() {
    const uint64_t last = span_.last_round();
    if (!state_.run.has_value() || last == 0) return absl::OkStatus();
    if (last == rounds_) {
      lines_->push_back("the run is finished");
      return absl::OkStatus();
    }
    if (!state_.open.has_value() || state_.open->round() != last + 1) {
      return Broken(absl::StrCat("the record that opens round ", last + 1, " is not there"));
    }
    ISTHMUS_RETURN_IF_ERROR(CheckOpen(*state_.open, last + 1));
    uint64_t round = last + 1;
    for (const v1::StoredOpening& later : state_.open->later()) {
      ISTHMUS_RETURN_IF_ERROR(CheckOpen(later, ++round));
    }
    return absl::OkStatus();
  }

  absl::Status CheckOpen(const v1::StoredOpening& open, uint64_t round) {
    if (open.round() != round) {
      return Broken(absl::StrCat("the record that opens round ", round, " is not there"));
    }
    for (const std::string& member : open.members()) {
      if (names_.count(member) == 0) {
        return Broken(absl::StrCat("member '", member, "' is not one of the spec's nodes"));
      }
    }
    lines_->push_back(
        absl::StrCat("round ", round, " is open, members ", absl::StrJoin(open.members(), ", ")));
    return absl::OkStatus();
  }

  absl::Status CheckSnapshots() {
    std::set<uint64_t> count;
    for (const v1::StoredSnapshot& snapshot : state_.snapshots) {
      const uint64_t round = snapshot.facts().round();
      count.insert(round);
      absl::Status sound = CheckFacts(snapshot);
      if (sound.ok()) sound = CheckState(snapshot);
      if (!sound.ok()) {
        return Broken(absl::StrCat("snapshot of round ", round, ": ", sound.message()));
      }
      lines_->push_back(absl::StrCat("snapshot of round ", round, " by node '", snapshot.node(),
                                     "', ", snapshot.payload_bytes(),
                                     " bytes: every piece and the state's hash hold"));
    }
    if (state_.plan.has_value() && names_.count(state_.plan->node()) == 0) {
      return Broken(absl::StrCat("the next snapshot is asked of '", state_.plan->node(),
                                 "', which is not one of the spec's nodes"));
    }
    ISTHMUS_ASSIGN_OR_RETURN(const std::vector<uint64_t> held, folder_->SnapshotRounds());
    std::set<uint64_t> unfinished(held.begin(), held.end());
    // One that a snapshot has overtaken is done.
    if (state_.plan.has_value() && (count.empty() || state_.plan->round() > *count.rbegin())) {
      unfinished.insert(state_.plan->round());
    }
    for (uint64_t round : unfinished) {
      if (count.count(round) == 0) ISTHMUS_RETURN_IF_ERROR(CheckUnfinished(round));
    }
    return absl::OkStatus();
  }

  // What a snapshot says of itself, against the run and its rounds.
  absl::Status CheckFacts(const v1::StoredSnapshot& snapshot) const {
    const v1::SnapshotFacts& facts = snapshot.facts();
    if (grid_ == nullptr) return Broken("there is no model that it could be of");
    // That of a hosted model is the coordinator's own, from the first round on.
    const bool own = IsHosted(state_.run->spec()) && facts.round() != 0;
    if (own ? !snapshot.node().empty() : names_.count(snapshot.node()) == 0) {
      return Broken(absl::StrCat("'", snapshot.node(), "' is not one of the spec's nodes"));
    }
    const v1::StoredRun& run = *state_.run;
    if (facts.run() != run.spec().run() || facts.fingerprint() != run.fingerprint()) {
      return Broken(absl::StrCat("it is of run '", facts.run(), "' and model ",
                                 HexPrefix(facts.fingerprint())));
    }
    const uint32_t sections = StateSections(run.spec());
    if (facts.sections() != sections || facts.elements() != grid_->elements()) {
      return Broken(absl::StrCat("it has ", facts.sections(), " sections of ", facts.elements(),
                                 " elements; the model has ", grid_->elements(), ", and its state ",
                                 sections, " sections"));
    }
    const uint64_t round = facts.round();
    if (round > span_.last_round()) return Broken("its round is not committed");
    if (round == 0 && facts.state_sha256() != run.start_state_sha256()) {
      return Broken(absl::StrCat("it is state ", HexPrefix(facts.state_sha256()),
                                 ", which is not the start state"));
    }
    if (round != 0 && round < span_.first_settled()) return absl::OkStatus();
    v1::StoredSettlement settlement;  // of round 0: no record
    if (round != 0) {
      ISTHMUS_ASSIGN_OR_RETURN(settlement, Settlement(round));
    }
    if (facts.update_sha256() == settlement.sha256()) return absl::OkStatus();
    return Broken(absl::StrCat("it is of record ", HexPrefix(facts.update_sha256()),
                               ", the round's is ", HexPrefix(settlement.sha256())));
  }

  // The pieces of a snapshot whose facts hold.
  absl::Status CheckState(const v1::StoredSnapshot& snapshot) const {
    const v1::SnapshotFacts& facts = snapshot.facts();
    ISTHMUS_ASSIGN_OR_RETURN(const auto pieces, folder_->Pieces(facts.round()));
    const std::vector<SectionRange> missing = Missing(
        AllRanges(facts.sections() + snapshot.hosted().sections(), facts.elements()), pieces, 1);
    if (!missing.empty()) {
      return Broken(absl::StrCat("elements [", missing[0].begin, ", ", missing[0].end,
                                 ") of section ", missing[0].section, " are not there"));
    }
    StateHasher hasher(*grid_, facts);
    uint64_t bytes = 0;
    for (const SectionRange& range : pieces) {
      if (range.section >= facts.sections() &&
          range.section < facts.sections() + snapshot.hosted().sections()) {
        bytes += PieceBytes(range);
        continue;
      }
      ISTHMUS_ASSIGN_OR_RETURN(const std::string data, folder_->ReadPiece(facts.round(), range));
      bytes += data.size();
      // No more than the state has: so that nothing is there twice, or outside of it.
      ISTHMUS_RETURN_IF_ERROR(hasher.Add(data));
    }
    if (bytes != snapshot.payload_bytes()) {
      return Broken(absl::StrCat("its pieces have ", bytes, " bytes, its record says ",
                                 snapshot.payload_bytes()));
    }
    ISTHMUS_ASSIGN_OR_RETURN(const std::string sha256, hasher.Finish());
    if (sha256 == facts.state_sha256()) return CheckHosted(snapshot, pieces);
    return Broken(absl::StrCat("its state has SHA-256 ", HexPrefix(sha256), ", its record says ",
                               HexPrefix(facts.state_sha256())));
  }

  // What the coordinator alone holds of a hosted model.
  absl::Status CheckHosted(const v1::StoredSnapshot& snapshot,
                           const std::vector<SectionRange>& pieces) const {
    if (!IsHosted(state_.run->spec())) return absl::OkStatus();
    const v1::SnapshotFacts& facts = snapshot.facts();
    v1::SnapshotFacts alone;  // a section by itself
    alone.set_step(facts.step());
    alone.set_sections(1);
    Sha256 all;
    const uint32_t end = facts.sections() + snapshot.hosted().sections();
    for (uint32_t section = facts.sections(); section < end; ++section) {
      StateHasher hasher(*grid_, alone);
      for (const SectionRange& range : pieces) {
        if (range.section != section) continue;
        ISTHMUS_ASSIGN_OR_RETURN(const std::string data, folder_->ReadPiece(facts.round(), range));
        ISTHMUS_RETURN_IF_ERROR(hasher.Add(data));
      }
      ISTHMUS_ASSIGN_OR_RETURN(const std::string sha256, hasher.Finish());
      all.Update(sha256);
    }
    const std::string sha256 = all.Finish();
    if (sha256 == snapshot.hosted().sha256()) return absl::OkStatus();
    return Broken(absl::StrCat("its outer state has SHA-256 ", HexPrefix(sha256),
                               ", its record says ", HexPrefix(snapshot.hosted().sha256())));
  }

  // A hosted model comes back from its newest snapshot by the aggregates of the rounds since.
  absl::Status CheckAggregates() const {
    if (!state_.run.has_value() || !IsHosted(state_.run->spec())) return absl::OkStatus();
    if (state_.snapshots.empty()) {
      if (span_.last_round() == 0) return absl::OkStatus();
      return Broken("rounds are committed, but there is no snapshot of the hosted model");
    }
    const uint64_t newest = state_.snapshots.back().facts().round();
    for (uint64_t round = newest + 1; round <= span_.last_round(); ++round) {
      v1::UpdateRecord record;
      ISTHMUS_RETURN_IF_ERROR(folder_->Read(folder_->rounds(), RoundKey(round, 0), &record));
      if (record.is_void()) continue;
      const auto aggregate = folder_->ReadAggregate(round, grid_->elements());
      if (!aggregate.ok()) return Broken(std::string(aggregate.status().message()));
    }
    lines_->push_back(absl::StrCat("aggregates of the rounds after ", newest, " are there"));
    return absl::OkStatus();
  }

  // Pieces that do not count: no damage, whatever is missing.
  absl::Status CheckUnfinished(uint64_t round) const {
    ISTHMUS_ASSIGN_OR_RETURN(const auto pieces, folder_->Pieces(round));
    uint64_t bytes = 0;
    for (const SectionRange& range : pieces) {
      ISTHMUS_ASSIGN_OR_RETURN(const std::string data, folder_->ReadPiece(round, range));
      bytes += data.size();
    }
    const bool planned = state_.plan.has_value() && state_.plan->round() == round;
    lines_->push_back(absl::StrCat(
        "snapshot of round ", round, " is not finished: ", pieces.size(), " pieces, ", bytes,
        " bytes, all of which hold; ",
        planned ? absl::StrCat("node '", state_.plan->node(), "' is asked for the others")
                : "nobody is asked for the others, and these go with the next plan"));
    return absl::OkStatus();
  }

  const RocksFolder* const folder_;
  std::vector<std::string>* const lines_;
  StoredState state_;
  v1::StoredSpan span_;
  uint64_t rounds_ = 0;  // of the run, as its last spec has it
  std::set<std::string> names_;
  std::unique_ptr<SpecRevisions> revisions_;
  std::unique_ptr<Grid> grid_;  // with the codec of that revision
  uint64_t grid_revision_ = 1;
};

// A database that is being written cannot be read as a whole.
absl::Status CheckNobodyUsesIt(const RocksStoreOptions& options) {
  rocksdb::Env* env = options.env != nullptr ? options.env : rocksdb::Env::Default();
  const std::string path = options.dir + "/LOCK";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::OkStatus();
  rocksdb::FileLock* lock = nullptr;
  const rocksdb::Status status = env->LockFile(path, &lock);
  if (status.ok()) {
    env->UnlockFile(lock).PermitUncheckedError();
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("state folder ", options.dir, " is in use (", status.ToString(),
                   "); end the coordinator first, or check a copy"));
}

}  // namespace

absl::StatusOr<StoreReport> CheckRocksStore(const RocksStoreOptions& options) {
  ISTHMUS_RETURN_IF_ERROR(CheckNobodyUsesIt(options));
  StoreReport report;
  const auto folder = RocksFolder::Open(options, RocksFolder::Mode::kReadOnly);
  if (absl::IsDataLoss(folder.status())) {
    report.status = folder.status();
    return report;
  }
  ISTHMUS_RETURN_IF_ERROR(folder.status());
  report.status = Checker(folder->get(), &report.lines).Check();
  return report;
}

}  // namespace isthmus
