// The coordinator of one run: admits nodes, opens rounds, takes contributions in, merges them,
// keeps the updates and publishes them. It decides nothing by itself: every event goes through the
// state machine in server/round.h, and this class carries its effects out.
//
//   ASSIGN_OR_RETURN(auto coordinator, Coordinator::Start({spec, MakeMemoryStore()}));
//   // transport/service.h puts it on the wire
//
// Where to read what:
//   coordinator.cc   the flow of a round: events, effects, persist, then publish
//   resume.cc        what it starts from, and going on with a run that the store holds
//   admission.cc     JoinRun: who may take part, and in what
//   admin.cc         DrainNode, EvictNode, AdmitNode: what operators say of a node
//   revisions.cc     UpdateRun: another spec from a round on
//   fork.cc          what a fork of the run starts from
//   pause.cc         PauseRun, ResumeRun: an operator lets no round open
//   states.cc        whether nodes hold one state, and ChooseState: an operator says whose is right
//   callers.cc       Heartbeat, LeaveRun, and what every call of an admitted node must pass
//   submission.cc    Submit: what is checked before a contribution counts
//   watches.cc       WatchUpdates: what a watcher is sent, and when
//   snapshots.cc     UploadSnapshot, FetchSnapshot, and who is told to fetch one
//   catch_up.cc      who is told to fetch a snapshot, and when one is made beside the schedule
//   outer_rounds.cc  rounds with local steps: checks, aggregate, update
//   hosted_snapshots.cc  the hosted model: where it starts, its snapshots, how it comes back
//   look.cc          what operators may see, and what is kept for them
//
// Thread-safe. One mutex guards the state; what takes long (checking pieces, digests, merging,
// storing, sending) happens outside of it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "isthmus/v1/admin.pb.h"
#include "isthmus/v1/coordinator.pb.h"
#include "isthmus/v1/run_spec.pb.h"
#include "server/aggregator.h"
#include "server/contribution.h"
#include "server/fork.h"
#include "server/hosted_model.h"
#include "server/monitor_facts.h"
#include "server/monitor_history.h"
#include "server/piece_keeper.h"
#include "server/round.h"
#include "server/snapshot_plan.h"
#include "server/spec_revisions.h"
#include "server/state_judge.h"
#include "server/store.h"
#include "server/store_trail.h"
#include "spec/section_ranges.h"
#include "transport/round_host.h"

namespace isthmus {

struct CoordinatorOptions {
  v1::RunSpec spec;               // complete, as ReadRunSpecFile gives it
  std::shared_ptr<Store> store;   // what it holds is gone on with
  std::string scratch_dir;        // of a hosted model (server/hosted_model.h); empty: memory
  BudgetLimits contributions;     // to open rounds
  std::string spool_dir;          // where they go beyond memory (server/piece_keeper.h); empty: not
  const Clock* clock = nullptr;   // null: the monotonic clock; else outlives the coordinator
  int fold_threads = 0;           // 0: one a core
  HistoryLimits history;          // of what is kept for operators
  bool ticks_by_itself = true;    // false: the caller calls Tick (tests with a clock of their own)
  bool commits_by_itself = true;  // false: the caller calls CommitOne (the simulator)
  // Called when the store cannot be trusted any more, from whichever thread wrote. It should not
  // return: the process must end without another answer. Null: ends it with kExitDisk.
  std::function<void(const absl::Status&)> on_disk_failure;
};

// Exit status of a process whose disk failed in the middle of a write. What was not answered may or
// may not be there when it is started again.
inline constexpr int kExitDisk = 3;

class Coordinator final : public RoundHost {
 public:
  // Starts its threads; goes on with the run that the store holds, with the round that was open.
  //   FAILED_PRECONDITION  the store holds a run with another spec; names the first field
  //   DATA_LOSS            what it holds does not fit together; says what
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(CoordinatorOptions options);
  ~Coordinator() override;

