// How the ranks of a node agree on the checkpoint that they resume from. All calls are collective:
// every rank makes them, in the same order, and all get the same answer or each an error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/process_group.h"
#include "worker/train_checkpoints.h"
#include "worker/train_state.h"

namespace isthmus {

// `mine` has failed on some rank: its own error there, and on the others that another rank has one.
absl::Status AgreeOn(ProcessGroup* group, const absl::Status& mine);

// The newest set that every rank has whole and that one trainer group made; where another number of
// ranks made it, each rank's share of it, and `pending` has the pieces of all ranks. nullopt: there
// is none. A damaged file is set aside and the next older set is tried, both with a line in the
// log. On return TrainCheckpoints::Resume has been called. FAILED_PRECONDITION: the newest set is
// of another run, node, model or start state than `wanted`, whose other facts are not looked at.
absl::StatusOr<std::optional<TrainState>> ResumeFromNewest(ProcessGroup* group,
                                                           TrainCheckpoints* checkpoints,
                                                           const TrainFacts& wanted,
                                                           const std::vector<StatePart>& parts);

}  // namespace isthmus
