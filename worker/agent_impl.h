// The agent's state, shared by its files:
//
//   agent.cc          one round's way through the agent
//   agent_ranks.cc    ranks come, say that they live, and leave
//   agent_snapshots.cc  snapshots on their way through
//   agent_control.cc  start and end, the spec, the session with the coordinator
//
// Threads: calls of ranks come from the transport, events of the run from the session's thread, and
// one control thread does what may block (fetching the spec, starting, leaving and destroying the
// session). One mutex guards all state. Never under it: calls that block, closing a watch (the
// transport may answer at once with WatchEnded), reading chunks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/client.h"
#include "transport/session.h"
#include "worker/agent.h"
#include "worker/bundle.h"
#include "worker/rank_group.h"
#include "worker/round_log.h"
#include "worker/state_folder.h"
#include "worker/state_parts.h"

namespace isthmus {

// What is waited for is said when it has lasted so long: less is how a healthy run goes.
inline constexpr int64_t kSayWaitAfterMs = 3000;

class AgentImpl final : public Agent, private SessionListener {
 public:
  AgentImpl(const AgentOptions& options, std::unique_ptr<StateFolder> state,
            std::unique_ptr<Client> client);
  ~AgentImpl() override;
  void StartControl();

  // agent_control.cc
  bool WaitEnded(int timeout_ms) override;
  absl::Status ended() const override;
  void Stop(const std::string& reason) override;

  // RoundHost: agent.cc
  absl::StatusOr<std::unique_ptr<SubmissionSink>> BeginSubmit(
      const v1::SubmitHeader& header) override;
  // RoundHost: agent_ranks.cc
  absl::StatusOr<v1::JoinRunResponse> JoinRun(const v1::JoinRunRequest& request) override;
  absl::StatusOr<std::shared_ptr<WatchQueue>> Watch(
      const v1::WatchUpdatesRequest& request) override;
  void WatchEnded(const v1::WatchUpdatesRequest& request,
                  const std::shared_ptr<WatchQueue>& queue) override;
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request) override;
  absl::StatusOr<v1::LeaveRunResponse> LeaveRun(const v1::LeaveRunRequest& request) override;
  // RoundHost: agent_snapshots.cc
  absl::StatusOr<std::unique_ptr<SnapshotSink>> BeginUpload(
      const v1::UploadSnapshotHeader& header) override;
  absl::StatusOr<std::unique_ptr<SnapshotSource>> BeginFetch(
      const v1::FetchSnapshotRequest& request) override;

 private:
  friend class RankPartSink;
  friend class UploadRelay;
  using Closings = std::vector<std::pair<std::shared_ptr<WatchQueue>, absl::Status>>;
  struct RankWatch {
    std::shared_ptr<WatchQueue> queue;
    ChunkRanges ranges;
    uint64_t last_round = 0;  // the rank had it when the watch began
  };
  enum class Upstream {
    kNone,     // no session: ranks gather
    kJoining,  // a session that has not joined yet
    kJoined,
    kClosing,  // the control thread is about to end the session
  };

  // agent.cc: one round
  void OnOpened(const v1::RoundOpened& opened) override;
  void OnRevised(const v1::SpecRevised& revised) override;
  // What the ranks and this agent exchange in a round is in the codec that holds there.
  void TakeCodecOf(uint64_t round);
  void TakeCodec(const v1::CodecSpec& codec);
  void OpenBundle(const v1::RoundOpened& opened);
  absl::Status CheckRound(const v1::SubmitHeader& header) const;
  absl::Status CheckHeader(const v1::SubmitHeader& header, const v1::RoundOpened& opened) const;
  // Whether the round that it is of still takes parts.
  bool IsOpen(const std::shared_ptr<Bundle>& bundle) const;
  void RefusePart(const std::shared_ptr<Bundle>& bundle, uint32_t rank, const absl::Status& status);
  // `grid` is the one that the part's pieces were checked against: the group may have changed.
  absl::StatusOr<v1::SubmitResponse> EndPart(const std::shared_ptr<Bundle>& bundle,
                                             const Grid& grid, uint32_t rank);
  v1::SubmitResponse Receipt(const Bundle& bundle) const;
  void SendContribution(const std::shared_ptr<Submission>& submission);
  void SendAbstention(const std::shared_ptr<Bundle>& bundle);
  void SendUpstream(std::shared_ptr<const Submission> submission);
  void OnUpdate(std::shared_ptr<const CommittedUpdate> update) override;
  bool OwnIncluded(const v1::UpdateRecord& record) const;
  void OnFinished(uint64_t last_round) override;
  void RankAcknowledged(uint32_t rank, uint64_t round);

