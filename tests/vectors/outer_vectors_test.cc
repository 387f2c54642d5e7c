// The committed recordings of outer updates, on every target, and that the comparison notices what
// differs.
#include "tests/vectors/outer_vectors.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "kernels/targets.h"

namespace isthmus {
namespace {

VectorFile Recorded() {
  static const auto* const file =
      new absl::StatusOr<VectorFile>(VectorFile::Read("tests/vectors/outer/outer.vec"));
  EXPECT_TRUE(file->ok()) << file->status();
  return file->value();
}

TEST(OuterVectors, AllThatIsBuiltOnEveryTarget) {
  const VectorFile file = Recorded();
  ASSERT_TRUE(HasOuterVectors(file));
  for (const std::string& target : KernelTargets()) {
    ForceKernelTarget(target);
    int compared = 0, skipped = 0;
    for (const Comparison& comparison : CheckOuterVectors(file)) {
      std::cout << target << ": " << comparison.Lines();
      EXPECT_TRUE(comparison.ok() || comparison.skipped()) << comparison.Lines();
      ++(comparison.skipped() ? skipped : compared);
    }
    // Six of sign momentum, five of SGD, SlowMo, AdamW, four of Lion, two of error feedback, six of
    // quantization, Hadamard, two of aggregation; left out are three of delayed Nesterov, EF21,
    // e3m0, iso_c and the schedule.
    EXPECT_EQ(compared, 28);
    EXPECT_EQ(skipped, 7);
  }
  ForceKernelTarget("");
}

// Each change to a recording must be noticed by the case it is in.
void ExpectNoticed(const std::string& array, const std::string& name) {
  VectorFile file = Recorded();
  VectorArray* changed = file.FindMutable(name + "/" + array);
  ASSERT_NE(changed, nullptr) << name << " " << array;
  if (!changed->floats.empty()) changed->floats.back() += 1e-4f;
  if (!changed->integers.empty()) changed->integers.back() ^= 1;
  for (const Comparison& comparison : CheckOuterVectors(file)) {
    EXPECT_EQ(comparison.ok() || comparison.skipped(), comparison.name() != name)
        << array << ": " << comparison.Lines();
  }
}

TEST(OuterVectors, NoticesWhatDiffers) {
  ExpectNoticed("f32/c", "sign_momentum/deterministic");
  ExpectNoticed("f32/x", "sign_momentum/no_lr_division");
  ExpectNoticed("f32/m", "sign_momentum/randomized_two_point_linf");
  ExpectNoticed("f32/x", "nesterov/nesterov_token_weighted");
  ExpectNoticed("f32/buf", "nesterov/heavy_ball");
  ExpectNoticed("f32/u", "slowmo/slowmo");
  ExpectNoticed("f32/v", "adamw_outer/adamw_outer");
  ExpectNoticed("f32/payload", "distributed_lion/majority_w5");
  ExpectNoticed("f32/m_last", "distributed_lion/average_w4");
  ExpectNoticed("f32/residual", "error_feedback/decayed_chunk_topk");
  ExpectNoticed("f32/sent_index", "error_feedback/classic_topk");
  ExpectNoticed("f32/codes", "quantization/int8_stochastic");
  ExpectNoticed("f32/packed", "quantization/int4_nearest");
  ExpectNoticed("f32/int4_rotated", "hadamard/hadamard32_int4");
  ExpectNoticed("f32/trimmed", "aggregation/robust_w6");
}

TEST(OuterVectors, AMissingArrayIsAFailure) {
  VectorFile file = Recorded();
  file.FindMutable("slowmo/slowmo/f32/u")->floats.clear();
  for (const Comparison& comparison : CheckOuterVectors(file)) {
    EXPECT_EQ(comparison.ok() || comparison.skipped(), comparison.name() != "slowmo/slowmo");
  }
}

}  // namespace
}  // namespace isthmus