  absl::StatusOr<v1::JoinRunResponse> JoinRun(const v1::JoinRunRequest& request) override;
  absl::StatusOr<std::unique_ptr<SubmissionSink>> BeginSubmit(
      const v1::SubmitHeader& header) override;
  absl::StatusOr<std::shared_ptr<WatchQueue>> Watch(
      const v1::WatchUpdatesRequest& request) override;
  void WatchEnded(const v1::WatchUpdatesRequest& request,
                  const std::shared_ptr<WatchQueue>& queue) override;
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request) override;
  absl::StatusOr<v1::LeaveRunResponse> LeaveRun(const v1::LeaveRunRequest& request) override;

  absl::StatusOr<std::unique_ptr<SnapshotSink>> BeginUpload(
      const v1::UploadSnapshotHeader& header) override;
  absl::StatusOr<std::unique_ptr<SnapshotSource>> BeginFetch(
      const v1::FetchSnapshotRequest& request) override;

  // For operators (server/admin_service.h puts these on the wire). What they change is stored when
  // they return, and holds until the contrary is said. The same again is well.
  //   NOT_FOUND            run or node; names those that are here
  //   INVALID_ARGUMENT     reason too long
  //   FAILED_PRECONDITION  draining a node that is evicted; see below
  //   RESOURCE_EXHAUSTED   the store has no room: nothing has changed
  absl::StatusOr<v1::DrainNodeResponse> DrainNode(const v1::DrainNodeRequest& request);
  absl::StatusOr<v1::EvictNodeResponse> EvictNode(const v1::EvictNodeRequest& request);
  absl::StatusOr<v1::AdmitNodeResponse> AdmitNode(const v1::AdmitNodeRequest& request);
  // FAILED_PRECONDITION: the run is finished; of an update too: a field that a run keeps, a round
  // that has opened.
  absl::StatusOr<v1::UpdateRunResponse> UpdateRun(const v1::UpdateRunRequest& request);
  absl::StatusOr<v1::PauseRunResponse> PauseRun(const v1::PauseRunRequest& request);
  absl::StatusOr<v1::ResumeRunResponse> ResumeRun(const v1::ResumeRunRequest& request);
  absl::StatusOr<v1::ChooseStateResponse> ChooseState(const v1::ChooseStateRequest& request);

  // Looks at leases and deadlines. Called every kTickMs by a thread of its own, unless told not to.
  void Tick();

  // Carries a closed round through: merges, persists, and only then publishes. OK also when no
  // round is closed. RESOURCE_EXHAUSTED: the store has no room; nothing was published, the
  // round stays closed; call it again. Other errors are final. Called by a thread of its own,
  // unless told not to; by one thread at a time.
  absl::Status CommitOne();
  // Whether a closed round waits for CommitOne.
  bool has_commit() const;

  // Looks whether the snapshot under way is whole, checks it, and makes it count or gives it up.
  // RESOURCE_EXHAUSTED: the store has no room; call it again. Called every kTickMs by a thread of
  // its own, unless told not to commit by itself; by one thread at a time.
  absl::Status FinishSnapshot();
  // The next round that opens gets a snapshot, beside those of the schedule; its number.
  // FAILED_PRECONDITION: the run's nodes hold no common state, or no round follows.
  absl::StatusOr<uint64_t> RequestSnapshot();

  // Ends all watches and refuses all calls with UNAVAILABLE, ends the threads. Idempotent.
  void Stop();

  // All rounds are committed and published.
  bool finished() const;
  // Nodes with a live lease.
  size_t live_nodes() const;
  // Why the open round has not committed.
  std::string WaitingFor() const;
  // The last write found no room on the disk. The run goes on by itself when there is some.
  bool store_full() const { return store_trail_.full(); }

  // For operators (server/monitor_view.h makes views of it): a copy of the state, taken under the
  // lock in a time that grows with the number of nodes alone; and the rounds, with a lock of their
  // own.
  RunFacts Look() const;
  RoundHistory& history() { return history_; }
  // A snapshot that is kept (absent: the newest), for a run that is to start from it.
  // FAILED_PRECONDITION: there is none. NOT_FOUND: not of that round.
  absl::StatusOr<ForkSource> SourceOfFork(const absl::optional<uint64_t>& round) const;
  // Where the run's start state came from; absent: it was not forked.
  const absl::optional<v1::StoredFork>& fork() const { return fork_; }
  // As it was made.
  const v1::RunSpec& spec() const { return spec_; }
  // NOT_FOUND, naming the run that is here. Empty: that run.
  absl::Status CheckRun(const std::string& run) const;