  // agent_ranks.cc
  absl::StatusOr<v1::JoinRunResponse> JoinGroup(const v1::JoinRunRequest& request);
  absl::Status CheckRank(v1::Role role, uint32_t rank, uint64_t incarnation) const;
  std::string WaitingForRanks() const;
  std::string LeaveReason() const;
  void TellWaiting();
  void TakeWatches(const absl::Status& status, Closings* closings);
  static void Close(const Closings& closings);

  // agent_snapshots.cc
  void YieldToContribution();
  void TakeStatePart(const v1::HeartbeatRequest& request);

  // agent_control.cc
  void Control();
  bool FetchSpec();
  absl::Status NotInSpec(const v1::RunSpec& spec) const;
  void TakeSpec(const v1::JoinRunResponse& spec);
  void Tick();
  bool EndBrokenGroup();
  absl::Status StartSession();
  void OnJoined(const v1::JoinRunResponse& joined) override;
  void OnWaiting(const std::string& sentence) override;
  void SetUpstreamWaiting(const std::string& sentence);
  void LogWaiting();
  void OnEnded(const absl::Status& status) override;
  void RefuseGroup(const absl::Status& status, Closings* closings);
  void CloseSession(std::unique_lock<std::mutex>* lock);
  void End(const absl::Status& status);
  std::string Name() const;
  absl::Status Stopping() const;

  const AgentOptions options_;
  const MonotonicClock clock_;
  const std::unique_ptr<Client> client_;  // for the spec and snapshots
  std::thread control_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<StateFolder> state_;
  bool stopping_ = false;
  std::string stop_reason_;
  std::optional<absl::Status> ended_;

  // Before the spec is there: whom the agent waits for, and whether a rank has asked.
  std::string spec_waiting_;
  bool rank_asked_ = false;
  std::optional<v1::JoinRunResponse> spec_;

  // The present group. `refusal_`: it was refused upstream, and every rank is told so.
  std::optional<RankGroup> group_;
  absl::Status refusal_;
  std::vector<RankWatch> watches_;  // [rank]
  int64_t disconnected_ms_ = -1;    // since when a rank is gone; -1: all are there
  bool group_broken_ = false;       // refused by us: the node can have another group
  Closings broken_;                 // watches of its siblings, to be closed
  std::string broken_group_id_;     // its ranks may still ask to join again
  absl::Status broken_status_;

  Upstream upstream_ = Upstream::kNone;
  bool leave_ = false;  // kClosing: say LeaveRun
  bool exits_ = false;  // the group had all of the run, or was refused, and nothing is left to do
  std::string leave_reason_;
  uint32_t left_rank_ = 0;   // the last rank of the group that left with a reason
  std::string left_reason_;  // and its reason
  std::unique_ptr<Session> session_;
  std::string upstream_waiting_;
  std::string wait_cause_;  // upstream_waiting_ without its times
  int64_t wait_since_ms_ = 0;
  bool wait_logged_ = false;  // this cause
  bool wait_told_ = false;    // some cause since the agent last waited for nothing
  std::optional<v1::JoinRunResponse> joined_;
  uint64_t first_incarnation_ = 0;  // of this group; ranks with less belong to an older one
  std::string previous_sha256_;     // of the last record that came down
  uint64_t acknowledged_ = 0;       // told upstream
  StateParts state_parts_;          // of the ranks
  std::optional<RoundLog> log_;
  std::vector<WatchEvent> revised_;  // of the spec, as the session was told, ascending
  struct OpenRound {
    v1::RoundOpened opened;
    std::shared_ptr<Bundle> bundle;
    int64_t opened_ms = 0;
  };
  std::map<uint64_t, OpenRound> open_;  // rounds; one without overlap
};

// UNAVAILABLE with kRankRetryMs: the rank asks again.
absl::Status AskAgain(absl::string_view sentence);

}  // namespace isthmus
