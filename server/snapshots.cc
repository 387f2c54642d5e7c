// UploadSnapshot and FetchSnapshot: a member's state comes in, others start from it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/coordinator.h"
#include "spec/rounds.h"
#include "spec/stages.h"
#include "spec/state_hash.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

absl::Status Refused(absl::string_view reason, const std::string& text) {
  return WithReason(absl::FailedPreconditionError(text), reason);
}

absl::Status Malformed(const absl::Status& why) { return WithReason(why, "SNAPSHOT_RANGES"); }

// What is kept of a state, piece after piece, cut to what was asked for.
class KeptSnapshot final : public SnapshotSource {
 public:
  KeptSnapshot(std::shared_ptr<Store> store, const v1::SnapshotFacts& facts,
               absl::optional<v1::Manifest> manifest, std::vector<SectionRange> wanted)
      : store_(std::move(store)),
        facts_(facts),
        manifest_(std::move(manifest)),
        wanted_(std::move(wanted)) {
    if (!wanted_.empty()) pieces_ = store_->Pieces(facts_.round());
  }

  // Whether all that is wanted is there; a newer snapshot may have taken its place just now.
  absl::Status Check() const {
    const std::vector<SectionRange> missing = Missing(wanted_, pieces_, 1);
    return missing.empty() ? absl::OkStatus() : PieceNotKept(facts_.round(), missing.front());
  }

  absl::StatusOr<absl::optional<v1::FetchSnapshotResponse>> Next() override {
    v1::FetchSnapshotResponse message;
    if (!began_) {
      began_ = true;
      *message.mutable_facts() = facts_;
      return absl::make_optional(message);
    }
    if (manifest_.has_value()) {
      *message.mutable_manifest() = *std::exchange(manifest_, absl::nullopt);
      return absl::make_optional(message);
    }
    while (piece_ < pieces_.size() && range_ < wanted_.size()) {
      const SectionRange& piece = pieces_[piece_];
      const SectionRange& range = wanted_[range_];
      const SectionRange cut = {piece.section, std::max(piece.begin, range.begin),
                                std::min(piece.end, range.end)};
      const bool same = piece.section == range.section;
      const bool piece_ends_first =
          piece.section < range.section || (same && piece.end <= range.end);
      if (same && cut.begin < cut.end) {
        ISTHMUS_RETURN_IF_ERROR(Load(piece));
        message.mutable_piece()->set_section(cut.section);
        message.mutable_piece()->set_begin(cut.begin);
        message.mutable_piece()->set_data(loaded_.substr((cut.begin - piece.begin) * sizeof(float),
                                                         (cut.end - cut.begin) * sizeof(float)));
      }
      if (piece_ends_first) {
        ++piece_;
      } else {
        ++range_;
      }
      if (message.has_piece()) return absl::make_optional(message);
    }
    return absl::optional<v1::FetchSnapshotResponse>();
  }

 private:
  absl::Status Load(const SectionRange& piece) {
    if (loaded_piece_ == piece && !loaded_.empty()) return absl::OkStatus();
    ISTHMUS_ASSIGN_OR_RETURN(loaded_, store_->ReadPiece(facts_.round(), piece));
    loaded_piece_ = piece;
    return absl::OkStatus();
  }

  const std::shared_ptr<Store> store_;
  const v1::SnapshotFacts facts_;
  absl::optional<v1::Manifest> manifest_;  // still to be sent
  const std::vector<SectionRange> wanted_;
  std::vector<SectionRange> pieces_;
  bool began_ = false;
  size_t piece_ = 0, range_ = 0;
  SectionRange loaded_piece_;
  std::string loaded_;
};

}  // namespace

// One call of the node that uploads.
class Coordinator::SnapshotIntake final : public SnapshotSink {
 public:
  SnapshotIntake(Coordinator* coordinator, const v1::UploadSnapshotHeader& header,
                 std::vector<SectionRange> ranges)
      : coordinator_(coordinator),
        header_(header),
        ranges_(std::move(ranges)),
        intake_number_(coordinator->intake_.number) {}

