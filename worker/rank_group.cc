#include "worker/rank_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "spec/manifest.h"
#include "transport/errors.h"
#include "worker/rank_settings.h"

namespace isthmus {
namespace {

absl::Status CheckHash(absl::string_view field, const std::string& value) {
  if (value.size() == kSha256Bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", value.size(), " bytes; it is a SHA-256 of ", kSha256Bytes));
}

}  // namespace

RankGroup::RankGroup(const RankGroupOptions& options)
    : options_(options), members_(options.ranks) {}

void RankGroup::Reset() {
  group_id_.clear();
  manifest_.Clear();
  grid_.reset();
  members_.assign(options_.ranks, std::nullopt);
  present_ = 0;
}

template <typename Wanted>
std::string RankGroup::Names(Wanted wanted) const {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    if (wanted(members_[rank])) ranks.push_back(rank);
  }
  if (ranks.empty()) return "";
  // A list of all of 1,024 ranks helps nobody.
  constexpr size_t kShown = 8;
  const size_t shown = std::min(ranks.size(), kShown);
  std::string text = absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                                  absl::StrJoin(ranks.begin(), ranks.begin() + shown, ", "));
  if (shown < ranks.size()) absl::StrAppend(&text, " and ", ranks.size() - shown, " more");
  return text;
}

bool RankGroup::Lives(const Member& member, int64_t now_ms) const {
  // A rank that has joined but does not watch yet is polling, or about to watch.
  return member.link == Link::kWatching ||
         (member.link == Link::kJoined && now_ms - member.asked_ms < kRankJoinHoldMs);
}

const RankGroup::Member* RankGroup::FirstOther(uint32_t rank) const {
  for (uint32_t other = 0; other < members_.size(); ++other) {
    if (other != rank && members_[other].has_value()) return &*members_[other];
  }
  return nullptr;
}

absl::Status RankGroup::CheckRequest(const v1::JoinRunRequest& request) const {
  const v1::RankInfo& info = request.rank();
  if (!request.run().empty() && request.run() != options_.spec.run()) {
    return WithReason(absl::NotFoundError(absl::StrCat(
                          "run '", request.run(), "' is not known; node ", options_.node,
                          " takes part in '", options_.spec.run(), "'")),
                      "UNKNOWN_RUN");
  }
  if (!request.node().empty() && request.node() != options_.node) {
    return WithReason(absl::NotFoundError(absl::StrCat(
                          "this is the agent of node ", options_.node, "; rank ", info.rank(),
                          " belongs to node ", request.node(), ", give it that node's agent")),
                      "UNKNOWN_NODE");
  }
  if (info.ranks() != options_.ranks) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "rank ", info.rank(), " was started as one of ", info.ranks(),
                          " ranks, the agent of node ", options_.node, " with --ranks ",
                          options_.ranks, "; give both the same number")),
                      "WRONG_RANK_COUNT");
  }
  if (info.rank() >= info.ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", info.rank(), " is not below the number of ranks, ", info.ranks()));
  }
  if (info.group_id().size() != kGroupIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("group_id has ", info.group_id().size(), " bytes; it has ", kGroupIdBytes));
  }
  ISTHMUS_RETURN_IF_ERROR(CheckHash("state_sha256", request.state_sha256()));
  if (!request.heldout_sha256().empty()) {
    ISTHMUS_RETURN_IF_ERROR(CheckHash("heldout_sha256", request.heldout_sha256()));
  }
  if (request.last_round() > 0) {
    ISTHMUS_RETURN_IF_ERROR(CheckHash("last_update_sha256", request.last_update_sha256()));
  }
  ISTHMUS_RETURN_IF_ERROR(ValidateManifest(request.manifest()));
  if (Fingerprint(request.manifest()) != request.fingerprint()) {
    return absl::InvalidArgumentError(absl::StrCat("fingerprint ", HexPrefix(request.fingerprint()),
                                                   " is not that of the manifest sent with it, ",
                                                   HexPrefix(Fingerprint(request.manifest()))));
  }
  return CheckSettings(info);
}

