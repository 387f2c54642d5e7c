// Every RunSpec of the experiments holds: it parses, is complete and contradicts nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "spec/rounds.h"
#include "spec/run_spec.h"

namespace isthmus {
namespace {

std::vector<std::string> SpecFiles(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".txtpb") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(ExperimentsTest, EveryRunSpecHolds) {
  const std::vector<std::string> files = SpecFiles("experiments");
  EXPECT_GE(files.size(), 18u);
  for (const std::string& file : files) {
    const auto spec = ReadRunSpecFile(file);
    ASSERT_TRUE(spec.ok()) << file << ": " << spec.status();
    // The name of the run is that of the file, so that results are found by it.
    std::string name = std::filesystem::path(file).stem().string();
    std::replace(name.begin(), name.end(), '_', '-');
    EXPECT_EQ(spec->run(), name) << file;
    EXPECT_TRUE(spec->has_model() && spec->has_data()) << file;
  }
}

TEST(ExperimentsTest, SignMomentumHasThePapersNumbers) {
  uint32_t with_outer = 0;
  for (const std::string& file : SpecFiles("experiments/sign_momentum")) {
    const auto spec = ReadRunSpecFile(file);
    ASSERT_TRUE(spec.ok()) << file << ": " << spec.status();
    EXPECT_EQ(spec->nodes_size() * spec->data().sequences_per_node(), 480u) << file;
    if (spec->outer().kind() != v1::OUTER_KIND_SIGN_MOMENTUM) continue;
    ++with_outer;
    EXPECT_EQ(spec->outer().beta1(), 0.95) << file;
    EXPECT_EQ(spec->outer().beta2(), 0.98) << file;
    EXPECT_EQ(spec->outer().weight_decay(), 0.1) << file;
    const uint64_t h = spec->schedule().local_steps();
    EXPECT_TRUE(h == 12 || h == 24 || h == 36) << file;
    EXPECT_EQ(Rounds(*spec), (spec->steps() + h - 1) / h) << file;
  }
  EXPECT_EQ(with_outer, 9u);
}

}  // namespace
}  // namespace isthmus