 private:
  class Submission;       // submission.cc
  class EndedSubmission;  // submission.cc
  class SnapshotIntake;   // snapshots.cc

  // What the run trains. Fixed by the first node; never changes.
  struct Model {
    v1::Manifest manifest;
    std::string fingerprint;
    std::string start_state_sha256;
    v1::CodecSpec codec;  // what grid and sizes follow from
    std::shared_ptr<const Grid> grid;
    ContributionSizes sizes;
  };
  using ModelPtr = std::shared_ptr<const Model>;

  // A node of the spec, as it was last admitted. Whether its lease lives is the machine's to say.
  struct NodeState {
    std::string secret_sha256;  // empty: never admitted, or it left
    uint64_t incarnation = 0;   // 0: never admitted
    uint64_t attempt = 0;
    uint64_t checkpoint_round = 0;      // as the node said last; 0: none, or nothing said yet
    std::shared_ptr<WatchQueue> watch;  // null: none
    ChunkRanges watched;                // empty: all
    NodeTrail trail;                    // for operators
  };

  // A round that closed, on its way to the commit thread.
  struct CommitJob {
    CommitRound round;
    uint64_t base_round = 0;
    ModelPtr model;
    std::vector<std::string> digests;                   // one for each included node
    std::vector<std::vector<HeldPiece>> contributions;  // one for each included node
    std::vector<ContributionSize> contribution_sizes;   // the same
  };

  // What came of the snapshot under way.
  struct Intake {
    absl::optional<v1::SnapshotFacts> facts;  // as the first call said; absent: none came yet
    std::set<SectionRange> held;
    uint64_t bytes = 0;
    uint64_t number = 0;  // of the plan since the start: calls for an earlier one are over
  };

  // Declared before a lock, so that it delivers after the lock is gone, on every way out.
  class DeliverAfter {
   public:
    explicit DeliverAfter(Coordinator* coordinator) : coordinator_(coordinator) {}
    ~DeliverAfter() { coordinator_->Deliver(); }

   private:
    Coordinator* const coordinator_;
  };

  // Events that were decided on under the mutex and are pushed without it, in order.
  struct Delivery {
    std::shared_ptr<WatchQueue> queue;
    std::vector<WatchEvent> events;
    absl::optional<absl::Status> close;  // after the events
  };

  explicit Coordinator(CoordinatorOptions options);

  // resume.cc. "Locked": the caller holds mutex_.
  absl::Status Resume();
  absl::Status ResumeLocked(const StoredState& state);
  absl::Status CheckMembers(const v1::StoredOpening& open) const;
  absl::Status CheckMember(const std::string& node) const;
  void HaltLocked(absl::Status why);
  absl::Status WriteStore(const StoreBatch& batch);
  absl::Status CannotStore(const absl::Status& why);

  // coordinator.cc
  static RoundSettings SettingsOf(const v1::RunSpec& spec);
  void StepLocked(const RoundEvent& event);
  void CarryOutLocked(const OpenRound& effect);
  void CarryOutLocked(const TakeIn& effect);
  void CarryOutLocked(const TakeOut& effect);  // admin.cc
  void CarryOutLocked(const CommitRound& effect);
  void CarryOutLocked(const PublishRound& effect);
  void CarryOutLocked(const EndLease& effect);
  void CarryOutLocked(const FinishRun& effect);
  void CommitLoop();
  absl::Status CannotCommit(const absl::Status& why);
  absl::StatusOr<StoreBatch> MakeCommit(const CommitJob& job);
  void TickLoop();
  absl::Status MakeUpdate(const CommitJob& job, StoreBatch* batch);
  void SayWhatIsWaitedForLocked(int64_t now_ms);
  uint32_t LearningRateBits(uint64_t round) const;
  int64_t NowMs() const { return clock_->NowMs(); }

