#include "tests/worker/torch_fixture.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <thread>

#include "spec/run_spec.h"

namespace isthmus {

v1::RunSpec SmallSpec() {
  auto spec = ParseRunSpec(R"(
      run: "small" seed: 5 steps: 5
      nodes { name: "a" } nodes { name: "b" }
      model { layers: 2 heads: 2 width: 24 context: 16 vocab: 256 }
      data { sequences_per_node: 6 eval_sequences: 5 }
      optimizer { lr: 0.01 warmup_steps: 2 clip_norm: 1 }
      codec { chunk_side: 16 })");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *std::move(spec);
}

std::string WriteText(const std::string& name, size_t bytes, uint64_t seed) {
  static const char* const kWords[] = {"the ", "sea ",    "and ",    "land ",  "meet ",  "at ",
                                       "a ",   "narrow ", "strip, ", "where ", "ships ", "wait.\n"};
  std::mt19937_64 random(seed);
  std::string text;
  while (text.size() < bytes) text += kWords[random() % (sizeof(kWords) / sizeof(kWords[0]))];
  text.resize(bytes);
  const std::string path = testing::TempDir() + "/" + name;
  std::FILE* file = std::fopen(path.c_str(), "wb");
  EXPECT_NE(file, nullptr);
  EXPECT_EQ(std::fwrite(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return path;
}

void RunRanks(int ranks, const std::function<void(ProcessGroup* group)>& body) {
  auto groups = StartThreadProcessGroups(ranks);
  ASSERT_TRUE(groups.ok()) << groups.status();
  std::vector<std::thread> threads;
  for (auto& group : *groups) threads.emplace_back([&body, &group] { body(group.get()); });
  for (std::thread& thread : threads) thread.join();
}

TokenRows RandomRows(int64_t sequences, int64_t length, uint64_t seed) {
  std::mt19937_64 random(seed);
  TokenRows rows;
  rows.sequences = sequences;
  rows.length = length;
  for (int64_t i = 0; i < sequences * (length + 1); ++i) {
    rows.tokens.push_back(static_cast<uint8_t>(random()));
  }
  return rows;
}

TokenRows RowsOfRank(const TokenRows& rows, int rank, int ranks) {
  TokenRows mine;
  mine.sequences = rows.sequences / ranks;
  mine.length = rows.length;
  const auto begin = rows.tokens.begin() + rank * mine.sequences * (rows.length + 1);
  mine.tokens.assign(begin, begin + mine.sequences * (rows.length + 1));
  return mine;
}

}  // namespace isthmus
