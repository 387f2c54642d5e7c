#include "tests/sim/scene.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace isthmus::sim {
namespace {

std::shared_ptr<const Grid> MakeGrid(const Plan& plan) {
  absl::StatusOr<Grid> grid = Grid::Make(plan.manifest, plan.spec.codec());
  ISTHMUS_CHECK(grid.ok());
  return std::make_shared<const Grid>(*std::move(grid));
}

}  // namespace

Scene::Scene(Plan made, bool verbose)
    : world(made.seed, verbose),
      plan(std::move(made)),
      grid(MakeGrid(plan)),
      checker(grid, plan.spec.overlap()) {}

void Scene::Record(const Event& event) {
  world.Trace("history", isthmus::Describe(event));
  checker.Take(event);
  if (event.kind == EventKind::kDurable) CheckPromises(event);
  if (!failure_.empty() || checker.violations().empty()) return;
  const Violation& first = checker.violations().front();
  Fail(absl::StrCat(first.invariant, ": ", first.sentence));
}

void Scene::CheckPromises(const Event& durable) {
  const auto paused = out_from_.find("");
  if (paused != out_from_.end() && durable.round >= paused->second) {
    Fail(absl::StrCat("round ", durable.round, " is committed in a pause"));
  }
  for (const v1::IncludedContribution& included : durable.record->included()) {
    const auto promised = out_from_.find(included.node());
    if (promised == out_from_.end() || durable.round < promised->second) continue;
    Fail(absl::StrCat("round ", durable.round, " has a contribution of ", included.node(),
                      ", which an operator took out from round ", promised->second, " on"));
  }
}

void Scene::Fail(const std::string& sentence) {
  world.Trace("FAILURE", sentence);
  if (failure_.empty()) failure_ = sentence;
}

}  // namespace isthmus::sim