  // admission.cc
  // What a join would change. Nothing of it counts before it is stored.
  struct Admission {
    StoreBatch batch;
    ModelPtr model;
    std::string heldout_sha256;
  };
  absl::StatusOr<v1::JoinRunResponse> Admit(const v1::JoinRunRequest& request);
  absl::StatusOr<Admission> PlanLocked(const v1::JoinRunRequest& request);
  void AdmitLocked(const v1::JoinRunRequest& request, const Admission& admission);
  absl::Status CheckNode(const std::string& node) const;
  absl::Status CheckSecretLocked(const v1::JoinRunRequest& request) const;
  bool StartsByFetching(const std::string& node) const;
  absl::Status CheckStartState(const v1::JoinRunRequest& request) const;
  absl::StatusOr<ModelPtr> CheckModelLocked(const v1::JoinRunRequest& request) const;
  absl::Status CheckHeldOutLocked(const v1::JoinRunRequest& request) const;
  absl::StatusOr<ModelPtr> MakeModel(const v1::Manifest& manifest, const std::string& fingerprint,
                                     const std::string& start_state_sha256,
                                     const v1::CodecSpec& codec) const;
  // The same with another revision's codec.
  absl::StatusOr<ModelPtr> MakeModel(const Model& model, const v1::CodecSpec& codec) const {
    return MakeModel(model.manifest, model.fingerprint, model.start_state_sha256, codec);
  }
  bool UploadsStartLocked(const v1::JoinRunRequest& request) const;
  bool ModelMayChangeLocked(const std::string& node) const;
  v1::StoredRun StoredRunOf(const ModelPtr& model, const std::string& heldout_sha256) const;

  // admin.cc
  absl::StatusOr<uint64_t> SetPolicy(NodePolicySet wanted);
  absl::Status CheckPolicyLocked(const NodePolicySet& wanted) const;
  // The node as it is now, for the store.
  v1::StoredNode StoredNodeOf(const std::string& name) const;
  static RunResumed::Policy PolicyOf(const v1::StoredNode& stored);
  absl::Status EvictedStatus(const std::string& node, const std::string& reason) const;
  absl::Status CheckNotEvictedLocked(const std::string& node) const;

  // revisions.cc
  // The oldest round that is open or being committed, else the next one.
  uint64_t PresentRoundLocked() const;
  // The newest round whose opening is certain; 0: none.
  uint64_t NewestRoundLocked() const;
  const v1::RunSpec& PresentSpecLocked() const { return revisions_.SpecOf(PresentRoundLocked()); }
  absl::Status CheckFromRoundLocked(const v1::RunSpec& spec, uint64_t* from_round) const;
  void TakeRevisionLocked(const v1::StoredRevision& revision);
  absl::Status ResumeRevisionsLocked(const v1::StoredRun& run);
  void TakeUpCodecLocked(uint64_t round);
  static WatchEvent RevisedEvent(const v1::StoredRevision& revision);

  // pause.cc
  absl::StatusOr<uint64_t> SetPause(const RoundEvent& event, bool paused,
                                    const std::string& reason);

  // states.cc
  bool IsCheckedLocked(uint64_t round) const;
  void NoteClosedLocked(uint64_t round);
  void NoteHostedState(uint64_t round);
  absl::Status TakeReportsLocked(const v1::HeartbeatRequest& request);
  StateJudge::Verdict StateVerdictLocked() const;
  void JudgeStates();
  absl::Status CarryOutLocked(StateJudge::Verdict verdict);
  std::string DisputeTextLocked() const;
  void MarkDivergedLocked(const std::string& name);
  absl::Status DivergedStatusLocked(const std::string& node) const;
  bool HasRightSnapshotLocked() const;
  bool HoldsRightStateLocked(const v1::JoinRunRequest& request) const;
  absl::Status CheckHealedLocked(const v1::JoinRunRequest& request);

