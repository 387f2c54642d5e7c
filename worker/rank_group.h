// Which ranks of which trainer group are there, and whether they fit together. Pure: requests and
// the time come in, a status or a sentence goes out. Not thread-safe.
//
//   absent -> joined -> watching -> away (watch ended without LeaveRun) -> watching ...
//                                -> left
//
// A group is what one launch of the trainers of a node is: all of its ranks name one group id.
// Ranks of two groups never mix; a new group takes over only when no rank of the old one lives.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "isthmus/v1/coordinator.pb.h"
#include "spec/grid.h"
#include "spec/piece.h"

namespace isthmus {

struct RankGroupOptions {
  std::string node;
  uint32_t ranks = 1;
  v1::RunSpec spec;  // complete
  // Whether this process can tell what became of contributions that an earlier agent of the node
  // sent (it has their state folder).
  bool knows_earlier_attempts = false;
};

class RankGroup {
 public:
  explicit RankGroup(const RankGroupOptions& options);

  // Takes a rank's JoinRun with a manifest, or says why not. The same request again is answered as
  // before. A rank that comes back may have another last_round, nothing else.
  //   INVALID_ARGUMENT     a field is malformed, a range outside the model, other fingerprint
  //   NOT_FOUND            other run or node
  //   FAILED_PRECONDITION  other number of ranks than the agent's, or the rank differs from the
  //                        others of its group: manifest, start state, last round, settings,
  //                        ranges that overlap or leave something out
  //   ALREADY_EXISTS       a rank of another group is connected
  //   UNAVAILABLE          a rank of another group asked a short while ago
  // `superseded`: whether the request's group took the place of another one.
  absl::Status Admit(const v1::JoinRunRequest& request, int64_t now_ms, bool* superseded);

  // All ranks have joined: the node can join upstream with NodeJoin().
  bool complete() const { return present_ == options_.ranks; }
  // Manifest, fingerprint, state hash of the group; the least last_round of its ranks with the hash
  // of that record; the attempt. Only when complete.
  v1::JoinRunRequest NodeJoin() const;
  // The grid of the manifest; null before the first rank has joined.
  std::shared_ptr<const Grid> grid() const { return grid_; }
  // From here on the run's codec is another one (Grid::TakeCodec). Grids given out before stay as
  // they are. Errors as there; nothing has changed then.
  absl::Status TakeCodec(const v1::CodecSpec& codec);
  uint32_t ranks() const { return options_.ranks; }
  // What the rank joined with. Only for ranks that are present.
  const ChunkRanges& ranges(uint32_t rank) const { return members_[rank]->ranges; }
  bool present(uint32_t rank) const { return members_[rank].has_value(); }

  // A rank's watch opened or ended, the rank left, the rank applied a round. Ranks that are not
  // present are ignored.
  void WatchOpened(uint32_t rank);
  void WatchEnded(uint32_t rank);
  void Left(uint32_t rank);
  void Acknowledge(uint32_t rank, uint64_t round);
  // The rank's newest checkpoint, and the newest that every rank has; 0: some has none.
  void Checkpointed(uint32_t rank, uint64_t round);
  uint64_t CheckpointedByAll() const;
  // The last round that every rank which has not left has applied.
  uint64_t AcknowledgedByAll() const;

  // The group has ended: some rank left, or the run is finished, and no rank lives.
  bool Over(bool run_finished, int64_t now_ms) const;
  const std::string& group_id() const { return group_id_; }
  // "rank 1 of 2": who has not joined yet; empty when complete.
  std::string Missing() const;
  // "rank 1 of 2 disconnected"; empty when there is nobody to wait for.
  std::string Disconnected() const;
  // Forgets the group.
  void Reset();

 private:
  enum class Link { kJoined, kWatching, kAway, kLeft };
  struct Member {
    v1::JoinRunRequest request;  // without the manifest
    ChunkRanges ranges;
    Link link = Link::kJoined;
    int64_t asked_ms = 0;  // when it last asked to join
    uint64_t acknowledged = 0;
    uint64_t checkpointed = 0;
  };

  bool Lives(const Member& member, int64_t now_ms) const;
  absl::Status CheckRequest(const v1::JoinRunRequest& request) const;
  absl::Status CheckOtherGroup(const v1::JoinRunRequest& request, int64_t now_ms) const;
  absl::Status CheckAttempt(const v1::JoinRunRequest& request) const;
  absl::Status CheckUnchanged(const v1::JoinRunRequest& request) const;
  absl::Status CheckAgainstGroup(const v1::JoinRunRequest& request) const;
  absl::Status CheckRanges(const v1::JoinRunRequest& request, const Grid& grid,
                           ChunkRanges* ranges) const;
  const Member* FirstOther(uint32_t rank) const;
  // "rank 1" or "ranks 0, 1": the members for which `wanted` holds; empty when there are none.
  template <typename Wanted>
  std::string Names(Wanted wanted) const;

  RankGroupOptions options_;
  std::string group_id_;
  v1::Manifest manifest_;
  std::shared_ptr<const Grid> grid_;
  std::vector<std::optional<Member>> members_;  // [rank]
  uint32_t present_ = 0;
};

}  // namespace isthmus