  absl::Status AddPiece(const v1::SnapshotPiece& piece) override {
    const SectionRange range = {piece.section(), piece.begin(),
                                piece.begin() + piece.data().size() / sizeof(float)};
    // One piece at a time, from the check to the note that it is held: what was hashed must not be
    // written again.
    std::lock_guard<std::mutex> intake_lock(coordinator_->intake_mutex_);
    bool held = false;
    {
      std::lock_guard<std::mutex> lock(coordinator_->mutex_);
      ISTHMUS_RETURN_IF_ERROR(CheckLocked());
      ISTHMUS_RETURN_IF_ERROR(coordinator_->CheckPieceLocked(piece, range, &held));
    }
    if (held) return absl::OkStatus();
    const uint64_t round = header_.facts().round();
    const absl::Status kept = coordinator_->store_->WritePiece(round, range, piece.data());
    if (!kept.ok()) return coordinator_->CannotStore(kept);
    std::lock_guard<std::mutex> lock(coordinator_->mutex_);
    ISTHMUS_RETURN_IF_ERROR(CheckLocked());
    if (coordinator_->intake_.held.insert(range).second) {
      coordinator_->intake_.bytes += piece.data().size();
    }
    coordinator_->snapshot_plan_.Progress(coordinator_->NowMs());
    return absl::OkStatus();
  }

  absl::StatusOr<v1::UploadSnapshotResponse> End() override {
    std::lock_guard<std::mutex> lock(coordinator_->mutex_);
    ISTHMUS_RETURN_IF_ERROR(CheckLocked());
    const std::set<SectionRange>& held = coordinator_->intake_.held;
    v1::UploadSnapshotResponse response;
    WriteRanges(Missing(ranges_, {held.begin(), held.end()}, kSnapshotRangesMax),
                response.mutable_missing());
    coordinator_->wake_.notify_all();
    return response;
  }

 private:
  // What held at the beginning of the call holds still.
  absl::Status CheckLocked() const {
    ISTHMUS_RETURN_IF_ERROR(
        coordinator_->CheckCallerLocked(header_.run(), header_.node(), header_.incarnation()));
    ISTHMUS_RETURN_IF_ERROR(coordinator_->CheckUploadLocked(header_));
    if (coordinator_->intake_.number == intake_number_) return absl::OkStatus();
    return WithReason(
        absl::AbortedError(absl::StrCat("the upload of the state after round ",
                                        header_.facts().round(), " was begun anew; call again")),
        "SNAPSHOT_BEGUN_ANEW");
  }

  Coordinator* const coordinator_;
  const v1::UploadSnapshotHeader header_;
  const std::vector<SectionRange> ranges_;
  const uint64_t intake_number_;
};

absl::StatusOr<std::unique_ptr<SnapshotSink>> Coordinator::BeginUpload(
    const v1::UploadSnapshotHeader& header) {
  std::lock_guard<std::mutex> lock(mutex_);
  ISTHMUS_RETURN_IF_ERROR(CheckCallerLocked(header.run(), header.node(), header.incarnation()));
  ISTHMUS_RETURN_IF_ERROR(CheckUploadLocked(header));
  ISTHMUS_RETURN_IF_ERROR(CheckFactsLocked(header.facts()));
  auto ranges = ReadRanges(header.ranges(), header.facts().sections(), header.facts().elements());
  if (!ranges.ok()) return Malformed(ranges.status());
  if (!intake_.facts.has_value()) intake_.facts = header.facts();
  return std::unique_ptr<SnapshotSink>(
      std::make_unique<SnapshotIntake>(this, header, *std::move(ranges)));
}

// Whether this node's state of this round is (still) what is wanted.
absl::Status Coordinator::CheckUploadLocked(const v1::UploadSnapshotHeader& header) const {
  ISTHMUS_RETURN_IF_ERROR(CheckServingLocked());
  ISTHMUS_RETURN_IF_ERROR(CheckNotEvictedLocked(header.node()));
  const uint64_t round = header.facts().round();
  const v1::StoredSnapshotPlan* plan = snapshot_plan_.plan();
  if (plan == nullptr || plan->round() != round || plan->node() != header.node()) {
    return Refused(
        "SNAPSHOT_NOT_WANTED",
        absl::StrCat("the state after round ", round, " of node '", header.node(),
                     "' is not asked for",
                     plan == nullptr ? ""
                                     : absl::StrCat("; that after round ", plan->round(),
                                                    " of node '", plan->node(), "' is")));
  }
  if (round <= machine_.committed_round()) return absl::OkStatus();
  return Refused("SNAPSHOT_TOO_EARLY", absl::StrCat("round ", round, " is not committed yet"));
}

