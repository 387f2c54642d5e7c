// Another spec for a run that is under way: what an operator asks for becomes a complete spec, what
// it changes is listed, and what may not change is refused.
//
//   ASSIGN_OR_RETURN(spec, UpdatedSpec(last, "first", "", {"optimizer.lr=0.0005"}));
//   changes = SpecChanges(last, spec);      // optimizer.lr: 0.001 -> 0.0005
//   RETURN_IF_ERROR(CheckMayChange(changes));
//
// Pure: no run's state is known here.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "isthmus/v1/admin.pb.h"
#include "isthmus/v1/run_spec.pb.h"

namespace isthmus {

// The complete spec that `text` says (empty: `last`), with the fields of `set` in place of its own.
// `name`: of the run that it is for; what the spec itself says of it does not matter. Limits that
// `last` had by default are made anew from what they follow from.
// INVALID_ARGUMENT: it does not parse or does not hold, or a field that is not one of the spec's,
// or no single value.
absl::StatusOr<v1::RunSpec> UpdatedSpec(const v1::RunSpec& last, const std::string& name,
                                        const std::string& text,
                                        const std::vector<std::string>& set);

// The fields in which complete specs differ, in the order of the messages.
std::vector<v1::SpecChange> SpecChanges(const v1::RunSpec& before, const v1::RunSpec& after);

// FAILED_PRECONDITION, naming each field that a run keeps for as long as it lives, and both values.
absl::Status CheckMayChange(const std::vector<v1::SpecChange>& changes);

// The same for what a run could change, but its nodes of this version take no notice of.
absl::Status CheckNodesCanChange(const std::vector<v1::SpecChange>& changes);

// FAILED_PRECONDITION: a change of what a hosted model consists of.
absl::Status CheckKeepsState(const v1::RunSpec& before, const v1::RunSpec& after);

// FAILED_PRECONDITION: a change of the model, whose state a fork starts from.
absl::Status CheckKeepsModel(const std::vector<v1::SpecChange>& changes);

// FAILED_PRECONDITION: with overlap, a change of what contributions and updates look like or do:
// rounds before and after it are under way at once.
absl::Status CheckUnderWay(const v1::RunSpec& before, const std::vector<v1::SpecChange>& changes);

// "optimizer.lr 0.001 -> 0.0005, steps 100 -> 200".
std::string ChangesText(const std::vector<v1::SpecChange>& changes);

}  // namespace isthmus
