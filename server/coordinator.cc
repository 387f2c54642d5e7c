#include "server/coordinator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/monitor_view.h"
#include "server/update_form.h"
#include "spec/piece.h"
#include "spec/rounds.h"
#include "spec/run_spec.h"
#include "spec/stages.h"
#include "spec/update_record.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

constexpr uint64_t kLogEveryRounds = 100;

// What a node has applied is known here a heartbeat later at the latest. It is told sooner when the
// node has nothing else to do, but then too its ranks and its agent each wait a moment,
// and the WAN a round trip.
constexpr int64_t kAcknowledgeMsMin = 1000;

// The rounds that are open once this one is committed.
void SetOpening(const CommitRound& round, v1::StoredOpening* open) {
  std::vector<std::vector<std::string>> rounds = round.open_members;
  if (!round.next_members.empty()) rounds.push_back(round.next_members);
  open->set_round(round.round + 1);
  for (size_t i = 0; i < rounds.size(); ++i) {
    v1::StoredOpening* const one = i == 0 ? open : open->add_later();
    one->set_round(round.round + 1 + i);
    for (const std::string& member : rounds[i]) one->add_members(member);
  }
}

}  // namespace

RoundSettings Coordinator::SettingsOf(const v1::RunSpec& spec) {
  RoundSettings settings;
  settings.run = spec.run();
  for (const v1::NodeSpec& node : spec.nodes()) settings.nodes.push_back(node.name());
  settings.quorum = EffectiveQuorum(spec);
  settings.steps = Rounds(spec);
  settings.overlap = spec.overlap();
  settings.lease_ms = spec.timing().lease_ms();
  settings.deadline_ms = spec.timing().deadline_ms();
  settings.grace_ms = spec.timing().grace_ms();
  settings.tick_ms = kTickMs;
  if (IsHosted(spec)) settings.start_node = spec.snapshot().start_node();
  settings.acknowledge_ms = std::max<int64_t>(spec.timing().heartbeat_ms(), kAcknowledgeMsMin);
  return settings;
}

