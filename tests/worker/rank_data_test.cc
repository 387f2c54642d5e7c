// Which tokens ranks and nodes read. No torch.
#include "worker/rank_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "spec/run_spec.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

std::string WriteFile(const std::string& name, const std::string& bytes) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

v1::RunSpec Spec() {
  auto spec = ParseRunSpec(R"(
      run: "files" seed: 3 steps: 100
      nodes { name: "a" } nodes { name: "b" data_parts: 2 }
      model { layers: 1 heads: 1 width: 8 context: 10 vocab: 256 }
      data { sequences_per_node: 4 eval_sequences: 40 heldout_permille: 100 }
      optimizer { lr: 0.01 })");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *std::move(spec);
}

// Text whose position can be read from any four of its bytes: 4-byte little endian counters.
std::string Counters(size_t bytes) {
  std::string text;
  for (uint32_t i = 0; text.size() < bytes; ++i) text.append(reinterpret_cast<char*>(&i), 4);
  text.resize(bytes);
  return text;
}

absl::StatusOr<RankData> Open(const v1::RunSpec& spec, const std::string& node, int rank, int ranks,
                              const std::string& files, const std::string& heldout_files = "") {
  RankDataOptions options;
  options.spec = spec;
  options.node = node;
  options.rank = rank;
  options.ranks = ranks;
  options.files = files;
  options.heldout_files = heldout_files;
  return RankData::Open(options);
}

// The value, which must be there.
template <typename T>
T Good(absl::StatusOr<T> value) {
  EXPECT_TRUE(value.ok()) << value.status();
  return *std::move(value);
}

// Issue 4: the order of samples does not depend on the ranks of a node.
TEST(RankData, RanksTakeTheNodesSequencesInOrder) {
  v1::RunSpec spec = Spec();
  spec.mutable_data()->set_sequences_per_node(6);
  const std::string path = WriteFile("counters", Counters(8000));
  for (const std::string node : {"a", "b"}) {
    const RankData whole = Good(Open(spec, node, 0, 1, path));
    for (uint64_t step : {1u, 2u, 3u, 99u}) {
      for (int ranks : {1, 2, 3}) {
        std::vector<uint32_t> joined;
        for (int rank = 0; rank < ranks; ++rank) {
          const RankData part = Good(Open(spec, node, rank, ranks, path));
          const TokenRows rows = Good(part.Step(step));
          EXPECT_EQ(rows.sequences, 6 / ranks);
          EXPECT_EQ(rows.tokens.size(), 6u / ranks * 11);
          joined.insert(joined.end(), rows.tokens.begin(), rows.tokens.end());
        }
        EXPECT_EQ(joined, Good(whole.Step(step)).tokens) << "step " << step << " ranks " << ranks;
      }
    }
  }
}

// A step's rows depend on nothing but the step: not on steps before it, taken or missed.
TEST(RankData, AStepHasItsRowsWhateverWasReadBefore) {
  const std::string path = WriteFile("missed", Counters(8000));
  const RankData steady = Good(Open(Spec(), "b", 0, 1, path));
  std::map<uint64_t, std::vector<uint32_t>> rows;
  for (uint64_t step = 1; step <= 20; ++step) rows[step] = Good(steady.Step(step)).tokens;
  std::set<std::vector<uint32_t>> different;
  for (const auto& [step, tokens] : rows) different.insert(tokens);
  EXPECT_EQ(different.size(), 20u);
  const RankData away = Good(Open(Spec(), "b", 0, 1, path));
  for (uint64_t step : {1u, 2u, 9u, 10u, 20u}) {
    EXPECT_EQ(Good(away.Step(step)).tokens, rows[step]) << "step " << step;
  }
}

TEST(RankData, NodesNeverReadTheSamePlacesNorTheHeldOutPart) {
  const v1::RunSpec spec = Spec();
  const std::string text = Counters(8000);
  const std::string path = WriteFile("disjoint", text);
  const std::string heldout = WriteFile("held_out", std::string(100, 'h'));
  for (const std::string& held_out : {std::string(), heldout}) {
    std::map<std::string, std::set<size_t>> places;
    for (const std::string node : {"a", "b"}) {
      const RankData data = Good(Open(spec, node, 0, 1, path, held_out));
      for (uint64_t step = 1; step <= 300; ++step) {
        const TokenRows rows = Good(data.Step(step));
        for (int64_t row = 0; row < rows.sequences; ++row) {
          const std::string bytes(rows.tokens.begin() + row * 11,
                                  rows.tokens.begin() + row * 11 + 11);
          const size_t place = text.find(bytes);
          ASSERT_NE(place, std::string::npos);
          for (size_t i = 0; i < 11; ++i) places[node].insert(place + i);
        }
      }
    }
    EXPECT_GT(places["a"].size(), 1000u);
    EXPECT_LT(*places["a"].rbegin(), *places["b"].begin());
    if (held_out.empty()) {
      EXPECT_LT(*places["b"].rbegin(), 7200u);
    } else {
      EXPECT_GT(*places["b"].rbegin(), 7200u) << "all of it is for training";
    }
  }
}

