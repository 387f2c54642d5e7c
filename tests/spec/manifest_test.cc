#include "spec/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/limits.h"
#include "base/sha256.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

v1::Manifest TwoTensors() {
  v1::Manifest manifest;
  v1::TensorSpec* a = manifest.add_tensors();
  a->set_name("h.0.w");
  a->set_dtype(v1::DTYPE_FLOAT32);
  a->add_shape(3);
  a->add_shape(5);
  v1::TensorSpec* b = manifest.add_tensors();
  b->set_name("h.0.b");
  b->set_dtype(v1::DTYPE_FLOAT32);
  return manifest;
}

TEST(ManifestTest, TakesScalarsAndMatrices) { EXPECT_TRUE(ValidateManifest(TwoTensors()).ok()); }

TEST(ManifestTest, RefusalsNameTensorFieldLimitAndValue) {
  struct Case {
    std::function<void(v1::Manifest*)> damage;
    absl::StatusCode code;
    std::string text;
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto kExhausted = absl::StatusCode::kResourceExhausted;
  const std::vector<Case> cases = {
      {[](v1::Manifest* m) { m->clear_tensors(); }, kInvalid, "0 tensors"},
      {[](v1::Manifest* m) { m->mutable_tensors(1)->set_name(""); }, kInvalid,
       "tensor 1 has a name of 0 bytes; a name has 1 to 256"},
      {[](v1::Manifest* m) { m->mutable_tensors(1)->set_name(std::string(257, 'x')); }, kInvalid,
       "257 bytes"},
      {[](v1::Manifest* m) { m->mutable_tensors(1)->set_name("a\nb"); }, kInvalid, "control"},
      {[](v1::Manifest* m) { m->mutable_tensors(1)->set_name("h.0.w"); }, kInvalid,
       "tensor 1 'h.0.w' has the name of an earlier one"},
      {[](v1::Manifest* m) { m->mutable_tensors(0)->clear_dtype(); }, kInvalid, "dtype number 0"},
      {[](v1::Manifest* m) { m->mutable_tensors(0)->set_dtype(v1::DTYPE_BFLOAT16); }, kInvalid,
       "dtype bfloat16"},
      {[](v1::Manifest* m) { m->mutable_tensors(0)->set_shape(1, 0); }, kInvalid,
       "size 0 in dimension 1"},
      {[](v1::Manifest* m) { m->mutable_tensors(0)->set_shape(1, uint64_t{1} << 63); }, kInvalid,
       "the limit is 1099511627776 elements"},
      {[](v1::Manifest* m) {
         for (int i = 0; i < 7; ++i) m->mutable_tensors(0)->add_shape(1);
       },
       kInvalid, "9 dimensions; the limit is 8"},
      {[](v1::Manifest* m) {
         while (m->tensors_size() <= 65536) m->add_tensors();
       },
       kExhausted, "65537 tensors; the limit is 65536"},
      {[](v1::Manifest* m) {
         while (m->tensors_size() <= 5000) m->add_tensors()->set_name(std::string(250, 'x'));
       },
       kExhausted, "the limit is 1048576"},
  };
  for (const Case& c : cases) {
    v1::Manifest manifest = TwoTensors();
    c.damage(&manifest);
    const absl::Status status = ValidateManifest(manifest);
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.text));
  }
}

TEST(ManifestTest, FingerprintIsTheStatedForm) {
  Sha256 hash;
  hash.UpdateSized("h.0.w");
  for (uint64_t word : {1, 2, 3, 5}) hash.UpdateU64(word);
  hash.UpdateSized("h.0.b");
  for (uint64_t word : {1, 0}) hash.UpdateU64(word);
  EXPECT_EQ(Fingerprint(TwoTensors()), hash.Finish());
}

TEST(ManifestTest, FingerprintSeesEveryField) {
  const std::string original = Fingerprint(TwoTensors());
  v1::Manifest changed = TwoTensors();
  changed.mutable_tensors(0)->set_name("h.0.v");
  EXPECT_NE(Fingerprint(changed), original);
  changed = TwoTensors();
  changed.mutable_tensors(0)->set_shape(0, 5);
  changed.mutable_tensors(0)->set_shape(1, 3);
  EXPECT_NE(Fingerprint(changed), original);
  changed = TwoTensors();
  changed.mutable_tensors()->SwapElements(0, 1);
  EXPECT_NE(Fingerprint(changed), original);
}

TEST(ManifestTest, DifferenceNamesTheFirst) {
  const v1::Manifest ours = TwoTensors();
  EXPECT_EQ(ManifestDifference(ours, ours), "");
  v1::Manifest theirs = ours;
  theirs.mutable_tensors(1)->set_dtype(v1::DTYPE_BFLOAT16);
  EXPECT_EQ(ManifestDifference(ours, theirs),
            "tensor 1 'h.0.b' has dtype bfloat16, the run has float32");
  theirs = ours;
  theirs.mutable_tensors(0)->set_shape(0, 4);
  EXPECT_EQ(ManifestDifference(ours, theirs),
            "tensor 0 'h.0.w' has shape [4, 5], the run has [3, 5]");
  theirs = ours;
  theirs.mutable_tensors(0)->set_name("x");
  EXPECT_EQ(ManifestDifference(ours, theirs), "tensor 0 is 'x', the run has 'h.0.w'");
  theirs = ours;
  theirs.mutable_tensors()->RemoveLast();
  EXPECT_EQ(ManifestDifference(ours, theirs),
            "there are 1 tensors, the run has 2; 'h.0.b' is missing");
  EXPECT_EQ(ManifestDifference(theirs, ours),
            "there are 2 tensors, the run has 1; 'h.0.b' is not in the run");
}

}  // namespace
}  // namespace isthmus
