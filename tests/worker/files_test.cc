// The trainer's files: text as tokens, safetensors, metrics. No torch.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "spec/run_spec.h"
#include "worker/progress.h"
#include "worker/safetensors.h"
#include "worker/text_data.h"

namespace isthmus {
namespace {

std::string WriteFile(const std::string& name, const std::string& bytes) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
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
                              const std::string& path) {
  auto text = TextData::Open(path);
  if (!text.ok()) return text.status();
  return RankData::Make(spec, node, rank, ranks, *std::move(text));
}

TEST(TextData, ReadsAcrossFiles) {
  const std::string paths =
      WriteFile("one", "abc") + "," + WriteFile("two", "de") + "," + WriteFile("three", "fghi");
  auto text = TextData::Open(paths);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ((*text)->tokens(), 9u);
  for (uint64_t first = 0; first <= 9; ++first) {
    for (size_t count = 0; first + count <= 9; ++count) {
      std::vector<uint8_t> out(count);
      (*text)->Read(first, absl::MakeSpan(out));
      EXPECT_EQ(std::string(out.begin(), out.end()), std::string("abcdefghi").substr(first, count));
    }
  }
  auto same = TextData::Open(WriteFile("whole", "abcdefghi"));
  EXPECT_EQ((*text)->Digest(), (*same)->Digest());
}

TEST(TextData, RefusesFilesThatAreNoText) {
  EXPECT_EQ(TextData::Open("/nonexistent/text").status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(TextData::Open(WriteFile("empty", "")).status().message().find("is empty"),
            std::string::npos);
  EXPECT_NE(TextData::Open(testing::TempDir()).status().message().find("not a regular file"),
            std::string::npos);
  EXPECT_EQ(TextData::Open(",").status().message(), "no data file is named");
}

TEST(RankData, RanksTakeTheNodesSequencesInOrder) {
  const v1::RunSpec spec = Spec();
  const std::string path = WriteFile("counters", Counters(8000));
  for (const std::string node : {"a", "b"}) {
    auto whole = Open(spec, node, 0, 1, path);
    ASSERT_TRUE(whole.ok()) << whole.status();
    for (uint64_t step = 1; step <= 5; ++step) {
      std::vector<uint8_t> joined;
      for (int rank = 0; rank < 2; ++rank) {
        auto part = Open(spec, node, rank, 2, path);
        const TextRows rows = part->Step(step);
        EXPECT_EQ(rows.sequences, 2);
        EXPECT_EQ(rows.tokens.size(), 2u * 11);
        joined.insert(joined.end(), rows.tokens.begin(), rows.tokens.end());
      }
      EXPECT_EQ(joined, whole->Step(step).tokens);
    }
  }
}

TEST(RankData, NodesNeverReadTheSamePlacesNorTheHeldOutPart) {
  const v1::RunSpec spec = Spec();
  const std::string text = Counters(8000);
  const std::string path = WriteFile("disjoint", text);
  std::map<std::string, std::set<size_t>> places;
  for (const std::string node : {"a", "b"}) {
    auto data = Open(spec, node, 0, 1, path);
    for (uint64_t step = 1; step <= 300; ++step) {
      const TextRows rows = data->Step(step);
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
  EXPECT_LT(*places["b"].rbegin(), 7200u);
}

TEST(RankData, EvaluationIsTheSameForAnyNumberOfRanks) {
  const v1::RunSpec spec = Spec();
  const std::string path = WriteFile("evaluation", Counters(8000));
  std::map<int, std::multiset<std::vector<uint8_t>>> seen;
  for (int ranks : {1, 2, 4}) {
    for (int rank = 0; rank < ranks; ++rank) {
      auto data = Open(spec, rank % 2 == 0 ? "a" : "b", rank, ranks, path);
      for (uint64_t i = 0; i < data->EvaluationBatches(); ++i) {
        const TextRows rows = data->Evaluation(i);
        for (int64_t row = 0; row < rows.sequences; ++row) {
          seen[ranks].insert({rows.tokens.begin() + row * 11, rows.tokens.begin() + row * 11 + 11});
        }
      }
    }
    EXPECT_EQ(seen[ranks].size(), 40u);
    EXPECT_EQ(seen[ranks], seen[1]);
  }
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

TEST(Safetensors, ComesBackAsItWasWritten) {
  const std::string path = testing::TempDir() + "/round.safetensors";
  const std::vector<NamedShape> shapes = {{"b.weight", {2, 3}}, {"a", {}}, {"none", {0, 4}}};
  auto writer = SafetensorsWriter::Create(path, shapes);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write({1, 2, 3, 4, 5, 6}).ok());
  ASSERT_TRUE((*writer)->Write({-0.5f}).ok());
  ASSERT_TRUE((*writer)->Write({}).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->entries().size(), 3u);
  EXPECT_EQ((*file)->entries().at("b.weight").shape, (std::vector<int64_t>{2, 3}));
  std::vector<float> values(4);
  ASSERT_TRUE((*file)->Read("b.weight", 2, absl::MakeSpan(values)).ok());
  EXPECT_EQ(values, (std::vector<float>{3, 4, 5, 6}));
  EXPECT_FALSE((*file)->Read("b.weight", 3, absl::MakeSpan(values)).ok());
  EXPECT_EQ((*file)->Read("c", 0, absl::MakeSpan(values)).code(), absl::StatusCode::kNotFound);
}

TEST(Safetensors, AnUnfinishedFileDoesNotAppear) {
  const std::string path = testing::TempDir() + "/unfinished.safetensors";
  { ASSERT_TRUE(SafetensorsWriter::Create(path, {{"a", {2}}}).ok()); }
  EXPECT_EQ(SafetensorsFile::Open(path).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(SafetensorsWriter::Create("/nonexistent/x", {{"a", {2}}}).ok());
}

std::string File(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

TEST(Safetensors, RefusesDamagedFiles) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  ASSERT_TRUE(SafetensorsFile::Open(WriteFile("good", File(good, "12345678"))).ok());
  const std::vector<std::string> bad = {
      "",
      "1234567",
      std::string(8, '\xff'),
      File(good, "1234567"),
      File("[]", ""),
      File("{\"a\":", ""),
      File(R"({"a":1})", ""),
      File(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "12345678"),
      File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "12345678"),
      File(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "12345678"),
      File(R"({"a":{"dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8]}})",
           "12345678"),
      File(R"({"a":{"dtype":"F32","shape":[9223372036854775807,9223372036854775807],)"
           R"("data_offsets":[0,8]}})",
           "12345678"),
      File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})",
           "12345678")};
  for (const std::string& bytes : bad) {
    const auto file = SafetensorsFile::Open(WriteFile("bad", bytes));
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
  auto other = SafetensorsFile::Open(WriteFile(
      "bf16", File(R"({"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}})", "12345678")));
  ASSERT_TRUE(other.ok()) << other.status();
  std::vector<float> values(1);
  EXPECT_NE((*other)->Read("a", 0, absl::MakeSpan(values)).message().find("is BF16; only F32"),
            std::string::npos);
}