absl::Status Coordinator::CheckFactsLocked(const v1::SnapshotFacts& facts) const {
  ISTHMUS_ASSIGN_OR_RETURN(const std::string record, store_->RecordSha256(facts.round()));
  const auto differs = [&](absl::string_view field, const std::string& given,
                           const std::string& ours) {
    return Refused("SNAPSHOT_FACTS",
                   absl::StrCat("facts.", field, " of the state after round ", facts.round(),
                                " is ", given, ", here it is ", ours));
  };
  if (facts.run() != spec_.run()) return differs("run", facts.run(), spec_.run());
  if (facts.update_sha256() != record) {
    return differs("update_sha256", HexPrefix(facts.update_sha256()), HexPrefix(record));
  }
  if (facts.fingerprint() != model_->fingerprint) {
    return differs("fingerprint", HexPrefix(facts.fingerprint()), HexPrefix(model_->fingerprint));
  }
  const uint64_t step = revisions_.StepAfter(facts.round());
  if (facts.step() != step) {
    return differs("step", absl::StrCat(facts.step()), absl::StrCat(step));
  }
  if (facts.elements() != model_->grid->elements()) {
    return differs("elements", absl::StrCat(facts.elements()),
                   absl::StrCat(model_->grid->elements()));
  }
  const uint32_t sections = StateSections(spec_);
  if (facts.sections() != sections) {
    return differs("sections", absl::StrCat(facts.sections()), absl::StrCat(sections));
  }
  // The hash of a single section does not cover them.
  const auto is_one = [](uint64_t bits) { return bits == uint64_t{0x3ff0000000000000}; };
  if (sections == 1 && !(is_one(facts.beta1_power_bits()) && is_one(facts.beta2_power_bits()))) {
    return differs("beta1_power_bits or beta2_power_bits",
                   absl::StrCat(absl::Hex(facts.beta1_power_bits()), ", ",
                                absl::Hex(facts.beta2_power_bits())),
                   "that of 1.0");
  }
  for (const std::string* sha256 : {&facts.state_sha256(), &facts.frozen_sha256()}) {
    const bool may_be_empty = sha256 == &facts.frozen_sha256();
    if (sha256->size() == kSha256Bytes || (may_be_empty && sha256->empty())) continue;
    return differs(may_be_empty ? "frozen_sha256" : "state_sha256",
                   absl::StrCat("of ", sha256->size(), " bytes"),
                   absl::StrCat("one of ", kSha256Bytes));
  }
  if (!intake_.facts.has_value() ||
      intake_.facts->SerializeAsString() == facts.SerializeAsString()) {
    return absl::OkStatus();
  }
  return differs(
      "state_sha256 (or another field)", HexPrefix(facts.state_sha256()),
      absl::StrCat(HexPrefix(intake_.facts->state_sha256()), ", as an earlier call said"));
}

// `held`: the very piece is there already.
absl::Status Coordinator::CheckPieceLocked(const v1::SnapshotPiece& piece,
                                           const SectionRange& range, bool* held) const {
  const size_t bytes = piece.data().size();
  if (bytes == 0 || bytes % sizeof(float) != 0 || bytes > kSnapshotPieceBytesMax) {
    return Malformed(absl::InvalidArgumentError(
        absl::StrCat("a piece has ", bytes, " bytes; it is whole float32 values, 4 to ",
                     kSnapshotPieceBytesMax, " bytes")));
  }
  SectionRangesProto ranges;
  WriteRanges({range}, &ranges);
  const auto inside = ReadRanges(ranges, intake_.facts->sections(), intake_.facts->elements());
  if (!inside.ok()) return Malformed(inside.status());
  // The piece that begins at or after it, and the one before.
  auto next = intake_.held.lower_bound(range);
  *held = next != intake_.held.end() && *next == range;
  if (*held) return absl::OkStatus();
  const auto overlaps = [&range](const SectionRange& other) {
    return other.section == range.section && other.begin < range.end && range.begin < other.end;
  };
  const bool overlap = (next != intake_.held.end() && overlaps(*next)) ||
                       (next != intake_.held.begin() && overlaps(*std::prev(next)));
  if (!overlap) return absl::OkStatus();
  return Malformed(absl::InvalidArgumentError(
      absl::StrCat("a piece has elements [", range.begin, ", ", range.end, ") of section ",
                   range.section, ", some of which are held in a piece cut in another way")));
}

