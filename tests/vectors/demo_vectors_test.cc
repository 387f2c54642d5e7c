// The committed recordings, and that the comparison notices what differs.
#include "tests/vectors/demo_vectors.h"

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace isthmus {
namespace {

VectorFile Recorded() {
  static const auto* const file =
      new absl::StatusOr<VectorFile>(VectorFile::Read("tests/vectors/demo/demo.vec"));
  EXPECT_TRUE(file->ok()) << file->status();
  return file->value();
}

void ExpectAllOk(const std::vector<Comparison>& comparisons, size_t count) {
  size_t compared = 0;
  for (const Comparison& comparison : comparisons) {
    std::cout << comparison.Lines();
    if (comparison.skipped()) continue;
    ++compared;
    EXPECT_TRUE(comparison.ok()) << comparison.Lines();
  }
  EXPECT_EQ(compared, count);
}

TEST(DemoVectors, DctBasis) { ExpectAllOk({CheckDctBasis(Recorded())}, 1); }

TEST(DemoVectors, ChunkSplit) { ExpectAllOk({CheckChunkSplit(Recorded())}, 1); }

TEST(DemoVectors, Codec) { ExpectAllOk(CheckCodec(Recorded()), 20); }

TEST(DemoVectors, MultiNodeDecode) { ExpectAllOk(CheckMultiNodeDecode(Recorded()), 3); }

TEST(DemoVectors, FsdpHybrid2x2) {
  ExpectAllOk({CheckFsdpHybrid(Recorded(), "fsdp_hybrid_2x2")}, 1);
}

TEST(DemoVectors, Trajectories) {
  const std::vector<Comparison> comparisons = CheckTrajectories(Recorded());
  std::map<std::string, bool> compared;
  for (const Comparison& c : comparisons) compared[c.name()] = !c.skipped();
  for (const char* name :
       {"demo_sign",         "demo_nosign",        "demo_sign_k1",     "demo_sign_sgdwd",
        "demo_nosign_sgdwd", "demo_nosign_3nodes", "orig_demo",        "orig_demo_wd",
        "demo_sign_default", "full_sign",          "full_nosign",      "none_sign",
        "adamw_demo_nosign", "adamw_full_nosign",  "random_sign",      "striding_sign",
        "demo_sign_1node",   "demo_nosign_1node",  "demo_sign_every2", "demo_nosign_skip2",
        "full_nosign_every2"}) {
    EXPECT_TRUE(compared[name]) << name;
  }
  ExpectAllOk(comparisons, 21);
}

TEST(DemoVectors, EveryFileHasAGroup) {
  size_t groups = 0;
  for (const Comparison& comparison : CheckDemoVectors(Recorded())) {
    ++groups;
    EXPECT_FALSE(absl::StrContains(comparison.Lines(), "no comparison is written"));
  }
  EXPECT_EQ(groups, 1 + 1 + 20 + 3 + 1 + 22u);
}

// Each change to a recording must be noticed by the group it is in.
void ExpectNoticed(const std::string& array, const std::string& group) {
  VectorFile file = Recorded();
  VectorArray* changed = file.FindMutable(array);
  ASSERT_NE(changed, nullptr) << array;
  if (!changed->floats.empty()) changed->floats[changed->floats.size() / 2] += 1e-5f;
  if (!changed->integers.empty()) changed->integers[changed->integers.size() / 2] ^= 1;
  for (const Comparison& comparison : CheckDemoVectors(file)) {
    EXPECT_EQ(comparison.ok() || comparison.skipped(), comparison.name() != group)
        << array << ": " << comparison.Lines();
  }
}

TEST(DemoVectors, NoticesWhatDiffers) {
  ExpectNoticed("dct_basis/fwd_64", "dct_basis");
  ExpectNoticed("dct_basis/inv_5", "dct_basis");
  ExpectNoticed("chunk_split/target_256", "chunk_split");
  ExpectNoticed("chunk_split/big_target64", "chunk_split");
  ExpectNoticed("codec/m37x53_primes/coeff", "codec/m37x53_primes");
  ExpectNoticed("codec/v1000/k4/idx", "codec/v1000");
  ExpectNoticed("codec/v1000/k32/decoded", "codec/v1000");
  ExpectNoticed("multi_node_decode/m64x48_n5/merged_coeff", "multi_node_decode/m64x48_n5");
  ExpectNoticed("trajectories/demo_sign/s5/n0/p/W", "demo_sign");
  ExpectNoticed("trajectories/demo_sign/s2/n1/delta/flat", "demo_sign");
  ExpectNoticed("trajectories/demo_nosign_3nodes/s5/n2/val/prime", "demo_nosign_3nodes");
  ExpectNoticed("trajectories/orig_demo_wd/s2/n0/p/b", "orig_demo_wd");
  ExpectNoticed("trajectory_default/demo_sign_default/s1/update/v", "demo_sign_default");
  ExpectNoticed("fsdp_hybrid_2x2/node1/shard1/s3/shard_param", "fsdp_hybrid_2x2");
}

TEST(DemoVectors, NoticesANotANumber) {
  VectorFile file = Recorded();
  file.FindMutable("codec/v64/coeff")->floats[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(CheckCodec(file)[0].ok());
}

TEST(DemoVectors, NothingComparedIsNotOk) {
  Comparison comparison("empty");
  EXPECT_FALSE(comparison.ok());
  comparison.Near("x", 1e-7, std::vector<float>{}, std::vector<float>{});
  EXPECT_FALSE(comparison.ok());
}

}  // namespace
}  // namespace isthmus
