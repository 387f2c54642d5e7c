// Counts the steps that were merged without this node's samples: what it missed while it was away,
// or what came too late. The sample order is a function of the global step, so these samples are
// not made up for. Pure.
#pragma once

#include <cstdint>
#include <optional>

namespace isthmus {

class SkippedSteps {
 public:
  // An update was applied, after which the global step is `step`; steps ascend. `skipped`: how many
  // of its steps this node took no part in.
  void Applied(uint64_t step, uint64_t skipped);

  uint64_t steps() const { return steps_; }  // since the start

  struct Gap {
    uint64_t first = 0, last = 0;  // steps; in between there may be some that were not skipped
    uint64_t steps = 0;            // that were
  };
  // What came since the last call; nullopt: nothing.
  std::optional<Gap> TakeGap();

 private:
  uint64_t steps_ = 0;
  Gap gap_;
};

}  // namespace isthmus
