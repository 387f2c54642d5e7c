#include "spec/state_hash.h"

#include <gtest/gtest.h>

#include <random>

#include "spec/run_spec.h"

namespace isthmus {
namespace {

v1::Manifest TestManifest() {
  v1::Manifest manifest;
  const auto add = [&](const char* name, std::vector<uint64_t> shape) {
    v1::TensorSpec* tensor = manifest.add_tensors();
    tensor->set_name(name);
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    for (uint64_t size : shape) tensor->add_shape(size);
  };
  add("matrix", {130, 70});
  add("vector", {5000});
  add("scalar", {});
  return manifest;
}

class StateHashTest : public ::testing::Test {
 protected:
  StateHashTest() : grid_(MakeGrid()), random_(seed_) {
    facts_.set_step(7);
    facts_.set_sections(3);
    facts_.set_elements(grid_.elements());
    facts_.set_beta1_power_bits(11);
    facts_.set_beta2_power_bits(12);
    facts_.set_frozen_sha256("frozen");
  }

  static Grid MakeGrid() {
    v1::CodecSpec codec;
    codec.set_kind(v1::CODEC_KIND_DEMO);
    EXPECT_TRUE(CompleteCodecSpec(&codec).ok());
    return *Grid::Make(TestManifest(), codec);
  }

  std::string RandomSection() {
    std::string values(grid_.elements() * sizeof(float), '\0');
    for (char& byte : values) byte = static_cast<char>(random_());
    return values;
  }

  // The plain form: every block by itself.
  std::string Section(const std::string& values) const {
    std::string hashes;
    size_t at = 0;
    for (const Block& block : grid_.blocks()) {
      hashes += Sha256Of(values.substr(at, block.elements * sizeof(float)));
      at += block.elements * sizeof(float);
    }
    EXPECT_EQ(at, values.size());
    return SectionSha256(grid_, hashes, facts_.step());
  }

  const uint64_t seed_ = std::random_device{}();
  const Grid grid_;
  std::mt19937_64 random_;
  v1::SnapshotFacts facts_;
};

TEST_F(StateHashTest, AStreamInAnyPiecesHasTheHashOfTheBlocks) {
  SCOPED_TRACE(seed_);
  for (uint32_t sections : {1u, 3u}) {
    facts_.set_sections(sections);
    std::string all;
    std::vector<std::string> hashes;
    for (uint32_t i = 0; i < sections; ++i) {
      const std::string values = RandomSection();
      hashes.push_back(Section(values));
      all += values;
    }
    const std::string expected = StateSha256(hashes, facts_);
    for (int i = 0; i < 20; ++i) {
      StateHasher hasher(grid_, facts_);
      size_t at = 0;
      while (at < all.size()) {
        const size_t size = std::min(all.size() - at, size_t{4} * (1 + random_() % 9000));
        ASSERT_TRUE(hasher.Add(absl::string_view(all).substr(at, size)).ok());
        at += size;
      }
      EXPECT_TRUE(absl::IsOutOfRange(hasher.Add("more")));
      EXPECT_EQ(*hasher.Finish(), expected);
    }
  }
}

TEST_F(StateHashTest, AStateThatIsNotWholeHasNone) {
  StateHasher hasher(grid_, facts_);
  ASSERT_TRUE(hasher.Add(RandomSection()).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(hasher.Finish().status()));
}

TEST_F(StateHashTest, EveryFactIsPartOfIt) {
  const std::vector<std::string> sections = {"a", "b", "c"};
  const std::string whole = StateSha256(sections, facts_);
  EXPECT_NE(StateSha256({"a", "b", "d"}, facts_), whole);
  v1::SnapshotFacts other = facts_;
  other.set_beta1_power_bits(1);
  EXPECT_NE(StateSha256(sections, other), whole);
  other = facts_;
  other.set_beta2_power_bits(1);
  EXPECT_NE(StateSha256(sections, other), whole);
  other = facts_;
  other.clear_frozen_sha256();
  EXPECT_NE(StateSha256(sections, other), whole);
  EXPECT_EQ(StateSha256({"a"}, other), "a");
}

}  // namespace
}  // namespace isthmus
