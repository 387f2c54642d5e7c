#include "spec/data_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace isthmus {
namespace {

v1::RunSpec Spec(const std::vector<uint32_t>& parts, uint32_t context = 8) {
  v1::RunSpec spec;
  for (size_t i = 0; i < parts.size(); ++i) {
    v1::NodeSpec* node = spec.add_nodes();
    node->set_name(std::string(1, static_cast<char>('a' + i)));
    node->set_data_parts(parts[i]);
  }
  spec.mutable_model()->set_context(context);
  spec.mutable_data()->set_heldout_permille(50);
  spec.mutable_data()->set_sequences_per_node(4);
  return spec;
}

TEST(DataShareTest, SharesAreDisjointAndFollowTheParts) {
  const v1::RunSpec spec = Spec({1, 3, 1000});
  const uint64_t total = 1000003;
  const TokenRange held_out = HeldOutRange(spec, total);
  EXPECT_EQ(held_out.tokens(), 50000u);
  EXPECT_EQ(held_out.end, total);
  uint64_t next = 0;
  for (int i = 0; i < 3; ++i) {
    const TokenRange share = NodeShare(spec, i, total);
    EXPECT_EQ(share.begin, next);
    EXPECT_NEAR(static_cast<double>(share.tokens()), 950003.0 * spec.nodes(i).data_parts() / 1004,
                1.0);
    next = share.end;
  }
  EXPECT_EQ(next, held_out.begin);
  EXPECT_TRUE(CheckDataShares(spec, total).ok());
}

TEST(DataShareTest, LongDataDoesNotOverflow) {
  const uint64_t total = uint64_t{1} << 62;
  const v1::RunSpec spec = Spec({1000, 1000});
  EXPECT_EQ(NodeShare(spec, 1, total).end, HeldOutRange(spec, total).begin);
  const uint64_t offset = SampleOffset(spec, 1, total, 7, 3);
  EXPECT_GE(offset, NodeShare(spec, 1, total).begin);
  EXPECT_LE(offset + 9, NodeShare(spec, 1, total).end);
}

TEST(DataShareTest, AShortShareIsRefusedByName) {
  // 20 tokens in training; b has 8 of them, a sequence takes 9.
  v1::RunSpec spec = Spec({3, 2});
  spec.mutable_data()->set_heldout_permille(500);
  const absl::Status status = CheckDataShares(spec, 40);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("node 'b' has 8 tokens of the data; 9 are needed"));
  EXPECT_TRUE(CheckDataShares(spec, 46).ok());
  spec.mutable_data()->set_heldout_permille(1);
  EXPECT_THAT(std::string(CheckDataShares(spec, 100).message()),
              ::testing::HasSubstr("the held-out part (1 thousandths) has 0 tokens"));
}

TEST(DataShareTest, OffsetsLieInTheShareAndReachBothEnds) {
  const v1::RunSpec spec = Spec({1, 1});
  const uint64_t total = 60;  // 57 in training: [0, 28), [28, 57); 20 and 21 starts
  std::set<uint64_t> seen;
  for (uint64_t step = 1; step <= 500; ++step) {
    for (uint32_t i = 0; i < 4; ++i) {
      const uint64_t offset = SampleOffset(spec, 1, total, step, i);
      ASSERT_GE(offset, 28u);
      ASSERT_LE(offset + 9, 57u);
      ASSERT_EQ(offset, SampleOffset(spec, 1, total, step, i));
      seen.insert(offset);
    }
  }
  EXPECT_EQ(seen.size(), 21u);
}

TEST(DataShareTest, OffsetsAreEven) {
  const v1::RunSpec spec = Spec({1, 1});
  const uint64_t total = 20000;
  std::vector<int> counts(10, 0);
  const TokenRange share = NodeShare(spec, 0, total);
  for (uint64_t step = 1; step <= 5000; ++step) {
    for (uint32_t i = 0; i < 4; ++i) {
      ++counts[SampleOffset(spec, 0, total, step, i) * 10 / share.end];
    }
  }
  // 2,000 expected in each tenth; six standard deviations are 255.
  for (int count : counts) EXPECT_NEAR(count, 2000, 255);
}

TEST(DataShareTest, SeedStepSequenceAndNodeAllMatter) {
  v1::RunSpec spec = Spec({1, 1});
  const uint64_t total = uint64_t{1} << 40;
  std::set<uint64_t> seen;
  for (uint64_t seed : {0, 1, 2}) {
    spec.set_seed(seed);
    for (uint64_t step : {1, 2, 3}) {
      for (uint32_t i : {0, 1, 2}) {
        const uint64_t first = SampleOffset(spec, 0, total, step, i);
        const uint64_t second = SampleOffset(spec, 1, total, step, i);
        seen.insert(first);
        seen.insert(second);
        EXPECT_NE(second - NodeShare(spec, 1, total).begin, first);
      }
    }
  }
  EXPECT_EQ(seen.size(), 54u);
}

}  // namespace
}  // namespace isthmus
