// What everything in a simulated run shares.
#pragma once

#include <cstdint>
#include <map>
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
  // What an operator was promised: no update from this round on has a contribution of the node.
  void PromiseOut(const std::string& node, uint64_t from_round) { out_from_[node] = from_round; }
  // Of an empty name: no round is committed from this one on.
  void EndPromise(const std::string& node) { out_from_.erase(node); }
  // Whether the faults have ended: the network is good from then on.
  bool healed() const { return world.NowMs() >= plan.faults_end_ms; }
  // Something that must not be, beside what the history shows.
  void Fail(const std::string& sentence);
  // Empty: all is well so far.
  const std::string& failure() const { return failure_; }

 private:
  void CheckPromises(const Event& durable);

  std::map<std::string, uint64_t> out_from_;
  std::string failure_;
};

}  // namespace isthmus::sim
