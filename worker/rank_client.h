// A rank's connection to its agent, as a training loop wants it: blocking calls, one thread. No
// gRPC and no torch in this header. A user's own loop can use it as the trainer does:
//
//   auto client = RankClient::Make({.agent = "unix:/run/isthmus/a.sock"});
//   auto spec = client->FetchSpec();            // waits for the agent and the coordinator
//   ... build the model, its manifest and ranges ...
//   client->Join(join);
//   for (;;) {
//     auto opened = client->WaitOpened(apply);  // nullopt: the run is finished
//     client->Submit(...);  or  client->Abstain(...);   // or neither: see UpdateReady
//     auto update = client->WaitUpdate();            // of this round; with overlap d of one d
//     before
//     ... settle, apply ...
//     client->Acknowledge(*update);
//   }
//   client->Leave("finished");
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "isthmus/v1/coordinator.pb.h"
#include "spec/section_ranges.h"
#include "transport/session.h"
#include "worker/snapshot_parts.h"

namespace isthmus {

struct RankClientOptions {
  std::string agent;  // "unix:PATH" or "HOST:PORT"
  // Told in a sentence whenever what it waits for changes; empty when it goes on.
  std::function<void(const std::string&)> on_waiting;
  // Asked about ten times a second while waiting; true ends every wait with CANCELLED.
  std::function<bool()> stop;
  // A wait for the agent or for other ranks that lasts longer ends with DEADLINE_EXCEEDED and says
  // what it waited for. Rounds are waited for without limit (the sentence says why).
  int64_t join_timeout_ms = 300000;
};

class RankClient {
 public:
  static absl::StatusOr<std::unique_ptr<RankClient>> Make(const RankClientOptions& options);
  virtual ~RankClient() = default;

  virtual absl::StatusOr<v1::JoinRunResponse> FetchSpec() = 0;
  // `request`: role, rank info, manifest, fingerprint, state_sha256 filled in. Again after a call
  // has said OUT_OF_RANGE (transport/errors.h AsksForSnapshot), with the state that was fetched.
  virtual absl::StatusOr<v1::JoinRunResponse> Join(const v1::JoinRunRequest& request) = 0;

  // The next round to contribute to; nullopt: finished. Rounds that have closed already are passed
  // over, so that a rank which was away computes for the open one only. It must catch up to be
  // admitted to one, so give `apply`: updates that arrive before a round opens are handed to it in
  // order and acknowledged, up to the commit that the round builds on. Without it they wait for
  // WaitUpdate. Where none is open, but the update of a round up to `own_through` is there, it
  // returns round 0 and leaves the update to WaitUpdate (overlap).
  struct Update;
  using ApplyUpdate = std::function<absl::Status(const Update&)>;
  virtual absl::StatusOr<std::optional<v1::RoundOpened>> WaitOpened(
      const ApplyUpdate& apply = nullptr, uint64_t own_through = 0) = 0;

  // The newest revision of the spec that holds in this round and was not taken yet. Join says what
  // holds in the round after the one joined with.
  virtual std::optional<v1::SpecRevised> TakeRevised(uint64_t round) {
    (void)round;
    return std::nullopt;  // of a client whose run never changes
  }

  // For a rank that computes its contribution to every round, also to those that closed without the
  // present trainers (deterministic mode): what is known of `round`, which has not been asked for
  // before. nullopt: finished. `closed`: the round's update waits for WaitUpdate, and nothing is to
  // be sent for it.
  struct Next {
    v1::RoundOpened opened;
    bool closed = false;
  };
  virtual absl::StatusOr<std::optional<Next>> WaitNext(uint64_t round) = 0;

  virtual void Submit(const v1::RoundOpened& opened, std::vector<std::string> pieces,
                      const Work& work) = 0;
  virtual void Abstain(const v1::RoundOpened& opened, const std::string& reason) = 0;
  // The next committed update, in order, of this or (after a time away) of earlier rounds.
  // `included` says whether this node's contribution to it was merged.
  struct Update {
    std::shared_ptr<const CommittedUpdate> committed;
    bool included = false;
  };
  virtual absl::StatusOr<Update> WaitUpdate() = 0;
  // Whether WaitUpdate would return at once: a rank that still computes for the round that is open
  // learns that it has closed, or that nothing will come any more.
  virtual bool UpdateReady() = 0;
  virtual void Acknowledge(const Update& update) = 0;
  // This rank's checkpoint of `round` is on disk, and it would start again from there. The agent is
  // told, at once or as soon as it is there.
  virtual void Checkpointed(uint64_t round) = 0;
  // What this node's state after `round` hashes to (RoundOpened.snapshot asked for it). Told as a
  // checkpoint is.
  virtual void ReportState(uint64_t round, const std::string& sha256) = 0;
  // What this rank knows of its node's state after a checked round (worker/state_copy.h). May be
  // called from another thread, but not while Join is.
  virtual void ReportParts(std::vector<v1::StatePart> parts) { (void)parts; }
  // Sends it in the background, in place of an earlier one; given up when the client goes.
  virtual void UploadSnapshot(std::shared_ptr<const SnapshotParts> parts) = 0;
  // Until that is done, is not wanted, or makes no progress.
  virtual void FinishUpload() = 0;
  // A snapshot's facts, and the elements named: each of them in one piece that is handed out, in
  // order. Of `round`, or the newest there is. Works before Join. Waits out lost connections, and
  // that there is none yet. NOT_FOUND: that round has none (any more). Else errors as of Join.
  virtual absl::StatusOr<v1::SnapshotFacts> FetchSnapshot(
      std::optional<uint64_t> round, const std::vector<SectionRange>& ranges,
      const std::function<absl::Status(const v1::SnapshotPiece&)>& on_piece) = 0;
  virtual void Leave(const std::string& reason) = 0;
  virtual SessionCounters counters() const = 0;
};

}  // namespace isthmus
