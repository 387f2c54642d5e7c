// Snapshots in the trainer: giving the node's state away, and starting from another's.
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "spec/rounds.h"
#include "transport/errors.h"
#include "worker/resume.h"
#include "worker/trainer.h"

namespace isthmus {
namespace {

// Of the mantissa: the value stays about what it was, and nothing but a comparison shows it.
constexpr int kTestFlipBit = 12;

// A snapshot may be replaced while it is fetched; the newer one lasts as long as the first did.
constexpr int kFetchTries = 3;

std::string FixedBytes(uint64_t value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(&bytes[0], &value, sizeof(value));
  return bytes;
}

}  // namespace

// Joins, after having fetched a snapshot as often as it is told to.
absl::Status Trainer::JoinRun() {
  for (;;) {
    const absl::Status joined = Join();
    if (!AsksForSnapshot(joined)) {
      ISTHMUS_RETURN_IF_ERROR(joined);
      break;
    }
    ISTHMUS_RETURN_IF_ERROR(StartFromSnapshot(joined));
  }
  // Of the start state, where the run starts from this node.
  return DoSnapshotDuty(joined_duty_);
}

// The step goes on as if nothing had happened, until the ranks agree that it is lost (NextRound):
// so that each of them makes the same collective calls. What it computes meanwhile goes nowhere,
// since the agent has ended the group.
absl::Status Trainer::UnlessBehind(const absl::Status& status) {
  if (!AsksForSnapshot(status)) return status;
  behind_ = status;
  return absl::OkStatus();
}

absl::Status Trainer::StartFromSnapshot(const absl::Status& why) {
  ProcessGroup* group = options_.group;
  state_hashing_.Drop();  // it is of a state that is given up
  if (group->rank() == 0) {
    LogInfo("fetches a snapshot", {{"why", std::string(why.message())}});
  }
  absl::Status fetched;
  for (int i = 0; i < kFetchTries; ++i) {
    // Rank 0 asks which is the newest, so that all take the same.
    absl::StatusOr<v1::SnapshotFacts> newest = v1::SnapshotFacts();
    if (group->rank() == 0) newest = options_.client->FetchSnapshot(std::nullopt, {}, nullptr);
    ISTHMUS_RETURN_IF_ERROR(AgreeOn(group, newest.status()));
    std::string round = FixedBytes(newest->round());
    ISTHMUS_RETURN_IF_ERROR(group->Broadcast(&round));
    uint64_t number = 0;
    std::memcpy(&number, round.data(), sizeof(number));
    fetched = replica_->FetchState(options_.client, number, &start_facts_);
    std::array<double, 2> failed = {fetched.ok() ? 0.0 : 1.0,
                                    absl::IsNotFound(fetched) ? 1.0 : 0.0};
    ISTHMUS_RETURN_IF_ERROR(group->AllReduceMax(absl::MakeSpan(failed)));
    if (failed[0] == 0) return TakeFetched();
    if (failed[1] == 0) break;
  }
  ISTHMUS_RETURN_IF_ERROR(AgreeOn(group, fetched));
  return absl::UnavailableError("snapshots are replaced faster than they can be fetched");
}

// Of all ranks, which have the same snapshot's parts in their replicas.
absl::Status Trainer::TakeFetched() {
  const v1::SnapshotFacts& facts = start_facts_;
  ISTHMUS_ASSIGN_OR_RETURN(const v1::SnapshotFacts ours, replica_->StateFacts(facts.step()));
  if (ours.state_sha256() != facts.state_sha256()) {
    return absl::DataLossError(absl::StrCat(
        "the snapshot of round ", facts.round(), " hashes to ", HexPrefix(ours.state_sha256()),
        " here, ", HexPrefix(facts.state_sha256()), " was announced; nothing was joined with it"));
  }
  DropResidual("the node starts from a snapshot");
  if (facts.round() == 0) start_state_sha256_ = facts.state_sha256();
  applied_round_ = checkpoint_round_ = summary_.snapshot_round = facts.round();
  contributed_ = sent_through_ = applied_round_;
  under_way_.clear();
  encoded_blocks_.clear();
  applied_sha256_ = facts.update_sha256();
  step_ = facts.step();
  residual_restored_ = false;
  behind_ = absl::OkStatus();
  // Trainers that start from another state are another group.
  group_id_ = RandomBytes(group_id_.size());
  ISTHMUS_RETURN_IF_ERROR(options_.group->Broadcast(&group_id_));
  if (options_.group->rank() == 0) {
    LogInfo("goes on from a snapshot",
            {{"round", absl::StrCat(facts.round())}, {"state", HexPrefix(facts.state_sha256())}});
  }
  return absl::OkStatus();
}

// Begins to say what this node's state is, where the round that was applied last is checked. Each
// rank for itself.
absl::Status Trainer::CheckState() {
  if (applied_round_ == options_.test_flip_round && !std::exchange(test_flipped_, true)) {
    LogWarning("for a test: a bit of the state is flipped",
               {{"round", absl::StrCat(applied_round_)}});
    replica_->FlipBit(kTestFlipBit);
  }
  if (!IsChecked(spec_, applied_round_)) return absl::OkStatus();
  const absl::Time began = absl::Now();
  ISTHMUS_ASSIGN_OR_RETURN(StateCopy copy, replica_->CopyForCheck(step_));
  copy.facts.set_round(applied_round_);
  state_hashing_.Begin(std::move(copy));
  summary_.check_ms_max =
      std::max(summary_.check_ms_max, absl::ToDoubleMilliseconds(absl::Now() - began));
  return absl::OkStatus();
}

absl::Status Trainer::DoSnapshotDuty(v1::SnapshotDuty duty) {
  if (duty == v1::SNAPSHOT_DUTY_UNSPECIFIED) return absl::OkStatus();
  ISTHMUS_ASSIGN_OR_RETURN(v1::SnapshotFacts facts, replica_->StateFacts(step_));
  facts.set_run(spec_.run());
  facts.set_round(applied_round_);
  facts.set_update_sha256(applied_sha256_);
  options_.client->ReportState(applied_round_, facts.state_sha256());
  if (duty != v1::SNAPSHOT_DUTY_UPLOAD) return absl::OkStatus();
  auto parts = std::make_shared<SnapshotParts>(replica_->CopyState());
  parts->facts = std::move(facts);
  options_.client->UploadSnapshot(std::move(parts));
  return absl::OkStatus();
}

}  // namespace isthmus
