// What everything in a simulated run shares.
#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "spec/grid.h"
#include "tests/history/checker.h"
#include "tests/history/history.h"
#include "tests/sim/plan.h"
#include "tests/sim/world.h"

namespace isthmus::sim {

class Scene {
 public:
  Scene(Plan plan, bool verbose);

  World world;
  const Plan plan;
  const std::shared_ptr<const Grid> grid;
  HistoryChecker checker;

  // An event of the run: traced, and judged at once.
  void Record(const Event& event);
  // Whether the faults have ended: the network is good from then on.
  bool healed() const { return world.NowMs() >= plan.faults_end_ms; }
  // Something that must not be, beside what the history shows.
  void Fail(const std::string& sentence);
  // Empty: all is well so far.
  const std::string& failure() const { return failure_; }

 private:
  std::string failure_;
};

}  // namespace isthmus::sim
