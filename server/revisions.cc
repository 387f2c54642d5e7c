// UpdateRun: an operator gives the run another spec from a round on. It is stored before it is
// done; nodes hear of it before its first round opens.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "server/coordinator.h"
#include "server/spec_update.h"
#include "spec/run_spec.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

v1::UpdateRunResponse ResponseOf(const v1::StoredRevision& revision,
                                 std::vector<v1::SpecChange> changes) {
  v1::UpdateRunResponse response;
  response.set_revision(revision.revision());
  response.set_from_round(revision.from_round());
  for (v1::SpecChange& change : changes) *response.add_changes() = std::move(change);
  return response;
}

}  // namespace

absl::StatusOr<v1::UpdateRunResponse> Coordinator::UpdateRun(const v1::UpdateRunRequest& request) {
  ISTHMUS_RETURN_IF_ERROR(CheckRun(request.run()));
  const DeliverAfter deliver(this);
  std::lock_guard<std::mutex> admission_lock(admission_mutex_);  // revisions come one at a time
  const v1::RunSpec& last = revisions_.last();
  v1::StoredRevision revision;
  ISTHMUS_ASSIGN_OR_RETURN(
      *revision.mutable_spec(),
      UpdatedSpec(last, spec_.run(), request.spec(), {request.set().begin(), request.set().end()}));
  std::vector<v1::SpecChange> changes = SpecChanges(last, revision.spec());
  if (changes.empty()) {
    revision.set_revision(revisions_.last_number());
    revision.set_from_round(revisions_.last_from_round());
    return ResponseOf(revision, {});
  }
  ISTHMUS_RETURN_IF_ERROR(CheckMayChange(changes));
  ISTHMUS_RETURN_IF_ERROR(CheckNodesCanChange(changes));
  ISTHMUS_RETURN_IF_ERROR(CheckKeepsState(last, revision.spec()));
  ISTHMUS_RETURN_IF_ERROR(CheckUnderWay(last, changes));
  std::unique_lock<std::mutex> lock(mutex_);
  ISTHMUS_RETURN_IF_ERROR(CheckServingLocked());
  uint64_t from_round = request.from_round();
  ISTHMUS_RETURN_IF_ERROR(CheckFromRoundLocked(revision.spec(), &from_round));
  if (model_ != nullptr) {
    ISTHMUS_RETURN_IF_ERROR(MakeModel(*model_, revision.spec().codec()).status());
  }
  revision.set_revision(revisions_.last_number() + 1);
  revision.set_from_round(from_round);
  if (request.dry_run()) return ResponseOf(revision, std::move(changes));
  StoreBatch batch;
  batch.run = StoredRunOf(model_, heldout_sha256_);
  *batch.run->add_revisions() = revision;
  // Persist. Under the lock, so that the round has not opened when it is done.
  const absl::Status stored = WriteStore(batch);
  if (!stored.ok()) {
    lock.unlock();
    return CannotStore(stored);
  }
  LogInfo("an operator gives the run another spec",
          {{"run", spec_.run()},
           {"revision", absl::StrCat(revision.revision())},
           {"from_round", absl::StrCat(from_round)},
           {"changes", ChangesText(changes)}});
  for (const std::string& warning : SpecWarnings(revision.spec())) {
    LogWarning(warning, {{"run", spec_.run()}});
  }
  TakeRevisionLocked(revision);
  for (auto& [name, node] : nodes_) {
    if (node.watch == nullptr) continue;
    deliveries_.push_back({node.watch, {RevisedEvent(revision)}, absl::nullopt});
  }
  return ResponseOf(revision, std::move(changes));
}

// 0 becomes the first round that it can hold from.
absl::Status Coordinator::CheckFromRoundLocked(const v1::RunSpec& spec,
                                               uint64_t* from_round) const {
  if (machine_.finished()) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "run '", spec_.run(), "' is finished; fork it to go on from its state: ",
                          "isthmusctl runs fork ", spec_.run(), " NEW_NAME")),
                      "RUN_FINISHED");
  }
  const uint64_t opened = std::max(NewestRoundLocked(), machine_.committed_round());
  if (*from_round == 0) *from_round = std::max(opened + 1, revisions_.last_from_round());
  if (*from_round > opened) return revisions_.Check(spec, *from_round);
  return WithReason(absl::FailedPreconditionError(absl::StrCat(
                        "from_round is ", *from_round, ", but round ", opened,
                        " is open or closed; give round ", opened + 1, " or a later one")),
                    "FROM_ROUND");
}

void Coordinator::TakeRevisionLocked(const v1::StoredRevision& revision) {
  revisions_.Add(revision);
  RoundSettings settings = SettingsOf(revision.spec());
  settings.steps = revisions_.rounds();
  snapshot_plan_.SetLastRound(settings.steps);
  StepLocked(SettingsRevised{revision.from_round(), std::move(settings)});
}

absl::Status Coordinator::ResumeRevisionsLocked(const v1::StoredRun& run) {
  for (v1::StoredRevision revision : run.revisions()) {
    // Fields that came with a later version have their default.
    ISTHMUS_RETURN_IF_ERROR(CompleteRunSpec(revision.mutable_spec()));
    TakeRevisionLocked(revision);
  }
  return absl::OkStatus();
}

// A round's contributions have the sizes that its codec gives them; the cut into chunks stays.
void Coordinator::TakeUpCodecLocked(uint64_t round) {
  const v1::CodecSpec& codec = revisions_.SpecOf(round).codec();
  if (codec.SerializeAsString() == model_->codec.SerializeAsString()) return;
  absl::StatusOr<ModelPtr> model = MakeModel(*model_, codec);
  ISTHMUS_CHECK(model.ok());  // UpdateRun has tried it
  model_ = *std::move(model);
}

// With a commit under way the opening of the round that follows it is stored.
uint64_t Coordinator::NewestRoundLocked() const {
  const uint64_t committing = machine_.committing_round();
  return committing == 0 ? machine_.newest_round() : committing + 1 + spec_.overlap();
}

uint64_t Coordinator::PresentRoundLocked() const {
  return machine_.finished() ? machine_.committed_round() : machine_.committed_round() + 1;
}

WatchEvent Coordinator::RevisedEvent(const v1::StoredRevision& revision) {
  auto event = std::make_shared<v1::WatchUpdatesResponse>();
  v1::SpecRevised* revised = event->mutable_revised();
  revised->set_revision(revision.revision());
  revised->set_from_round(revision.from_round());
  *revised->mutable_spec() = revision.spec();
  return event;
}

}  // namespace isthmus