absl::Status RankGroup::CheckOtherGroup(const v1::JoinRunRequest& request, int64_t now_ms) const {
  if (group_id_.empty() || group_id_ == request.rank().group_id()) return absl::OkStatus();
  const std::string connected = Names([](const std::optional<Member>& member) {
    return member.has_value() && member->link == Link::kWatching;
  });
  if (!connected.empty()) {
    return WithReason(absl::AlreadyExistsError(absl::StrCat(
                          "node ", options_.node, " already has a live trainer group (", connected,
                          " connected); stop it first")),
                      "GROUP_EXISTS");
  }
  const std::string asking = Names([&](const std::optional<Member>& member) {
    return member.has_value() && Lives(*member, now_ms);
  });
  if (asking.empty()) return absl::OkStatus();
  return WithRetryAfterMs(WithReason(absl::UnavailableError(absl::StrCat(
                                         "node ", options_.node, " is being joined by ", asking,
                                         " of another trainer group; stop that one, or wait ",
                                         kRankJoinHoldMs, " ms after it has stopped")),
                                     "WAITING"),
                          kRankRetryMs);
}

absl::Status RankGroup::CheckAttempt(const v1::JoinRunRequest& request) const {
  if (request.attempt() == 0 || options_.knows_earlier_attempts) return absl::OkStatus();
  if (group_id_ == request.rank().group_id()) return absl::OkStatus();
  return WithReason(absl::FailedPreconditionError(absl::StrCat(
                        "the agent of node ", options_.node,
                        " was started again without its --state_dir and "
                        "cannot tell which contributions of attempt ",
                        request.attempt(), " were merged; start the trainers of this node again")),
                    "ATTEMPT_UNKNOWN");
}

absl::Status RankGroup::CheckAgainstGroup(const v1::JoinRunRequest& request) const {
  const Member* other = FirstOther(request.rank().rank());
  if (other == nullptr) return absl::OkStatus();
  const v1::JoinRunRequest& theirs = other->request;
  const std::string me = absl::StrCat("rank ", request.rank().rank());
  const std::string them = absl::StrCat("rank ", theirs.rank().rank(), " of node ", options_.node);
  const auto differ = [](const std::string& text) {
    return WithReason(absl::FailedPreconditionError(text), "RANKS_DIFFER");
  };
  if (request.fingerprint() != theirs.fingerprint()) {
    return differ(absl::StrCat(me, " trains another model than ", them, ": ",
                               ManifestDifference(manifest_, request.manifest())));
  }
  if (request.state_sha256() != theirs.state_sha256()) {
    return differ(absl::StrCat(me, " starts from state ", HexPrefix(request.state_sha256()), ", ",
                               them, " from ", HexPrefix(theirs.state_sha256())));
  }
  // When an agent comes back, one rank may have applied an update that the others still wait for.
  const bool resumes = request.attempt() != 0 || theirs.attempt() != 0;
  if (!resumes && request.last_round() != theirs.last_round()) {
    return differ(absl::StrCat(me, " holds round ", request.last_round(), ", ", them,
                               " holds round ", theirs.last_round(),
                               "; start all ranks of a node from one checkpoint"));
  }
  const std::string setting = SettingsDifference(request.rank(), theirs.rank());
  if (!setting.empty()) {
    return differ(absl::StrCat(me, " and ", them, " differ in ", setting,
                               "; start all ranks of a node with the same settings"));
  }
  if (request.heldout_sha256() == theirs.heldout_sha256()) return absl::OkStatus();
  return differ(absl::StrCat(me, " holds out tokens ", HexPrefix(request.heldout_sha256()), ", ",
                             them, " holds out ", HexPrefix(theirs.heldout_sha256()),
                             "; start all ranks of a node with the same data"));
}

