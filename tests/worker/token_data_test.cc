// Tokens in files: formats, headers, patterns, what is refused. No torch.
#include "worker/token_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/limits.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

std::string WriteFile(const std::string& name, const std::string& bytes) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

template <typename Token>
std::string Bytes(const std::vector<Token>& tokens) {
  return std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token));
}

std::string Header(int32_t magic, int32_t version, int32_t tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return Bytes(header);
}

absl::StatusOr<std::unique_ptr<TokenData>> Open(const std::string& files, v1::TokenFormat format,
                                                uint32_t vocab = 0) {
  TokenDataOptions options;
  options.files = files;
  options.format = format;
  options.vocab = vocab;
  return TokenData::Open(options);
}

constexpr auto kBytes = v1::TOKEN_FORMAT_BYTES;
constexpr auto kUint16 = v1::TOKEN_FORMAT_UINT16;
constexpr auto kUint32 = v1::TOKEN_FORMAT_UINT32;

void ExpectTokens(const TokenData& data, const std::vector<uint32_t>& wanted) {
  ASSERT_EQ(data.tokens(), wanted.size());
  for (size_t first = 0; first <= wanted.size(); ++first) {
    for (size_t count = 0; first + count <= wanted.size(); ++count) {
      std::vector<uint32_t> out(count);
      const absl::Status status = data.Read(first, absl::MakeSpan(out));
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(out, std::vector<uint32_t>(wanted.begin() + first, wanted.begin() + first + count));
    }
  }
}

void ExpectRefused(const std::string& files, v1::TokenFormat format,
                   const std::vector<std::string>& texts,
                   absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const absl::Status status = Open(files, format).status();
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& text : texts) EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(TokenData, ReadsEachFormatAcrossFilesWithAndWithoutHeader) {
  const std::vector<uint16_t> one = {1, 2, 65535}, two = {7};
  const std::vector<uint32_t> three = {5, 70000, 4294967295u}, four = {9, 10};
  auto bytes =
      Open(WriteFile("b1", "a") + "," + WriteFile("b2", std::string("\xff\x00z", 3)), kBytes);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  ExpectTokens(**bytes, {'a', 255, 0, 'z'});
  auto shorts =
      Open(WriteFile("s1", Bytes(one)) + "," + WriteFile("s2", Header(20240520, 1, 1) + Bytes(two)),
           kUint16);
  ASSERT_TRUE(shorts.ok()) << shorts.status();
  ExpectTokens(**shorts, {1, 2, 65535, 7});
  auto words = Open(
      WriteFile("w1", Header(20240801, 7, 3) + Bytes(three)) + "," + WriteFile("w2", Bytes(four)),
      kUint32);
  ASSERT_TRUE(words.ok()) << words.status();
  ExpectTokens(**words, {5, 70000, 4294967295u, 9, 10});
}

TEST(TokenData, ReadsRandomFilesOfAnyNumberOfTokens) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::string files;
  std::vector<uint32_t> wanted;
  for (int i = 0; i < 5; ++i) {
    std::vector<uint16_t> tokens(1 + random() % 9);
    for (uint16_t& token : tokens) token = static_cast<uint16_t>(random());
    wanted.insert(wanted.end(), tokens.begin(), tokens.end());
    const bool header = random() % 2 == 0;
    files += WriteFile("r" + std::to_string(i),
                       (header ? Header(20240520, 1, static_cast<int>(tokens.size())) : "") +
                           Bytes(tokens)) +
             ",";
  }
  auto data = Open(files, kUint16);
  ASSERT_TRUE(data.ok()) << data.status();
  ExpectTokens(**data, wanted);
}