std::multiset<std::vector<uint32_t>> HeldOutRows(const RankData& data) {
  std::multiset<std::vector<uint32_t>> seen;
  for (uint64_t i = 0; i < data.held_out().Batches(); ++i) {
    const TokenRows rows = Good(data.held_out().Rows(i));
    for (int64_t row = 0; row < rows.sequences; ++row) {
      seen.insert({rows.tokens.begin() + row * 11, rows.tokens.begin() + row * 11 + 11});
    }
  }
  return seen;
}

TEST(RankData, EvaluationIsTheSameForAnyNumberOfRanks) {
  const std::string path = WriteFile("evaluation", Counters(8000));
  const RankData whole = Good(Open(Spec(), "a", 0, 1, path));
  const auto wanted = HeldOutRows(whole);
  EXPECT_EQ(wanted.size(), 40u);
  for (int ranks : {1, 2, 4}) {
    std::multiset<std::vector<uint32_t>> seen;
    for (int rank = 0; rank < ranks; ++rank) {
      const RankData data = Good(Open(Spec(), rank % 2 == 0 ? "a" : "b", rank, ranks, path));
      const auto part = HeldOutRows(data);
      seen.insert(part.begin(), part.end());
      EXPECT_EQ(Good(data.held_out().Sha256()), Good(whole.held_out().Sha256()));
    }
    EXPECT_EQ(seen, wanted);
  }
}

TEST(RankData, TheHashIsThatOfTheHeldOutTokensAlone) {
  const std::string train = Counters(8000), val = Counters(900).substr(0, 850);
  const RankData one =
      Good(Open(Spec(), "a", 0, 1, WriteFile("train", train), WriteFile("val", val)));
  EXPECT_EQ(HeldOutRows(one).size(), 40u);
  // Other training data, and the held-out tokens in two files.
  const RankData same =
      Good(Open(Spec(), "b", 0, 1, WriteFile("train2", train + "x"),
                WriteFile("val1", val.substr(0, 100)) + "," + WriteFile("val2", val.substr(100))));
  EXPECT_EQ(Good(one.held_out().Sha256()), Good(same.held_out().Sha256()));
  const RankData other = Good(
      Open(Spec(), "b", 0, 1, WriteFile("train", train), WriteFile("val3", val.substr(1) + "x")));
  EXPECT_NE(Good(one.held_out().Sha256()), Good(other.held_out().Sha256()));
  EXPECT_EQ(
      Open(Spec(), "a", 0, 1, WriteFile("train", train), WriteFile("val4", "0123456789"))
          .status()
          .message(),
      "the held-out part of the data has 10 tokens; 11 are needed (model.context + 1), give more "
      "data or a shorter context");
}

TEST(RankData, ATokenBeyondTheVocabularyIsAnErrorOfTheStepThatReadsIt) {
  v1::RunSpec spec = Spec();
  spec.mutable_data()->set_format(v1::TOKEN_FORMAT_UINT16);
  std::string bytes;
  for (uint16_t i = 0; i < 4000; ++i) {
    const uint16_t token = i < 3600 ? 1000 : 5;  // the held-out part is good
    bytes.append(reinterpret_cast<const char*>(&token), 2);
  }
  const RankData data = Good(Open(spec, "a", 0, 1, WriteFile("beyond", bytes)));
  EXPECT_EQ(HeldOutRows(data).size(), 40u);
  EXPECT_THAT(std::string(data.Step(1).status().message()),
              HasSubstr("is 1000, but model.vocab of the run is 256"));
}

TEST(RankData, RefusesWhatCannotBeDealtOut) {
  const v1::RunSpec spec = Spec();
  const std::string path = WriteFile("refused", Counters(8000));
  EXPECT_EQ(Open(spec, "a", 0, 3, path).status().message(),
            "data.sequences_per_node of the run is 4; the 3 ranks of this node need a multiple of "
            "3 so that each has an equal part");
  EXPECT_NE(Open(spec, "c", 0, 1, path).status().message().find("'c'"), std::string::npos);
  EXPECT_FALSE(Open(spec, "a", 0, 1, WriteFile("short", Counters(30))).ok());
}

}  // namespace
}  // namespace isthmus
