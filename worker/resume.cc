#include "worker/resume.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

absl::Status CheckFacts(const TrainFacts& wanted, const TrainFacts& found,
                        const std::string& path) {
  const auto differs = [&](const std::string& what) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint '", path, "' is ", what, "; name another --checkpoint_dir to begin anew"));
  };
  if (found.run != wanted.run || found.node != wanted.node) {
    return differs(absl::StrCat("of node '", found.node, "' in run '", found.run, "', this is '",
                                wanted.node, "' in '", wanted.run, "'"));
  }
  if (found.rank != wanted.rank || found.ranks != wanted.ranks) {
    return differs(absl::StrCat("of rank ", found.rank, " of ", found.ranks, ", this is rank ",
                                wanted.rank, " of ", wanted.ranks));
  }
  if (found.fingerprint != wanted.fingerprint) {
    return differs(absl::StrCat("of a model with fingerprint ", HexPrefix(found.fingerprint),
                                ", the run's has ", HexPrefix(wanted.fingerprint)));
  }
  if (found.start_state_sha256 == wanted.start_state_sha256) return absl::OkStatus();
  return differs(absl::StrCat("of a run that began with state ",
                              HexPrefix(found.start_state_sha256), ", these trainers have ",
                              HexPrefix(wanted.start_state_sha256),
                              " (another --start_file or seed)"));
}

// This rank's file, or its share of those of another number of ranks; or why they are of no use.
absl::StatusOr<TrainState> ReadOwn(TrainCheckpoints* checkpoints, uint64_t round, TrainFacts wanted,
                                   const std::vector<StatePart>& parts) {
  const std::vector<std::string> paths = checkpoints->PathsOf(round);
  if (paths.empty()) return absl::NotFoundError("this rank has no file of it");
  // Before its parts, whose refusal would say less.
  ISTHMUS_ASSIGN_OR_RETURN(const TrainFacts facts, ReadTrainFacts(paths[0]));
  if (facts.ranks == wanted.ranks) {
    ISTHMUS_RETURN_IF_ERROR(CheckFacts(wanted, facts, paths[0]));
    return ReadTrainState(paths[0], parts);
  }
  const uint32_t rank = std::exchange(wanted.rank, 0);
  wanted.ranks = facts.ranks;
  ISTHMUS_RETURN_IF_ERROR(CheckFacts(wanted, facts, paths[0]));
  ISTHMUS_ASSIGN_OR_RETURN(TrainState state, ReadTrainStates(paths, parts));
  if (rank > 0) state.method.work.tokens = 0;  // the first rank speaks for all that were read
  return state;
}

}  // namespace

absl::Status AgreeOn(ProcessGroup* group, const absl::Status& mine) {
  std::array<double, 1> failed = {mine.ok() ? 0.0 : 1.0};
  const absl::Status told = group->AllReduceMax(absl::MakeSpan(failed));
  if (!mine.ok()) return mine;
  ISTHMUS_RETURN_IF_ERROR(told);
  if (failed[0] == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "another rank of this node cannot go on; its own message says why");
}

absl::StatusOr<std::optional<TrainState>> ResumeFromNewest(ProcessGroup* group,
                                                           TrainCheckpoints* checkpoints,
                                                           const TrainFacts& wanted,
                                                           const std::vector<StatePart>& parts) {
  std::vector<uint64_t> rounds = checkpoints->Rounds();  // descending
  for (;;) {
    // The newest that every rank could have: the least of their newest ones.
    const uint64_t newest = rounds.empty() ? 0 : rounds.front();
    std::array<double, 1> least = {-static_cast<double>(newest)};
    ISTHMUS_RETURN_IF_ERROR(group->AllReduceMax(absl::MakeSpan(least)));
    const auto round = static_cast<uint64_t>(-least[0]);
    if (round == 0) break;
    while (!rounds.empty() && rounds.front() > round) rounds.erase(rounds.begin());
    const bool has = !rounds.empty() && rounds.front() == round;

    absl::StatusOr<TrainState> state = absl::NotFoundError("this rank has no file of it");
    if (has) state = ReadOwn(checkpoints, round, wanted, parts);
    const bool refused = absl::IsFailedPrecondition(state.status());
    ISTHMUS_RETURN_IF_ERROR(AgreeOn(group, refused ? state.status() : absl::OkStatus()));
    std::string group_id = state.ok() ? state->facts.group_id : "";
    group_id.resize(kGroupIdBytes);
    ISTHMUS_RETURN_IF_ERROR(group->Broadcast(&group_id));
    const bool good = state.ok() && state->facts.group_id == group_id;
    std::array<double, 1> bad = {good ? 0.0 : 1.0};
    ISTHMUS_RETURN_IF_ERROR(group->AllReduceMax(absl::MakeSpan(bad)));
    if (bad[0] == 0) {
      checkpoints->Resume(round);
      return std::optional<TrainState>(*std::move(state));
    }
    if (has && !state.ok()) {
      LogWarning("a checkpoint cannot be used, an older one is looked for",
                 {{"round", absl::StrCat(round)}, {"why", std::string(state.status().message())}});
      checkpoints->SetAside(round);
    }
    if (has) rounds.erase(rounds.begin());
  }
  checkpoints->Resume(0);
  return std::optional<TrainState>();
}

}  // namespace isthmus