TEST(TokenData, RefusesLengthsThatAreNoTokens) {
  ExpectRefused(WriteFile("empty", ""), kBytes, {"empty' is empty"});
  ExpectRefused(WriteFile("empty16", ""), kUint16, {"empty16' is empty"});
  ExpectRefused(WriteFile("odd1", "x"), kUint16,
                {"odd1' has 1 bytes", "data.format of the run is TOKEN_FORMAT_UINT16"});
  ExpectRefused(WriteFile("odd3", "xyz"), kUint16, {"odd3' has 3 bytes, no multiple of 2"});
  ExpectRefused(WriteFile("odd7", "1234567"), kUint32, {"odd7' has 7 bytes, no multiple of 4"});
  ExpectRefused(testing::TempDir(), kBytes, {"is not a regular file"});
  ExpectRefused("/nonexistent/tokens", kBytes, {"/nonexistent/tokens"},
                absl::StatusCode::kNotFound);
}

TEST(TokenData, RefusesAHeaderOfAnotherFormatAndSaysWhatToSet) {
  const std::string shorts =
      WriteFile("h16", Header(20240520, 1, 2) + Bytes(std::vector<uint16_t>{1, 2}));
  const std::string words =
      WriteFile("h32", Header(20240801, 7, 1) + Bytes(std::vector<uint32_t>{1}));
  for (v1::TokenFormat format : {kBytes, kUint32}) {
    ExpectRefused(shorts, format,
                  {"h16'", "set it to TOKEN_FORMAT_UINT16",
                   "data.format of the run is " + v1::TokenFormat_Name(format)});
  }
  for (v1::TokenFormat format : {kBytes, kUint16}) {
    ExpectRefused(words, format, {"h32'", "set it to TOKEN_FORMAT_UINT32"});
  }
}

TEST(TokenData, ErrorsOfFlagsNameFlags) {
  TokenDataOptions options;
  options.files = WriteFile("flags", Header(20240520, 1, 1) + "xx");
  options.from_flags = true;
  EXPECT_THAT(std::string(TokenData::Open(options).status().message()),
              HasSubstr("for uint16, but --format is bytes; set it to uint16"));
}

TEST(TokenData, RefusesAHeaderThatDoesNotFitTheFile) {
  const std::string token = Bytes(std::vector<uint16_t>{1});
  ExpectRefused(WriteFile("v9", Header(20240520, 9, 1) + token), kUint16,
                {"version 9", "only version 1"});
  ExpectRefused(WriteFile("more", Header(20240520, 1, 2) + token), kUint16,
                {"has 1026 bytes", "names 2 tokens", "1028 bytes"});
  ExpectRefused(WriteFile("less", Header(20240520, 1, 1) + token + token), kUint16,
                {"names 1 tokens"});
  ExpectRefused(WriteFile("none", Header(20240520, 1, 0)), kUint16, {"names 0 tokens"});
  ExpectRefused(WriteFile("minus", Header(20240520, 1, -1) + token), kUint16, {"names -1 tokens"});
  ExpectRefused(WriteFile("cut", Header(20240520, 1, 1).substr(0, 12)), kUint16, {"has 12 bytes"});
}

TEST(TokenData, ATokenBeyondTheVocabularyIsNamedWhenItIsRead) {
  std::vector<uint16_t> tokens(100, 7);
  tokens[60] = 300;
  const std::string files = WriteFile("good", Bytes(std::vector<uint16_t>(10, 299))) + "," +
                            WriteFile("bad", Header(20240520, 1, 100) + Bytes(tokens));
  auto data = Open(files, kUint16, 300);
  ASSERT_TRUE(data.ok()) << data.status();
  std::vector<uint32_t> out(70);
  EXPECT_TRUE((*data)->Read(0, absl::MakeSpan(out)).ok());
  const absl::Status status = (*data)->Read(5, absl::MakeSpan(out));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("token 60 of data file"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("bad' is 300, but model.vocab of the run is 300"));
  EXPECT_FALSE((*data)->Fingerprint().ok());
}