namespace {

// Well before updates since the last one have to go.
uint64_t SnapshotEvery(const v1::RunSpec& spec, const StoreLimits& limits) {
  if (spec.allow_drift()) return 0;
  return std::max<uint64_t>(1, std::min(spec.snapshot().every_rounds(), limits.rounds_max / 2));
}

// Where members upload their state; of a hosted model the coordinator writes its own.
uint64_t MembersSnapshotEvery(const v1::RunSpec& spec, uint64_t snapshot_every) {
  return IsHosted(spec) ? 0 : snapshot_every;
}

// The pieces as events, and what the record says of them.
void AddPieces(const Grid& grid, CodedUpdate coded, StoredUpdate* update) {
  v1::UpdateRecord& record = update->record;
  record.set_payload_sha256(coded.sha256);
  record.set_pieces(static_cast<uint32_t>(coded.pieces.size()));
  uint64_t payload_bytes = 0;
  for (std::string& piece : coded.pieces) {
    payload_bytes += piece.size();
    const auto view = OpenPiece(grid, piece);
    ISTHMUS_CHECK(view.ok());
    update->ranges.emplace_back(view->first_chunk, view->end_chunk);
    auto event = std::make_shared<v1::WatchUpdatesResponse>();
    event->mutable_piece()->set_round(record.round());
    event->mutable_piece()->set_data(std::move(piece));
    update->pieces.push_back(std::move(event));
  }
  record.set_payload_bytes(payload_bytes);
}

CodedUpdate MergedPieces(const Grid& grid, FoldedUpdate folded) {
  std::vector<const std::string*> pointers;
  for (const std::string& piece : folded.pieces) pointers.push_back(&piece);
  auto digest = PayloadDigest(grid, pointers);
  ISTHMUS_CHECK(digest.ok());
  return {std::move(folded.pieces), *std::move(digest)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Start(CoordinatorOptions options) {
  ISTHMUS_CHECK(options.store != nullptr);
  const bool ticks_by_itself = options.ticks_by_itself;
  const bool commits_by_itself = options.commits_by_itself;
  if (const auto& run = options.store->State().run) KeepLayouts(run->spec(), &options.spec);
  std::unique_ptr<Coordinator> coordinator(new Coordinator(std::move(options)));
  ISTHMUS_RETURN_IF_ERROR(coordinator->Resume());
  if (commits_by_itself) {
    coordinator->commit_thread_ = std::thread([c = coordinator.get()] { c->CommitLoop(); });
    coordinator->snapshot_thread_ = std::thread([c = coordinator.get()] { c->SnapshotLoop(); });
  }
  if (ticks_by_itself) {
    coordinator->tick_thread_ = std::thread([c = coordinator.get()] { c->TickLoop(); });
  }
  return coordinator;
}

Coordinator::Coordinator(CoordinatorOptions options)
    : spec_(std::move(options.spec)),
      revisions_(spec_),
      store_(std::move(options.store)),
      clock_(options.clock != nullptr ? options.clock : &monotonic_clock_),
      fold_threads_(options.fold_threads > 0
                        ? options.fold_threads
                        : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))),
      scratch_dir_(std::move(options.scratch_dir)),
      snapshot_every_(SnapshotEvery(spec_, store_->limits())),
      on_disk_failure_(std::move(options.on_disk_failure)),
      started_ms_(clock_->NowMs()),
      machine_(SettingsOf(spec_)),
      state_judge_(SettingsOf(spec_).nodes, IsHosted(spec_)),
      snapshot_plan_(MembersSnapshotEvery(spec_, snapshot_every_), Rounds(spec_)),
      history_(options.history),
      pieces_(options.contributions, static_cast<size_t>(spec_.nodes_size()), options.spool_dir) {
  for (const v1::NodeSpec& node : spec_.nodes()) nodes_[node.name()];
}

Coordinator::~Coordinator() { Stop(); }

void Coordinator::Stop() {
  {
    const DeliverAfter deliver(this);
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    for (auto& [name, node] : nodes_) {
      CloseWatchLocked(&node, WithReason(absl::UnavailableError("the coordinator is shutting down"),
                                         kReasonShuttingDown));
    }
  }
  wake_.notify_all();
  if (commit_thread_.joinable()) commit_thread_.join();
  if (tick_thread_.joinable()) tick_thread_.join();
  if (snapshot_thread_.joinable()) snapshot_thread_.join();
}

void Coordinator::StepLocked(const RoundEvent& event) {
  for (const RoundEffect& effect : machine_.Step(event, NowMs())) {
    std::visit([this](const auto& known) { CarryOutLocked(known); }, effect);
  }
}

void Coordinator::CarryOutLocked(const OpenRound& effect) {
  ISTHMUS_CHECK(model_ != nullptr);  // its members hold the start state, so one has joined
  TakeUpCodecLocked(effect.round);
  snapshot_every_ = SnapshotEvery(revisions_.SpecOf(effect.round), store_->limits());
  snapshot_plan_.SetEvery(MembersSnapshotEvery(spec_, snapshot_every_));
  aggregators_[effect.round] = MakeAggregatorLocked();
  ReserveSharesLocked();
  LogDebug("round opened", {{"round", absl::StrCat(effect.round)},
                            {"members", absl::StrJoin(effect.members, ",")},
                            {"run", spec_.run()}});
  NoteOpenedLocked(effect);
  for (const std::string& member : effect.members) SendOpenedLocked(member, effect.round);
}

void Coordinator::CarryOutLocked(const TakeIn& effect) {
  LogInfo("node taken into an open round",
          {{"node", effect.node}, {"round", absl::StrCat(effect.round)}, {"run", spec_.run()}});
  history_.TookIn(effect.round, effect.node);
  SendOpenedLocked(effect.node, effect.round);
}

void Coordinator::CarryOutLocked(const CommitRound& effect) {
  ISTHMUS_CHECK(!job_.has_value());  // one round at a time
  CommitJob job;
  job.round = effect;
  job.base_round = machine_.BaseOf(effect.round);
  job.model = model_;
  const Aggregator& aggregator = *aggregators_.at(effect.round);
  for (const std::string& node : effect.included) {
    job.digests.push_back(aggregator.Find(node)->digest);
    job.contribution_sizes.push_back(aggregator.Find(node)->size);
    job.contributions.push_back(aggregator.Pieces(node));
  }
  history_.Closed(RoundNodes(machine_, effect.round, NamesLocked()), effect.is_void);
  NoteClosedLocked(effect.round);
  job_ = std::move(job);
  wake_.notify_all();
}

void Coordinator::CarryOutLocked(const PublishRound& effect) {
  ISTHMUS_CHECK(persisted_ != nullptr && persisted_->record.round() == effect.round);
  aggregators_.erase(effect.round);
  ReserveSharesLocked();
  history_.Committed(persisted_->record.payload_bytes(), persisted_->record.sha256(), NowLocked());
  last_update_sha256_ = persisted_->record.sha256();
  if (const auto* plan = snapshot_plan_.plan(); plan != nullptr && plan->round() == effect.round) {
    snapshot_plan_.Progress(NowMs());
  }
  SendUpdateLocked(std::exchange(persisted_, nullptr));
}

void Coordinator::CarryOutLocked(const EndLease& effect) {
  LogWarning("lease ended: the node was not heard of",
             {{"node", effect.node},
              {"lease_ms", absl::StrCat(PresentSpecLocked().timing().lease_ms())},
              {"run", spec_.run()}});
  NoteChangeLocked(effect.node, /*left=*/false);
  // What had arrived could be gone on with while the lease lived; now it only takes memory.
  for (auto& [round, aggregator] : aggregators_) aggregator->Discard(effect.node);
  CloseWatchLocked(&nodes_[effect.node],
                   WithReason(absl::FailedPreconditionError(absl::StrCat(
                                  "the lease of node '", effect.node,
                                  "' has ended: nothing was heard of it for ",
                                  PresentSpecLocked().timing().lease_ms(), " ms; join again")),
                              kReasonNotJoined));
}

void Coordinator::CarryOutLocked(const FinishRun& effect) {
  LogInfo("run finished", {{"run", spec_.run()}, {"rounds", absl::StrCat(effect.round)}});
  history_.Finished(NowLocked());
  auto event = std::make_shared<v1::WatchUpdatesResponse>();
  event->mutable_finished()->set_round(effect.round);
  for (auto& [name, node] : nodes_) {
    if (node.watch != nullptr) deliveries_.push_back({node.watch, {event}, absl::nullopt});
  }
}

// Takes closed rounds one at a time.
void Coordinator::CommitLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || job_.has_value(); });
    if (stopping_) return;
    lock.unlock();
    const absl::Status stored = CommitOne();
    lock.lock();
    if (stored.ok()) continue;
    wake_.wait_for(lock, std::chrono::milliseconds(kRetryAfterMs), [this] { return stopping_; });
  }
}

