// A caller's side of a run, kept alive over lost connections and restarts of the server: joins,
// watches, submits, resends, beats. The agent has one to the coordinator, a rank one to its agent.
//
// Order of what a listener sees: OnJoined, then for each round OnOpened(r), OnUpdate(r), ...
// without gaps or repeats, whatever happened to connections in between; OnFinished or OnEnded last.
// OnRevised comes before OnOpened of its from_round, each revision once.
// One call at a time, on threads of the session; `refused` of Submit counts as one of them. A
// listener must not block for long, nor end the session from inside a call.
//
// Retries: every error of transport/errors.h IsRetryable, and lost connections, with Backoff, for
// ever; each wait is told to OnWaiting in a sentence when it changes. Other errors end the session.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "isthmus/v1/coordinator.pb.h"
#include "transport/client.h"

namespace isthmus {

// An update as it came: record and pieces (those that overlap the ranges watched). Shared, since
// the agent hands it to all of its ranks.
struct CommittedUpdate {
  v1::UpdateRecord record;
  std::vector<std::string> pieces;
  bool own_included = false;  // as an agent says to its ranks (WatchUpdatesResponse.own_included)
};

// What a contribution was made from.
struct Work {
  uint64_t tokens = 0;  // of the node; in a rank's part its own
  uint64_t steps = 1;   // local steps of the node, which all of its ranks take
};

// A contribution (or a rank's part of one) to send until its round is settled.
struct Submission {
  uint64_t round = 0;
  uint64_t base_round = 0;
  uint64_t attempt = 0;
  std::vector<v1::ChunkRange> ranges;
  std::vector<std::string> pieces;
  // The chunks of each piece, in their order, so that pieces that the server holds need not be sent
  // again. Empty: not known, and all are sent.
  std::vector<v1::ChunkRange> piece_ranges;
  v1::PayloadCodec codec = v1::PAYLOAD_CODEC_TOPK_F32;  // of the pieces
  Work work;
  uint32_t lr_bits = 0;        // of the round, as RoundOpened gave it; 0: not said
  std::string digest;          // ROLE_NODE
  std::string abstain_reason;  // not empty: nothing to send, and why
};

class SessionListener {
 public:
  virtual ~SessionListener() = default;
  virtual void OnJoined(const v1::JoinRunResponse& joined) = 0;  // also after each re-join
  virtual void OnOpened(const v1::RoundOpened& opened) = 0;
  virtual void OnRevised(const v1::SpecRevised& revised) { (void)revised; }
  virtual void OnUpdate(std::shared_ptr<const CommittedUpdate> update) = 0;
  virtual void OnFinished(uint64_t last_round) = 0;
  virtual void OnEnded(const absl::Status& status) = 0;
  virtual void OnWaiting(const std::string& sentence) = 0;  // empty: waits no more
};

struct SessionOptions {
  ClientOptions client;
  // What to join with; the session keeps last_round, last_update_sha256 and attempt up to date.
  v1::JoinRunRequest join;
  SessionListener* listener = nullptr;  // outlives the session
  uint64_t backoff_seed = 0;
};

struct SessionCounters {
  uint64_t bytes_up = 0;    // payload bytes of pieces sent, resends included
  uint64_t bytes_down = 0;  // payload bytes of pieces received
  uint64_t connects = 0;    // watches that were opened
  uint64_t resends = 0;     // submissions sent again
};

class Session {
 public:
  // Starts the session's threads and returns. INVALID_ARGUMENT for an address that does not parse.
  static absl::StatusOr<std::unique_ptr<Session>> Start(const SessionOptions& options);
  // Stops everything; OnEnded is not called for it.
  virtual ~Session() = default;

  // Sends in the background until the receipt is there, and again whenever a new watch says that
  // the server no longer holds it, until the update of its round arrives. One unsettled submission
  // a round; a second one replaces the first. A refusal that says the round goes on without it
  // (INVALID_ARGUMENT, ALREADY_EXISTS, ABORTED, FAILED_PRECONDITION for a closed round) is told to
  // `refused` and the round's update is awaited all the same.
  virtual void Submit(std::shared_ptr<const Submission> submission,
                      std::function<void(const absl::Status&)> refused) = 0;

  // The round whose update has been applied; travels as acknowledged_round and is what a re-join
  // and a new watch start from. Call it from OnUpdate or later, in order.
  virtual void Acknowledge(uint64_t round, const std::string& update_sha256) = 0;

  // The newest checkpoint that this side would start again from (ROLE_NODE heartbeats).
  virtual void SetCheckpointRound(uint64_t round) = 0;

  // SHA-256 of the state after a round whose SnapshotDuty asked for it (ROLE_NODE heartbeats).
  virtual void SetStateReport(uint64_t round, const std::string& sha256) = 0;

  // SHA-256 of the state after a checked round (RunSpec.check_every); the last kStateReportsMax of
  // them are said in every heartbeat (ROLE_NODE).
  virtual void AddCheck(uint64_t round, const std::string& state_sha256) = 0;

  // Whether a submission is on its way to the server now.
  virtual bool busy() const = 0;

  // What this side waits for, for the server's status (ROLE_NODE heartbeats).
  virtual void SetWaitingFor(const std::string& sentence) = 0;

  // LeaveRun (one try, kCallTimeoutMs), then stops.
  virtual void Leave(const std::string& reason) = 0;

  virtual SessionCounters counters() const = 0;
};

}  // namespace isthmus