absl::Status RankGroup::CheckRanges(const v1::JoinRunRequest& request, const Grid& grid,
                                    ChunkRanges* ranges) const {
  const uint32_t rank = request.rank().rank();
  uint64_t previous_end = 0;
  for (const v1::ChunkRange& range : request.rank().ranges()) {
    if (range.begin() < previous_end || range.begin() >= range.end() ||
        range.end() > grid.chunks()) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " names chunks ", range.begin(), " to before ", range.end(),
                       "; ranges ascend, are disjoint and not empty, and end at ", grid.chunks()));
    }
    previous_end = range.end();
    ISTHMUS_CHECK(ranges->Add(range.begin(), range.end()));
  }
  ChunkRanges all = *ranges;
  for (uint32_t other = 0; other < members_.size(); ++other) {
    if (other == rank || !members_[other].has_value()) continue;
    for (const auto& [begin, end] : members_[other]->ranges.list()) {
      if (all.Add(begin, end)) continue;
      return WithReason(absl::FailedPreconditionError(
                            absl::StrCat("ranks ", rank, " and ", other, " of node ", options_.node,
                                         " both name some of chunks ", begin, " to before ", end,
                                         "; every chunk belongs to one rank")),
                        "RANKS_DIFFER");
    }
  }
  const uint32_t there = present_ + (members_[rank].has_value() ? 0 : 1);
  if (there < options_.ranks || all.chunks() == grid.chunks()) return absl::OkStatus();
  const bool begins = !all.list().empty() && all.list().front().first == 0;
  const uint64_t lacking = begins ? all.list().front().second : 0;
  return WithReason(absl::FailedPreconditionError(absl::StrCat(
                        "the ranks of node ", options_.node, " hold ", all.chunks(), " of ",
                        grid.chunks(), " chunks; nobody holds ", grid.Describe(lacking))),
                    "RANKS_DIFFER");
}

absl::Status RankGroup::CheckUnchanged(const v1::JoinRunRequest& request) const {
  const std::optional<Member>& place = members_[request.rank().rank()];
  if (!place.has_value()) return absl::OkStatus();
  const auto& before = place->request.rank().ranges();
  const auto& now = request.rank().ranges();
  const bool same_ranges = std::equal(before.begin(), before.end(), now.begin(), now.end(),
                                      [](const v1::ChunkRange& a, const v1::ChunkRange& b) {
                                        return a.begin() == b.begin() && a.end() == b.end();
                                      });
  if (same_ranges && place->request.fingerprint() == request.fingerprint()) return absl::OkStatus();
  return WithReason(absl::FailedPreconditionError(absl::StrCat(
                        "rank ", request.rank().rank(), " of node ", options_.node,
                        " has joined with other ranges or another model before; start all of the "
                        "node's trainers again")),
                    "RANKS_DIFFER");
}

absl::Status RankGroup::TakeCodec(const v1::CodecSpec& codec) {
  if (grid_ != nullptr) {
    Grid grid = *grid_;
    ISTHMUS_RETURN_IF_ERROR(grid.TakeCodec(codec));
    grid_ = std::make_shared<const Grid>(std::move(grid));
  }
  *options_.spec.mutable_codec() = codec;
  return absl::OkStatus();
}

absl::Status RankGroup::Admit(const v1::JoinRunRequest& request, int64_t now_ms, bool* superseded) {
  *superseded = false;
  ISTHMUS_RETURN_IF_ERROR(CheckRequest(request));
  ISTHMUS_RETURN_IF_ERROR(CheckOtherGroup(request, now_ms));
  if (!group_id_.empty() && group_id_ != request.rank().group_id()) {
    // The old group goes only when the new rank is good.
    RankGroup fresh(options_);
    bool unused = false;
    ISTHMUS_RETURN_IF_ERROR(fresh.Admit(request, now_ms, &unused));
    *this = std::move(fresh);
    *superseded = true;
    return absl::OkStatus();
  }
  ISTHMUS_RETURN_IF_ERROR(CheckAttempt(request));
  ISTHMUS_RETURN_IF_ERROR(CheckUnchanged(request));
  ISTHMUS_RETURN_IF_ERROR(CheckAgainstGroup(request));
  std::shared_ptr<const Grid> grid = grid_;
  if (grid == nullptr) {
    ISTHMUS_ASSIGN_OR_RETURN(Grid made, Grid::Make(request.manifest(), options_.spec.codec()));
    grid = std::make_shared<const Grid>(std::move(made));
  }
  Member member;
  ISTHMUS_RETURN_IF_ERROR(CheckRanges(request, *grid, &member.ranges));
  std::optional<Member>& place = members_[request.rank().rank()];
  member.request = request;
  member.request.clear_manifest();  // one copy, in manifest_, is enough
  member.asked_ms = now_ms;
  member.acknowledged = request.last_round();
  // A rank whose watch is still open may ask again; the watch says more than the request.
  if (place.has_value() && place->link == Link::kWatching) member.link = Link::kWatching;
  if (place.has_value()) member.checkpointed = place->checkpointed;
  if (!place.has_value()) ++present_;
  if (group_id_.empty()) manifest_ = request.manifest();
  group_id_ = request.rank().group_id();
  grid_ = std::move(grid);
  place = std::move(member);
  return absl::OkStatus();
}