  // callers.cc
  absl::Status CheckHistoryLocked(const std::string& node, uint64_t last_round,
                                  const std::string& sha256);
  absl::Status AheadLocked(const std::string& node, uint64_t last_round);
  absl::Status CheckServingLocked() const;
  // Run, node, incarnation, lease: what every call of an admitted node must pass.
  absl::Status CheckCallerLocked(const std::string& run, const std::string& node,
                                 uint64_t incarnation) const;

  // submission.cc
  absl::Status CheckRoundLocked(const std::string& node, uint64_t round) const;
  absl::Status CheckMemberLocked(const std::string& node, uint64_t round) const;
  absl::Status CheckRoomLocked(const std::string& node, uint64_t round);
  absl::Status CheckHeaderLocked(const v1::SubmitHeader& header, ChunkRanges* ranges) const;
  absl::Status CheckSizesLocked(const v1::SubmitHeader& header, ChunkRanges* ranges) const;
  std::unique_ptr<SubmissionSink> AbstainLocked(const v1::SubmitHeader& header);
  void RefuseLocked(const std::string& node, uint64_t round, const absl::Status& why);
  v1::SubmitResponse ReceiptLocked(const std::string& node, uint64_t round) const;

  // watches.cc
  absl::Status CheckWatchLocked(const v1::WatchUpdatesRequest& request, ChunkRanges* ranges);
  WatchQueue::Past PastLocked(uint64_t last_round, std::vector<StoredUpdatePtr> first,
                              const ChunkRanges& watched) const;
  WatchEvent StartEventLocked(const std::string& node) const;
  WatchEvent OpenedEventLocked(const std::string& node, uint64_t round) const;
  void SendOpenedLocked(const std::string& node, uint64_t round);
  // The update's record and those of its pieces that overlap the chunks watched.
  static void AppendUpdate(const StoredUpdate& update, const ChunkRanges& watched,
                           std::vector<WatchEvent>* events);
  void SendUpdateLocked(const StoredUpdatePtr& update);
  void CloseWatchLocked(NodeState* node, absl::Status status);
  void Deliver();

  // snapshots.cc
  absl::Status CheckUploadLocked(const v1::UploadSnapshotHeader& header) const;
  absl::Status CheckFactsLocked(const v1::SnapshotFacts& facts) const;
  absl::Status CheckPieceLocked(const v1::SnapshotPiece& piece, const SectionRange& range,
                                bool* held) const;
  void BeginPlanLocked(const v1::StoredSnapshotPlan& plan);
  void ResumeSnapshotsLocked(const StoredState& state);
  absl::Status FinishPlan();
  bool IsWholeLocked() const;
  void HashIfWhole();
  void KeepSnapshotLocked(const v1::StoredSnapshot& snapshot);
  absl::StatusOr<std::string> HashPieces(const v1::SnapshotFacts& facts, const Grid& grid) const;
  void SnapshotLoop();

  // catch_up.cc
  absl::Status CheckCatchUpLocked(const std::string& node, uint64_t last_round);
  void WantSnapshotLocked(uint64_t round);
  bool NoSnapshotComesLocked() const;
  std::string ComingStateLocked() const;

  // outer_rounds.cc
  absl::Status CheckOuterHeader(const v1::SubmitHeader& header) const;
  absl::StatusOr<CodedUpdate> MakeOuterPieces(const CommitJob& job, float* norm, StoreBatch* batch);

  // hosted_snapshots.cc
  static v1::HostedState HostedStart();
  absl::StatusOr<std::unique_ptr<HostedModel>> LoadHosted(const v1::StoredSnapshot& snapshot,
                                                          const Model& model) const;
  absl::Status ResumeHosted(const StoredState& state);
  absl::Status ReplayRound(uint64_t round);
  bool HostedSnapshotDueLocked(uint64_t round) const;
  // Takes the start state up, or writes the snapshot that is due.
  absl::Status TendHosted();
  absl::Status WriteHostedSnapshot();
  absl::Status WriteHostedPieces(v1::StoredSnapshot* snapshot);

