// R14: what earlier releases left on disk is gone on with, and what their agents and coordinators
// said is understood. The records are in tests/releases; its README says how one is made.
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "server/rocks_store.h"
#include "spec/run_spec.h"
#include "tests/releases/conversation.h"
#include "transport/update_reader.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;
using google::protobuf::util::MessageDifferencer;

constexpr char kFolder[] = "tests/releases/";
const char* const kReleases[] = {"v0_1_0"};

class ReleaseTest : public ::testing::TestWithParam<const char*> {
 protected:
  ReleaseTest() : recorded_(std::string(kFolder) + GetParam()) {
    std::string name = ::testing::TempDir() + "/release_XXXXXX";
    root_ = mkdtemp(name.data());
    fs::create_directory(root_ + "/state");
    for (const auto& file : fs::directory_iterator(recorded_ + "/state")) {
      const std::string copy = root_ + "/state/" + file.path().filename().string();
      fs::copy_file(file.path(), copy);
      fs::permissions(copy, fs::perms::owner_all);
    }
  }
  ~ReleaseTest() override { fs::remove_all(root_); }

  std::vector<Said> Conversation() const {
    auto all = ReadConversation(recorded_ + "/conversation.txt");
    EXPECT_TRUE(all.ok()) << all.status();
    return all.ok() ? *std::move(all) : std::vector<Said>();
  }

  RocksStoreOptions Options() const {
    RocksStoreOptions options;
    options.dir = root_ + "/state";
    return options;
  }

  const std::string recorded_;
  std::string root_;
};

template <typename Message>
Message Parse(const std::string& bytes) {
  Message message;
  EXPECT_TRUE(message.ParseFromString(bytes));
  return message;
}

// Whether all that was said then is said now. More may be, and sentences may read otherwise.
template <typename Message>
void ExpectSaid(const std::string& then, const std::string& now) {
  const auto recorded = Parse<Message>(then), said = Parse<Message>(now);
  MessageDifferencer differencer;
  differencer.set_scope(MessageDifferencer::PARTIAL);
  for (const char* free : {"server_version", "waiting_for"}) {
    if (const auto* field = Message::descriptor()->FindFieldByName(free)) {
      differencer.IgnoreField(field);
    }
  }
  std::string differences;
  differencer.ReportDifferencesToString(&differences);
  EXPECT_TRUE(differencer.Compare(recorded, said)) << differences;
}

void ExpectAnswer(const Said& said, const std::string& now) {
  if (said.kind == "join") return ExpectSaid<v1::JoinRunResponse>(said.answer, now);
  if (said.kind == "heartbeat") return ExpectSaid<v1::HeartbeatResponse>(said.answer, now);
  if (said.kind == "leave") return ExpectSaid<v1::LeaveRunResponse>(said.answer, now);
  if (said.kind == "event") return ExpectSaid<v1::WatchUpdatesResponse>(said.answer, now);
  if (said.kind == "end") return ExpectSaid<v1::SubmitResponse>(said.answer, now);
  EXPECT_EQ(said.answer, now);
}

TEST_P(ReleaseTest, ItsStoreIsSound) {
  const auto report = CheckRocksStore(Options());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->status.ok()) << report->status;
}

// Its agents against this coordinator, on the folder that its coordinator left.
TEST_P(ReleaseTest, ItsAgentsGoOnWithItsRunHere) {
  auto store = OpenRocksStore(Options());
  ASSERT_TRUE(store.ok()) << store.status();
  const StoredState state = (*store)->State();
  ASSERT_TRUE(state.run.has_value());
  v1::RunSpec spec = state.run->spec();
  ASSERT_TRUE(CompleteRunSpec(&spec).ok());  // as server/runs.cc does: with fields of today
  const uint64_t first = state.last_round;
  TestCoordinator coordinator(spec, *std::move(store));
  Speaker speaker(coordinator.host.get());
  int requests = 0;
  for (const Said& said : Conversation()) {
    SCOPED_TRACE(said.node + " " + said.kind);
    const auto answer = speaker.Say(said.node, said.kind, said.request);
    ASSERT_TRUE(answer.ok()) << answer.status();
    ExpectAnswer(said, *answer);
    ++requests;
  }
  EXPECT_TRUE(coordinator.host->finished());
  std::printf("measured r14 release=%s from_round=%d rounds=%d messages=%d\n", GetParam(),
              static_cast<int>(first), static_cast<int>(spec.steps() - first), requests);
}

// Its coordinator against this release's reader of watches and specs.
TEST_P(ReleaseTest, WhatItsCoordinatorSaidIsRead) {
  std::map<std::string, std::unique_ptr<UpdateReader>> readers;
  std::map<std::string, int> updates;
  for (const Said& said : Conversation()) {
    SCOPED_TRACE(said.node + " " + said.kind);
    if (said.kind == "join") {
      const auto joined = Parse<v1::JoinRunResponse>(said.answer);
      v1::RunSpec spec = joined.spec();
      const absl::Status complete = CompleteRunSpec(&spec);
      ASSERT_TRUE(complete.ok()) << complete;
      ExpectSaid<v1::RunSpec>(joined.spec().SerializeAsString(), spec.SerializeAsString());
    } else if (said.kind == "watch") {
      const auto request = Parse<v1::WatchUpdatesRequest>(said.request);
      const RoundHash after = {request.last_round(), request.last_update_sha256()};
      readers[said.node] = std::make_unique<UpdateReader>(after);
      readers[said.node]->StartWatch(after, /*from_coordinator=*/true);
    } else if (said.kind == "event") {
      auto event = Parse<v1::WatchUpdatesResponse>(said.answer);
      const auto news = readers[said.node]->Take(&event);
      ASSERT_TRUE(news.ok()) << news.status();
      updates[said.node] += news->update != nullptr ? 1 : 0;
    }
  }
  EXPECT_EQ(updates.size(), 2u);
  for (const auto& [node, count] : updates) EXPECT_EQ(count, 3) << node;
}

INSTANTIATE_TEST_SUITE_P(All, ReleaseTest, ::testing::ValuesIn(kReleases),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace isthmus