v1::JoinRunRequest RankGroup::NodeJoin() const {
  ISTHMUS_CHECK(complete());
  v1::JoinRunRequest join;
  join.set_run(options_.spec.run());
  join.set_node(options_.node);
  join.set_role(v1::ROLE_NODE);
  const v1::JoinRunRequest* behind = &members_[0]->request;
  for (const std::optional<Member>& member : members_) {
    const v1::JoinRunRequest& request = member->request;
    if (request.last_round() < behind->last_round()) behind = &request;
    join.set_attempt(std::max(join.attempt(), request.attempt()));
  }
  *join.mutable_manifest() = manifest_;
  join.set_fingerprint(behind->fingerprint());
  join.set_state_sha256(behind->state_sha256());
  join.set_heldout_sha256(behind->heldout_sha256());
  join.set_last_round(behind->last_round());
  join.set_last_update_sha256(behind->last_update_sha256());
  return join;
}

void RankGroup::WatchOpened(uint32_t rank) {
  if (present(rank)) members_[rank]->link = Link::kWatching;
}

void RankGroup::WatchEnded(uint32_t rank) {
  if (present(rank) && members_[rank]->link != Link::kLeft) members_[rank]->link = Link::kAway;
}

void RankGroup::Left(uint32_t rank) {
  if (present(rank)) members_[rank]->link = Link::kLeft;
}

void RankGroup::Acknowledge(uint32_t rank, uint64_t round) {
  if (!present(rank)) return;
  members_[rank]->acknowledged = std::max(members_[rank]->acknowledged, round);
}

void RankGroup::Checkpointed(uint32_t rank, uint64_t round) {
  if (!present(rank)) return;
  members_[rank]->checkpointed = std::max(members_[rank]->checkpointed, round);
}

uint64_t RankGroup::CheckpointedByAll() const {
  uint64_t least = complete() ? members_[0]->checkpointed : 0;
  for (const std::optional<Member>& member : members_) {
    least = std::min(least, member.has_value() ? member->checkpointed : 0);
  }
  return least;
}

uint64_t RankGroup::AcknowledgedByAll() const {
  std::optional<uint64_t> least;
  for (const std::optional<Member>& member : members_) {
    if (!member.has_value()) return 0;
    if (member->link == Link::kLeft) continue;
    least = std::min(least.value_or(member->acknowledged), member->acknowledged);
  }
  return least.value_or(0);
}

bool RankGroup::Over(bool run_finished, int64_t now_ms) const {
  bool left = false;
  for (const std::optional<Member>& member : members_) {
    if (!member.has_value()) continue;
    if (Lives(*member, now_ms)) return false;
    left = left || member->link == Link::kLeft;
  }
  return present_ > 0 && (left || run_finished);
}

std::string RankGroup::Missing() const {
  if (complete()) return "";
  return absl::StrCat(
      Names([](const std::optional<Member>& member) { return !member.has_value(); }), " of ",
      options_.ranks);
}

std::string RankGroup::Disconnected() const {
  const std::string names = Names([](const std::optional<Member>& member) {
    return member.has_value() && member->link == Link::kAway;
  });
  return names.empty() ? "" : absl::StrCat(names, " of ", options_.ranks, " disconnected");
}

}  // namespace isthmus
