// The trainer's files: safetensors, metrics. No torch.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "base/safetensors.h"
#include "base/whole_file.h"
#include "worker/progress.h"

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
}

// Values by the definitions of IEEE 754 binary16 and of bfloat16.
TEST(Safetensors, ReadsShortFloats) {
  const auto read = [](const std::string& dtype, const std::vector<uint16_t>& bits) {
    const std::string header = R"({"a":{"dtype":")" + dtype + R"(","shape":[)" +
                               std::to_string(bits.size()) + R"(],"data_offsets":[0,)" +
                               std::to_string(2 * bits.size()) + "]}}";
    const std::string data(reinterpret_cast<const char*>(bits.data()), 2 * bits.size());
    auto file = SafetensorsFile::Open(WriteFile(dtype, File(header, data)));
    EXPECT_TRUE(file.ok()) << file.status();
    std::vector<float> values(bits.size() - 1);
    EXPECT_TRUE((*file)->Read("a", 1, absl::MakeSpan(values)).ok());
    EXPECT_FALSE((*file)->Read("a", 2, absl::MakeSpan(values)).ok());
    return values;
  };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(read("BF16", {0, 0x3f80, 0xc000, 0x0001, 0x7f80}),
            (std::vector<float>{1, -2, 0x1p-133f, kInf}));
  EXPECT_EQ(read("F16", {0, 0x3c00, 0xc000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfc00, 0x3555}),
            (std::vector<float>{1, -2, 0x1p-24f, -1023 * 0x1p-24f, 0x1p-14f, 65504, -kInf,
                                1365 * 0x1p-12f}));
  EXPECT_TRUE(std::isnan(read("F16", {0, 0x7e00})[0]));
  EXPECT_TRUE(std::isnan(read("BF16", {0, 0x7fc0})[0]));
  auto other = SafetensorsFile::Open(WriteFile(
      "f64", File(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", "12345678")));
  std::vector<float> values(1);
  EXPECT_NE((*other)->Read("a", 0, absl::MakeSpan(values)).message().find("is F64; read are F32"),
            std::string::npos);
}

TEST(Safetensors, KeepsTextsOfTheWriter) {
  const std::string path = testing::TempDir() + "/texts.safetensors";
  auto writer = SafetensorsWriter::Create(path, {{"a", {1}}}, {{"config", "{\"x\": \"\\n\"}"}});
  ASSERT_TRUE((*writer)->Write({1}).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->metadata().at("format"), "pt");
  EXPECT_EQ((*file)->metadata().at("config"), "{\"x\": \"\\n\"}");
}

TEST(Progress, ShowsHeldOutLossOnceAndBytesARound) {
  testing::internal::CaptureStdout();
  auto progress = Progress::Start({2, 2, /*quiet=*/false, ""});
  ASSERT_TRUE(progress.ok()) << progress.status();
  (*progress)->StartLoss(5, 0);
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

TEST(Progress, WithLocalStepsItShowsRoundsAndWhatBecameOfThem) {
  const std::string path = testing::TempDir() + "/local_metrics.jsonl";
  testing::internal::CaptureStdout();
  {
    auto progress = Progress::Start({20, 4, /*quiet=*/false, path});
    ASSERT_TRUE(progress.ok()) << progress.status();
    RoundReport report;
    report.round = 2;
    report.step = 10;
    report.local_steps = 5;
    report.carried_rounds = 1;
    (*progress)->Round(report);
  }
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("10/20 (round 2/4)  loss"), std::string::npos) << text;
  EXPECT_NE(ReadFile(path).find(R"("local_steps":5,"carried_rounds":1,"dropped_deltas":0)"),
            std::string::npos);
}

TEST(WholeFile, TellsWhetherAFileCanBeMade) {
  EXPECT_TRUE(CheckCanWrite(testing::TempDir() + "/new").ok());
  EXPECT_TRUE(CheckCanWrite("new").ok());
  EXPECT_EQ(CheckCanWrite("/nowhere/new").code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(CheckCanWrite(testing::TempDir()).ok());
}

TEST(Progress, WritesALineForEachRoundAndTheSummary) {
  const std::string path = testing::TempDir() + "/metrics.jsonl";
  {
    auto progress = Progress::Start({2, 2, /*quiet=*/true, path});
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
  EXPECT_FALSE(Progress::Start({2, 2, true, "/nonexistent/metrics"}).ok());

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
