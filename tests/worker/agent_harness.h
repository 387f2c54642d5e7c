// One run for a test: a coordinator, agents by name, and ranks that play their part.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/agent_fixture.h"

namespace isthmus {

class AgentTest : public ::testing::Test {
 protected:
  // Spec of `nodes`; the coordinator starts with it.
  void StartRun(const std::vector<std::string>& nodes, uint64_t steps) {
    StartRun(SmallSpec(nodes, steps));
  }
  void StartRun(const v1::RunSpec& spec) {
    spec_ = spec;
    grid_ = std::make_unique<Grid>(SmallGrid(spec_));
    coordinator_ = std::make_unique<TestCoordinator>(spec_);
  }

  AgentOptions Options(const std::string& node, uint32_t ranks) {
    AgentOptions options;
    options.node = node;
    options.coordinator = coordinator_->address();
    options.ranks = ranks;
    options.state_dir = folder_.path() + "/state-" + node;
    return options;
  }
  void StartAgent(const AgentOptions& options) {
    agents_[options.node] = std::make_unique<TestAgent>(options, folder_.Socket(options.node));
  }
  void StartAgent(const std::string& node, uint32_t ranks) { StartAgent(Options(node, ranks)); }
  void KillAgent(const std::string& node) { agents_.erase(node); }

  std::unique_ptr<RankClient> MakeRank(const std::string& node, int64_t join_timeout_ms = 30000) {
    RankClientOptions options;
    options.agent = folder_.Socket(node);
    options.join_timeout_ms = join_timeout_ms;
    auto client = RankClient::Make(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  v1::JoinRunRequest Request(uint32_t rank, uint32_t ranks, char group = 'g') {
    return RankJoin(*grid_, rank, ranks, GroupId(group));
  }
  std::vector<std::string> Pieces(uint32_t rank, uint32_t ranks, uint64_t seed) {
    return PiecesOf(*grid_, PartOf(*grid_, rank, ranks), seed);
  }

  // Ranks of one node that have all joined, in the order of `order`.
  std::vector<std::unique_ptr<RankClient>> JoinAll(const std::string& node, uint32_t ranks,
                                                   char group = 'g') {
    std::vector<std::unique_ptr<RankClient>> clients;
    for (uint32_t rank = 0; rank < ranks; ++rank) clients.push_back(MakeRank(node));
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto joined = clients[rank]->Join(Request(rank, ranks, group));
        EXPECT_TRUE(joined.ok()) << joined.status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return clients;
  }
  // Every wait of `clients` for the round; it is the same for all.
  v1::RoundOpened Opened(const std::vector<std::unique_ptr<RankClient>>& clients) {
    v1::RoundOpened round;
    for (const auto& client : clients) {
      const auto opened = client->WaitOpened();
      EXPECT_TRUE(opened.ok()) << opened.status();
      if (!opened.ok() || !opened->has_value()) {
        ADD_FAILURE() << "no round opened";
        return round;
      }
      round = **opened;
    }
    return round;
  }
  // The next update at every rank, acknowledged.
  std::vector<RankClient::Update> Updates(const std::vector<std::unique_ptr<RankClient>>& clients) {
    std::vector<RankClient::Update> updates;
    for (const auto& client : clients) {
      const auto update = client->WaitUpdate();
      EXPECT_TRUE(update.ok()) << update.status();
      if (!update.ok()) break;
      client->Acknowledge(*update);
      updates.push_back(*update);
    }
    return updates;
  }

  TestFolder folder_;
  v1::RunSpec spec_;
  std::unique_ptr<Grid> grid_;
  std::unique_ptr<TestCoordinator> coordinator_;
  std::map<std::string, std::unique_ptr<TestAgent>> agents_;
};

}  // namespace isthmus