void Coordinator::BeginPlanLocked(const v1::StoredSnapshotPlan& plan) {
  intake_ = Intake{absl::nullopt, {}, 0, intake_.number + 1};
  snapshot_plan_.Begin(plan, NowMs());
  LogInfo("a snapshot is to come",
          {{"round", absl::StrCat(plan.round())}, {"from", plan.node()}, {"run", spec_.run()}});
}

void Coordinator::ResumeSnapshotsLocked(const StoredState& state) {
  for (const v1::StoredSnapshot& snapshot : state.snapshots) {
    if (!state_judge_.Distrusts(snapshot.facts().round())) snapshots_.push_back(snapshot);
  }
  snapshot_plan_.Resume(state.plan, state.snapshots, NowMs());
  const v1::StoredSnapshotPlan* plan = snapshot_plan_.plan();
  if (plan == nullptr) return;
  for (const SectionRange& range : store_->Pieces(plan->round())) {
    intake_.held.insert(range);
    intake_.bytes += (range.end - range.begin) * sizeof(float);
  }
}

// Pieces are inside of the state and disjoint.
bool Coordinator::IsWholeLocked() const {
  return intake_.facts.has_value() &&
         intake_.bytes == intake_.facts->sections() * intake_.facts->elements() * sizeof(float);
}

absl::StatusOr<std::string> Coordinator::HashPieces(const v1::SnapshotFacts& facts,
                                                    const Grid& grid) const {
  StateHasher hasher(grid, facts);
  for (const SectionRange& range : store_->Pieces(facts.round())) {
    ISTHMUS_ASSIGN_OR_RETURN(const std::string piece, store_->ReadPiece(facts.round(), range));
    ISTHMUS_RETURN_IF_ERROR(hasher.Add(piece));
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return absl::CancelledError("the coordinator is shutting down");
  }
  return hasher.Finish();
}

absl::Status Coordinator::FinishSnapshot() {
  ISTHMUS_RETURN_IF_ERROR(FinishPlan());
  return IsHosted(spec_) ? TendHosted() : absl::OkStatus();
}

absl::Status Coordinator::FinishPlan() {
  HashIfWhole();
  // An admission may begin a plan anew, so none comes between the verdict and what it sets off.
  std::lock_guard<std::mutex> admission_lock(admission_mutex_);
  std::unique_lock<std::mutex> lock(mutex_);
  if (snapshot_plan_.plan() == nullptr || stopping_ || !halted_.ok()) return absl::OkStatus();
  const v1::StoredSnapshotPlan plan = *snapshot_plan_.plan();
  const SnapshotPlan::Verdict verdict =
      snapshot_plan_.Judge([this](const std::string& node) { return machine_.IsLive(node); },
                           machine_.committed_round(), NowMs());
  if (verdict.answer == SnapshotPlan::Verdict::Answer::kWait) return absl::OkStatus();
  StoreBatch batch;
  if (verdict.answer == SnapshotPlan::Verdict::Answer::kGiveUp) {
    // Without the start state no round may ever open: the same node is asked again, which sends
    // until it counts. One that is gone is asked when it joins again.
    const bool again = plan.round() == 0 && machine_.committed_round() == 0 &&
                       machine_.committing_round() == 0 && machine_.IsLive(plan.node());
    LogWarning(
        again ? "a start state is given up and asked for again"
              : "a snapshot is given up, the next round's state is asked for",
        {{"round", absl::StrCat(plan.round())}, {"why", verdict.sentence}, {"run", spec_.run()}});
    if (!again) {
      snapshot_plan_.GaveUp();
      return absl::OkStatus();
    }
    batch.plan = plan;
  } else {
    v1::StoredSnapshot& snapshot = batch.snapshot.emplace();
    *snapshot.mutable_facts() = *intake_.facts;
    snapshot.set_node(plan.node());
    snapshot.set_payload_bytes(intake_.bytes);
    if (IsHosted(spec_)) *snapshot.mutable_hosted() = HostedStart();
  }
  lock.unlock();
  const absl::Status stored = WriteStore(batch);
  if (!stored.ok()) return CannotStore(stored);
  lock.lock();
  if (batch.plan.has_value()) {
    BeginPlanLocked(*batch.plan);
  } else {
    KeepSnapshotLocked(*batch.snapshot);
    snapshot_plan_.Accepted();
  }
  return absl::OkStatus();
}