absl::Status Coordinator::CommitOne() {
  const DeliverAfter deliver(this);
  std::unique_lock<std::mutex> lock(mutex_);
  if (!halted_.ok()) return halted_;
  if (stopping_ || !job_.has_value()) return absl::OkStatus();
  const CommitJob& job = *job_;  // nobody else touches it before RoundPersisted
  const uint64_t round = job.round.round;
  StoreBatch batch = std::exchange(unstored_, StoreBatch());
  lock.unlock();
  // The last round's plan may replace one that FinishSnapshot is about to make count.
  std::unique_lock<std::mutex> admission_lock(admission_mutex_, std::defer_lock);
  if (round + 1 + spec_.overlap() == revisions_.rounds()) admission_lock.lock();
  std::unique_lock<std::mutex> hosted_lock(hosted_mutex_, std::defer_lock);
  if (IsHosted(spec_)) hosted_lock.lock();
  if (batch.update == nullptr) {
    absl::StatusOr<StoreBatch> made = MakeCommit(job);
    if (!made.ok()) return CannotCommit(made.status());
    batch = *std::move(made);
  }
  // Persist: from here on the round cannot be taken back, and the next one is open.
  const absl::Status stored = WriteStore(batch);
  if (!stored.ok() && !absl::IsResourceExhausted(stored)) return CannotStore(stored);
  lock.lock();
  if (!stored.ok()) {
    LogError("cannot store the update, the round waits for it; make room",
             {{"round", absl::StrCat(round)}, {"error", stored.ToString()}, {"run", spec_.run()}});
    unstored_ = std::move(batch);
    return stored;
  }
  job_.reset();
  if (stopping_) return absl::OkStatus();
  if (batch.plan.has_value()) BeginPlanLocked(*batch.plan);
  // Publish: the machine answers with PublishRound, then the next round opens.
  persisted_ = std::move(batch.update);
  StepLocked(RoundPersisted{round});
  if (hosted_ != nullptr && HostedSnapshotDueLocked(round)) hosted_due_ = round;
  if (hosted_ == nullptr || !IsCheckedLocked(round)) return absl::OkStatus();
  // What is published need not wait for the model to be hashed.
  lock.unlock();
  if (admission_lock.owns_lock()) admission_lock.unlock();
  Deliver();
  NoteHostedState(round);
  return absl::OkStatus();
}

// Nothing of the round was stored. There may be no room for what must be stored before it, or the
// process is about to end; else the model can take no further step.
absl::Status Coordinator::CannotCommit(const absl::Status& why) {
  if (absl::IsResourceExhausted(why) || absl::IsCancelled(why)) return why;
  std::lock_guard<std::mutex> lock(mutex_);
  HaltLocked(why);
  return why;
}

bool Coordinator::has_commit() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return job_.has_value();
}

