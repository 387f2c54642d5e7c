// A hosted run in a store on disk: what checking its folder says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "server/rocks_store.h"
#include "tests/server/hosted_runs.h"

namespace isthmus {
namespace {

class HostedStoreTest : public HostedFixture {
 protected:
  HostedStoreTest() {
    std::string name = ::testing::TempDir() + "/hosted_XXXXXX";
    options_.dir = std::string(mkdtemp(name.data())) + "/state";
  }
  ~HostedStoreTest() override {
    std::filesystem::remove_all(std::filesystem::path(options_.dir).parent_path());
  }

  // A round whose update no node takes.
  void BareRound(uint64_t round) {
    for (size_t node = 0; node < nodes_.size(); ++node) {
      speaker(node).ExpectOpened(round);
      if (round == 3) {
        EXPECT_EQ(speaker(node).reader->NextEvent().revised().from_round(), 4u);
      }
      Submit(round, node);
    }
    ASSERT_TRUE(host()->CommitOne().ok());
    for (size_t node = 0; node < nodes_.size(); ++node) speaker(node).ExpectUpdate(round);
  }

  RocksStoreOptions options_;
};

// Updates are written as the spec of their round says, and are read so.
TEST_F(HostedStoreTest, AFolderIsSoundAfterTheReplyFormatHasChanged) {
  auto store = OpenRocksStore(options_);
  ASSERT_TRUE(store.ok()) << store.status();
  Begin(R"(preset: "diloco" codec { reply { format: NUMBER_FORMAT_INT8 } })", *std::move(store));
  Start();
  RunRounds(1, 2);
  v1::UpdateRunRequest request;
  request.set_run("test");
  request.add_set("codec.reply.format=NUMBER_FORMAT_INT4");
  const auto updated = host()->UpdateRun(request);
  ASSERT_TRUE(updated.ok()) << updated.status();
  BareRound(3);  // was open
  BareRound(4);
  coordinator_ = nullptr;
  store_ = nullptr;
  const auto report = CheckRocksStore(options_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->status.ok()) << report->status;
}

}  // namespace
}  // namespace isthmus