// Without the mutex: it takes as long as reading the state does.
void Coordinator::HashIfWhole() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (snapshot_plan_.plan() == nullptr || stopping_ || !halted_.ok()) return;
  if (snapshot_plan_.whole() || !IsWholeLocked()) return;
  const v1::SnapshotFacts facts = *intake_.facts;
  const uint64_t number = intake_.number;
  const ModelPtr model = model_;
  lock.unlock();
  const absl::StatusOr<std::string> sha256 = HashPieces(facts, *model->grid);
  lock.lock();
  // Another one may have been begun meanwhile.
  if (absl::IsCancelled(sha256.status()) || intake_.number != number) return;
  // What cannot be read has no hash, which is not the claimed one either.
  if (!sha256.ok())
    LogError("a snapshot cannot be read",
             {{"error", sha256.status().ToString()}, {"run", spec_.run()}});
  snapshot_plan_.Whole(sha256.ok() ? *sha256 : std::string("unreadable"), facts.state_sha256(),
                       NowMs());
}

void Coordinator::KeepSnapshotLocked(const v1::StoredSnapshot& snapshot) {
  snapshots_.push_back(snapshot);
  if (snapshots_.size() > kSnapshotsKept) snapshots_.erase(snapshots_.begin());
  LogInfo("snapshot kept",
          {{"round", absl::StrCat(snapshot.facts().round())},
           {"from", snapshot.node().empty() ? "this coordinator" : snapshot.node()},
           {"bytes", absl::StrCat(snapshot.payload_bytes())},
           {"state", HexPrefix(snapshot.facts().state_sha256())},
           {"run", spec_.run()}});
}

void Coordinator::SnapshotLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    const int wait_ms = FinishSnapshot().ok() ? kTickMs : kRetryAfterMs;
    lock.lock();
    wake_.wait_for(lock, std::chrono::milliseconds(wait_ms), [this] { return stopping_; });
  }
}

absl::StatusOr<std::unique_ptr<SnapshotSource>> Coordinator::BeginFetch(
    const v1::FetchSnapshotRequest& request) {
  std::unique_lock<std::mutex> lock(mutex_);
  ISTHMUS_RETURN_IF_ERROR(CheckServingLocked());
  ISTHMUS_RETURN_IF_ERROR(CheckRun(request.run()));
  if (snapshots_.empty()) {
    const v1::StoredSnapshotPlan* plan = snapshot_plan_.plan();
    return WithRetryAfterMs(
        WithReason(absl::UnavailableError(absl::StrCat(
                       "run '", spec_.run(), "' has no snapshot yet; ",
                       plan != nullptr ? absl::StrCat("that of round ", plan->round(),
                                                      " comes from node '", plan->node(), "'")
                                       : absl::StrCat("one is made every ",
                                                      PresentSpecLocked().snapshot().every_rounds(),
                                                      " rounds"))),
                   "NO_SNAPSHOT"),
        kRetryAfterMs);
  }
  const v1::StoredSnapshot* found = request.has_round() ? nullptr : &snapshots_.back();
  for (const v1::StoredSnapshot& snapshot : snapshots_) {
    if (request.has_round() && snapshot.facts().round() == request.round()) found = &snapshot;
  }
  if (found == nullptr) {
    return WithReason(
        absl::NotFoundError(absl::StrCat("there is no snapshot of round ", request.round(),
                                         " (any more); the newest is of round ",
                                         snapshots_.back().facts().round())),
        "NO_SUCH_SNAPSHOT");
  }
  const v1::SnapshotFacts facts = found->facts();
  absl::optional<v1::Manifest> manifest;
  if (request.manifest()) manifest = model_->manifest;
  lock.unlock();
  auto ranges = ReadRanges(request.ranges(), facts.sections(), facts.elements());
  if (!ranges.ok()) return Malformed(ranges.status());
  auto source =
      std::make_unique<KeptSnapshot>(store_, facts, std::move(manifest), *std::move(ranges));
  const absl::Status there = source->Check();
  if (there.ok()) return std::unique_ptr<SnapshotSource>(std::move(source));
  lock.lock();
  for (const v1::StoredSnapshot& snapshot : snapshots_) {
    if (snapshot.facts().round() != facts.round()) continue;
    return WithRetryAfterMs(
        WithReason(absl::UnavailableError(absl::StrCat(
                       there.message(), ", but should; the store may be busy with a full disk")),
                   "SNAPSHOT_UNREADABLE"),
        kRetryAfterMs);
  }
  return there;
}

}  // namespace isthmus