TEST(TokenData, PatternsAreTakenInOrderAndMustMatch) {
  const std::string folder = testing::TempDir() + "/patterns";
  mkdir(folder.c_str(), 0777);
  for (const char* name : {"val_0", "train_2", "train_10", "train_1"}) {
    WriteFile(std::string("patterns/") + name, std::string(name) + ";");
  }
  auto data = Open(folder + "/train_*," + folder + "/val_?", kBytes);
  ASSERT_TRUE(data.ok()) << data.status();
  std::vector<uint32_t> out((*data)->tokens());
  ASSERT_TRUE((*data)->Read(0, absl::MakeSpan(out)).ok());
  EXPECT_EQ(std::string(out.begin(), out.end()), "train_1;train_10;train_2;val_0;");
  ExpectRefused(folder + "/val_0," + folder + "/test_*", kBytes,
                {"--data: '" + folder + "/test_*' matches no file"}, absl::StatusCode::kNotFound);
  ExpectRefused(folder + "/val_*," + folder + "/val_0", kBytes, {"val_0' twice"});
  ExpectRefused(",", kBytes, {"--data names no data file"});
  const std::string starred = WriteFile("patterns/a*b", "x");
  auto literal = Open(starred, kBytes);
  EXPECT_TRUE(literal.ok()) << literal.status();
}

TEST(TokenData, MoreFilesThanTheLimitAreRefused) {
  std::string files;
  for (int i = 0; i <= kDataFilesMax; ++i) files += "f" + std::to_string(i) + ",";
  ExpectRefused(files, kBytes, {"names 4097 files; the limit is 4096"},
                absl::StatusCode::kResourceExhausted);
}

TEST(TokenData, AFileThatIsCutWhileItIsUsedIsNamed) {
  const std::string path = WriteFile("shrinks", std::string(10000, 'x'));
  auto data = Open(path, kBytes);
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(truncate(path.c_str(), 5000), 0);
  std::vector<uint32_t> out(3);
  const absl::Status status = (*data)->Read(0, absl::MakeSpan(out));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("shrinks' had 10000 bytes at start and has 5000"));
}

TEST(TokenData, TheFingerprintIsThatOfTheTokensNotOfTheFiles) {
  const auto fingerprint = [](const std::string& files, v1::TokenFormat format) {
    auto data = Open(files, format);
    EXPECT_TRUE(data.ok()) << data.status();
    auto made = (*data)->Fingerprint();
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  };
  const std::string one = fingerprint(WriteFile("f1", "abcdefghi"), kBytes);
  EXPECT_EQ(one.size(), 32u);
  EXPECT_EQ(one, fingerprint(WriteFile("f2", "abc") + "," + WriteFile("f3", "defghi"), kBytes));
  EXPECT_NE(one, fingerprint(WriteFile("f4", "abcdefghj"), kBytes));
  // Larger than what is read whole: the ends count, and the length.
  const std::string large(20'000'000, 'x');
  const std::string all = fingerprint(WriteFile("l1", large), kBytes);
  EXPECT_NE(all, fingerprint(WriteFile("l2", large + "x"), kBytes));
  std::string changed = large;
  changed.back() = 'y';
  EXPECT_NE(all, fingerprint(WriteFile("l3", changed), kBytes));
}

TEST(TokenData, FilesAreCheckedBeforeAnythingIsWaitedFor) {
  EXPECT_TRUE(CheckDataFiles(WriteFile("there", "x"), "--data").ok());
  EXPECT_EQ(CheckDataFiles(WriteFile("nothing", ""), "--data").code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckDataFiles("/nowhere/*", "--heldout_data").message(),
            "--heldout_data: '/nowhere/*' matches no file");
}

TEST(TokenData, FormatsHaveNames) {
  EXPECT_EQ(*ParseTokenFormat("uint16"), kUint16);
  EXPECT_EQ(ParseTokenFormat("u8").status().message(),
            "the token format is 'u8'; it is bytes, uint16 or uint32");
}

}  // namespace
}  // namespace isthmus
