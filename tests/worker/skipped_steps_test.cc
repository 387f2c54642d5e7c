#include "worker/skipped_steps.h"

#include <gtest/gtest.h>

namespace isthmus {
namespace {

TEST(SkippedSteps, CountsWhatWasMergedWithoutTheNode) {
  SkippedSteps skipped;
  EXPECT_FALSE(skipped.TakeGap().has_value());
  skipped.Applied(1, 0);
  EXPECT_FALSE(skipped.TakeGap().has_value());
  for (uint64_t step : {2u, 3u, 5u}) skipped.Applied(step, 1);
  skipped.Applied(6, 0);
  EXPECT_EQ(skipped.steps(), 3u);
  const auto gap = skipped.TakeGap();
  ASSERT_TRUE(gap.has_value());
  EXPECT_EQ(gap->first, 2u);
  EXPECT_EQ(gap->last, 5u);
  EXPECT_EQ(gap->steps, 3u);
  EXPECT_FALSE(skipped.TakeGap().has_value());
  skipped.Applied(12, 4);  // a round of several
  EXPECT_EQ(skipped.TakeGap()->first, 9u);
  EXPECT_EQ(skipped.steps(), 7u);
}

}  // namespace
}  // namespace isthmus