TEST(Progress, ShowsHeldOutLossOnceAndBytesARound) {
  testing::internal::CaptureStdout();
  auto progress = Progress::Start(2, /*quiet=*/false, "");
  ASSERT_TRUE(progress.ok()) << progress.status();
  (*progress)->StartLoss(5);
  RoundReport report;
  report.step = 1;
  report.applied = 10;  // nine of them caught up with
  report.bytes_up = 500;
  report.bytes_down = 4000;
  report.val_loss = 3;
  (*progress)->Round(report);
  report.val_loss.reset();
  report.step = 2;
  (*progress)->Round(report);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("up 500 B, down 400 B a round"), std::string::npos) << text;
  const size_t shown = text.find("  held-out 3.0000");
  EXPECT_NE(shown, std::string::npos) << text;
  EXPECT_EQ(text.find("  held-out", shown + 1), std::string::npos) << text;
}

TEST(Progress, TellsWhetherAFileCanBeMade) {
  EXPECT_TRUE(CheckCanWrite(testing::TempDir() + "/new").ok());
  EXPECT_TRUE(CheckCanWrite("new").ok());
  EXPECT_EQ(CheckCanWrite("/nowhere/new").code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(CheckCanWrite(testing::TempDir()).ok());
}

TEST(Progress, WritesALineForEachRoundAndTheSummary) {
  const std::string path = testing::TempDir() + "/metrics.jsonl";
  {
    auto progress = Progress::Start(2, /*quiet=*/true, path);
    ASSERT_TRUE(progress.ok()) << progress.status();
    RoundReport report;
    report.round = report.step = 1;
    report.loss = 2.5;
    (*progress)->Round(report);
    report.val_loss = 3;
    (*progress)->Round(report);
  }
  const std::string text = ReadFile(path);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_EQ(text.find(R"({"round":1,"step":1,"loss":2.5,"tokens":0)"), 0u);
  EXPECT_NE(text.find(R"("val_loss":3.0)"), std::string::npos);
  EXPECT_FALSE(Progress::Start(2, true, "/nonexistent/metrics").ok());

  TrainSummary summary;
  summary.rounds = 2;
  summary.bytes_up = 10;
  summary.state_sha256 = std::string(32, '\xab');
  summary.sample = "x\xff";
  const std::string json = SummaryJson(summary);
  EXPECT_NE(json.find(R"("up_bytes_per_round":5,)"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("state_sha256":"abababab)"), std::string::npos) << json;
}

}  // namespace
}  // namespace isthmus
