#include "worker/state_folder.h"

#include <sys/stat.h>

#include <fstream>

#include "base/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/loopback.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

TEST(StateFolderTest, KeepsSecretAndLastContribution) {
  const TestFolder folder;
  const std::string path = folder.path() + "/state";
  std::string secret;
  const std::string digest = Sha256Of("contribution");
  {
    const auto state = StateFolder::Open(path);
    ASSERT_TRUE(state.ok()) << state.status();
    secret = (*state)->secret();
    EXPECT_EQ(secret.size(), 32U);
    EXPECT_TRUE((*state)->durable());
    EXPECT_EQ((*state)->SentFor(7).round, 0U);
    EXPECT_TRUE((*state)->SaveSent({4, 3, Sha256Of("long ago")}).ok());
    EXPECT_TRUE((*state)->SaveSent({5, 3, Sha256Of("a while ago")}).ok());
    EXPECT_TRUE((*state)->SaveSent({6, 3, Sha256Of("before")}).ok());
    EXPECT_TRUE((*state)->SaveSent({7, 3, digest}).ok());
  }
  struct stat info = {};
  ASSERT_EQ(stat((path + "/secret").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  const auto state = StateFolder::Open(path);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ((*state)->secret(), secret);
  EXPECT_EQ((*state)->SentFor(7).round, 7U);
  EXPECT_EQ((*state)->SentFor(7).attempt, 3U);
  EXPECT_EQ((*state)->SentFor(7).digest, digest);
  // As many as may be under way at once.
  EXPECT_EQ((*state)->SentFor(6).digest, Sha256Of("before"));
  EXPECT_EQ((*state)->SentFor(5).digest, Sha256Of("a while ago"));
  EXPECT_EQ((*state)->SentFor(4).round, 0U);
}

TEST(StateFolderTest, BelongsToOneProcess) {
  const TestFolder folder;
  const auto first = StateFolder::Open(folder.path());
  ASSERT_TRUE(first.ok());
  const auto second = StateFolder::Open(folder.path());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("is in use by another process"));
}

TEST(StateFolderTest, RefusesWhatIsDamaged) {
  const TestFolder folder;
  std::ofstream(folder.path() + "/secret") << "short";
  EXPECT_EQ(StateFolder::Open(folder.path()).status().code(), absl::StatusCode::kDataLoss);
  std::ofstream(folder.path() + "/secret") << std::string(32, 's');
  std::ofstream(folder.path() + "/contribution") << "7 3 abc\n";
  EXPECT_THAT(std::string(StateFolder::Open(folder.path()).status().message()),
              HasSubstr("is not 'ROUND ATTEMPT DIGEST'"));
  EXPECT_THAT(std::string(StateFolder::Open(folder.path() + "/no/such").status().message()),
              HasSubstr("cannot create the state folder"));
}

TEST(StateFolderTest, WithoutAPathEachProcessHasItsOwnSecret) {
  const auto one = StateFolder::Open(""), other = StateFolder::Open("");
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_FALSE((*one)->durable());
  EXPECT_NE((*one)->secret(), (*other)->secret());
  EXPECT_TRUE((*one)->SaveSent({1, 1, Sha256Of("x")}).ok());
  EXPECT_EQ((*one)->SentFor(1).round, 1U);
}

}  // namespace
}  // namespace isthmus