absl::StatusOr<StoreBatch> Coordinator::MakeCommit(const CommitJob& job) {
  StoreBatch batch;
  // The state that a snapshot is due of must be there before the step that changes it.
  if (hosted_ != nullptr) ISTHMUS_RETURN_IF_ERROR(WriteHostedSnapshot());
  ISTHMUS_RETURN_IF_ERROR(MakeUpdate(job, &batch));
  hosted_round_ = job.round.round;
  if (job.round.round < revisions_.rounds()) {
    batch.open.emplace();
    SetOpening(job.round, batch.open.operator->());
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t snapshot = snapshots_.empty() ? 0 : snapshots_.back().facts().round();
  // So that a node can always come back: by the snapshot, or the start state, and these.
  if (!spec_.allow_drift()) batch.needed_after = snapshot;
  if (batch.open.has_value()) {
    if (store_->BytesAfter(snapshot) > store_->limits().bytes_max / 2) snapshot_plan_.Want();
    const uint64_t next = job.round.round + 1 + spec_.overlap();
    if (next <= revisions_.rounds()) {
      batch.plan = snapshot_plan_.Propose(next, job.round.next_members);
    }
  }
  if (!spec_.deterministic()) return batch;
  // A node may start again from its checkpoint and needs every update since, however many.
  uint64_t oldest = job.round.round;
  for (const auto& [name, node] : nodes_) {
    if (machine_.PolicyOf(name) == NodePolicy::kEvict) continue;  // it must not fill the disk
    oldest = std::min(oldest, node.checkpoint_round);
  }
  batch.keep_after = oldest;
  return batch;
}

absl::Status Coordinator::MakeUpdate(const CommitJob& job, StoreBatch* batch) {
  auto update = std::make_shared<StoredUpdate>();
  v1::UpdateRecord& record = update->record;
  const uint64_t round = job.round.round;
  record.set_run(spec_.run());
  record.set_round(round);
  record.set_base_round(job.base_round);
  record.set_step(revisions_.StepAfter(round));  // a void update advances the step too
  record.set_spec_revision(revisions_.RevisionOf(round));
  record.set_lr_bits(LearningRateBits(round));
  record.set_weight_decay_bits(
      absl::bit_cast<uint32_t>(revisions_.SpecOf(round).optimizer().weight_decay()));
  record.set_is_void(job.round.is_void);
  record.set_codec(UpdateLayout(job.model->codec));
  for (size_t i = 0; i < job.round.included.size(); ++i) {
    v1::IncludedContribution* included = record.add_included();
    included->set_node(job.round.included[i]);
    included->set_digest(job.digests[i]);
  }
  if (!job.round.is_void) {
    const Grid& grid = *job.model->grid;
    float norm = 0.0f;
    CodedUpdate coded;
    if (IsOuter(spec_)) {
      ISTHMUS_ASSIGN_OR_RETURN(coded, MakeOuterPieces(job, &norm, batch));
    } else {
      FoldedUpdate folded = InForm(grid, FoldContributions(grid, job.contributions, fold_threads_),
                                   job.contributions, fold_threads_);
      norm = folded.norm;
      record.set_codec(folded.layout);
      coded = MergedPieces(grid, std::move(folded));
    }
    record.set_norm_bits(absl::bit_cast<uint32_t>(norm));
    AddPieces(grid, std::move(coded), update.get());
  }
  const auto previous = store_->RecordSha256(round - 1);
  ISTHMUS_CHECK(previous.ok());
  record.set_previous_sha256(*previous);
  record.set_sha256(UpdateRecordSha256(record));
  const LogFields fields = {{"round", absl::StrCat(round)},
                            {"included", absl::StrJoin(job.round.included, ",")},
                            {"bytes", absl::StrCat(record.payload_bytes())},
                            {"sha256", HexPrefix(record.sha256())},
                            {"run", spec_.run()}};
  const bool worth_a_line = round == 1 || round == revisions_.rounds() ||
                            round % kLogEveryRounds == 0 || job.round.is_void;
  (worth_a_line ? LogInfo : LogDebug)("round committed", fields);
  batch->update = std::move(update);
  return absl::OkStatus();
}

uint32_t Coordinator::LearningRateBits(uint64_t round) const {
  return absl::bit_cast<uint32_t>(revisions_.LearningRateOf(round));
}

void Coordinator::TickLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    Tick();
    lock.lock();
    wake_.wait_for(lock, std::chrono::milliseconds(kTickMs), [this] { return stopping_; });
  }
}

void Coordinator::Tick() {
  {
    const DeliverAfter deliver(this);
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_ || !halted_.ok()) return;
    StepLocked(Ticked{});
    SayWhatIsWaitedForLocked(NowMs());
  }
  JudgeStates();
}

bool Coordinator::finished() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return machine_.finished();
}

size_t Coordinator::live_nodes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<size_t>(std::count_if(nodes_.begin(), nodes_.end(), [this](const auto& node) {
    return machine_.IsLive(node.first);
  }));
}

std::string Coordinator::WaitingFor() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return WaitingForLocked();
}

}  // namespace isthmus
