#include "worker/skipped_steps.h"

#include <gtest/gtest.h>

namespace isthmus {
namespace {

TEST(SkippedSteps, CountsWhatWasMergedWithoutTheNode) {
  SkippedSteps skipped;
  EXPECT_FALSE(skipped.TakeGap().has_value());
  skipped.Applied(1, true);
  EXPECT_FALSE(skipped.TakeGap().has_value());
  for (uint64_t step : {2u, 3u, 5u}) skipped.Applied(step, false);
  skipped.Applied(6, true);
  EXPECT_EQ(skipped.steps(), 3u);
  const auto gap = skipped.TakeGap();
  ASSERT_TRUE(gap.has_value());
  EXPECT_EQ(gap->first, 2u);
  EXPECT_EQ(gap->last, 5u);
  EXPECT_EQ(gap->steps, 3u);
  EXPECT_FALSE(skipped.TakeGap().has_value());
  skipped.Applied(9, false);
  EXPECT_EQ(skipped.TakeGap()->first, 9u);
  EXPECT_EQ(skipped.steps(), 4u);
}

}  // namespace
}  // namespace isthmus