  // look.cc
  // Why the run stands still, if no node can change it; else empty.
  std::string StoppedSentenceLocked() const;
  std::string WaitingForLocked() const;
  // The commit of this round waits for room on the disk; 0: none does.
  uint64_t RoundWithoutRoomLocked() const;
  std::string FullSentenceLocked() const;
  Moment NowLocked() const;
  void NoteOpenedLocked(const OpenRound& effect);
  void NoteChangeLocked(const std::string& node, bool left);
  std::shared_ptr<Aggregator> MakeAggregatorLocked() const;
  static uint64_t NeedBytes(uint64_t contribution_bytes);
  void ReserveSharesLocked();
  // Bytes of the node's contribution to the round that is to commit next.
  uint64_t ReceivedLocked(const std::string& node) const;
  void NoteRefusalLocked(const std::string& node, uint64_t round, v1::NodeOutcome outcome,
                         absl::string_view reason);
  std::vector<std::string> NamesLocked() const;

  const v1::RunSpec spec_;  // the first one: name, nodes, and whatever else never changes
  absl::optional<v1::StoredFork> fork_;  // set before there are threads
  SpecRevisions revisions_;  // added to under admission_mutex_ and mutex_, read by anybody
  const std::shared_ptr<Store> store_;
  const MonotonicClock monotonic_clock_;
  const Clock* const clock_;
  const int fold_threads_;
  const std::string scratch_dir_;
  uint64_t snapshot_every_;  // rounds; 0: no snapshots
  const std::function<void(const absl::Status&)> on_disk_failure_;
  const int64_t started_ms_;

  // Held over a whole join or leave and over whatever ends a snapshot's plan, its write included;
  // taken before mutex_.
  std::mutex admission_mutex_;
  // Held over a step of the hosted model until its round is stored, and over a snapshot of it;
  // taken after admission_mutex_, before mutex_.
  std::mutex hosted_mutex_;
  std::unique_ptr<HostedModel> hosted_;  // null: nothing is hosted, or the start state is not here
  uint64_t hosted_round_ = 0;            // whose state it is
  std::string hosted_frozen_sha256_;     // of the tensors that are not trained
  // Held over a piece of a snapshot, its write included; taken before mutex_.
  std::mutex intake_mutex_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;  // a job, or stopping_
  bool stopping_ = false;
  absl::Status halted_;              // not OK: the run stands still, and this is everybody's answer
  std::set<std::string> differing_;  // nodes whose history was another one when they last said
  RoundMachine machine_;
  StateJudge state_judge_;
  std::map<std::string, NodeState> nodes_;  // all of the spec's
  uint64_t last_incarnation_ = 0;
  ModelPtr model_;              // null: no node has joined
  std::string heldout_sha256_;  // of the held-out tokens; empty: no node named any
  // Of the rounds that are open or being committed.
  std::map<uint64_t, std::shared_ptr<Aggregator>> aggregators_;
  absl::optional<CommitJob> job_;
  StoreBatch unstored_;             // made of job_, and not taken by the store yet
  StoredUpdatePtr persisted_;       // of the round to publish next
  std::string last_update_sha256_;  // of the last round that was published
  SnapshotPlan snapshot_plan_;
  Intake intake_;                              // of the plan under way
  std::vector<v1::StoredSnapshot> snapshots_;  // that count, ascending by round
  absl::optional<uint64_t> hosted_due_;        // the state after that round is to be written
  absl::optional<uint64_t> hosted_wanted_;  // beside the schedule: after that round or a later one
  std::deque<Delivery> deliveries_;
  bool delivering_ = false;
  std::string cause_;  // of the present wait, since when, and whether it was logged
  int64_t cause_since_ms_ = 0;
  bool cause_logged_ = false;
  std::string logged_dispute_;    // a wait that was logged when it began
  bool cause_told_ = false;       // to those who watch rounds
  RoundHistory history_;          // has a lock of its own, taken after mutex_ or alone
  StoreTrail store_trail_;        // the same
  PieceKeeper pieces_;            // the same; of contributions to open rounds
  uint64_t watches_dropped_ = 0;  // because their watchers fell behind

  std::thread commit_thread_;
  std::thread tick_thread_;
  std::thread snapshot_thread_;
};

}  // namespace isthmus
