// R22: a coordinator that starts again while many agents wait for it. Their sessions are the real
// ones, in one process; nothing is trained. Prints what it measured for ./dev bench faults.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/server/fakes.h"
#include "tests/server/served.h"
#include "transport/backoff.h"
#include "transport/session.h"

namespace isthmus {
namespace {

constexpr int kAgents = 64;
// The goal; and, with a lease of 15 s, far from anybody losing it.
constexpr int64_t kSpreadMsMin = 2000, kBackMsMax = 8000;

// Notes when sessions have joined.
class Joins {
 public:
  void Add(size_t agent) {
    std::lock_guard<std::mutex> lock(mutex_);
    times_[agent].push_back(NowMs());
    changed_.notify_all();
  }
  // Whether all agents have joined so often, in time.
  bool Wait(size_t often) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(kWaitMsMax), [&] {
      return std::all_of(times_.begin(), times_.end(),
                         [&](const auto& one) { return one.size() >= often; });
    });
  }
  // When each agent joined for the n-th time, in order.
  std::vector<int64_t> Times(size_t n) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t> times;
    for (const auto& one : times_) {
      if (one.size() >= n) times.push_back(one[n - 1]);
    }
    std::sort(times.begin(), times.end());
    return times;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<int64_t>> times_{kAgents};
};

class Agent final : public SessionListener {
 public:
  Agent(Joins* joins, size_t number, const std::string& address) : joins_(joins), number_(number) {
    SessionOptions options;
    options.client.address = address;
    options.join = FakeNode(nullptr, "n" + std::to_string(number)).join_request;
    options.listener = this;
    options.backoff_seed = RandomBackoffSeed();
    auto session = Session::Start(options);
    EXPECT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
  }
  void OnJoined(const v1::JoinRunResponse&) override { joins_->Add(number_); }
  void OnOpened(const v1::RoundOpened&) override {}
  void OnUpdate(std::shared_ptr<const CommittedUpdate>) override {}
  void OnFinished(uint64_t) override {}
  void OnEnded(const absl::Status& status) override { ADD_FAILURE() << status; }
  void OnWaiting(const std::string&) override {}

 private:
  Joins* const joins_;
  const size_t number_;
  std::unique_ptr<Session> session_;
};

// The most of these times that lie within 100 ms.
size_t MostAtOnce(const std::vector<int64_t>& times) {
  size_t most = 0;
  for (auto from = times.begin(); from != times.end(); ++from) {
    const auto to = std::lower_bound(from, times.end(), *from + 100);
    most = std::max<size_t>(most, static_cast<size_t>(to - from));
  }
  return most;
}

TEST(ReconnectTest, AgentsComeBackSpread) {
  std::vector<std::string> names;
  for (int i = 0; i < kAgents; ++i) names.push_back("n" + std::to_string(i));
  const Folder state;
  Served served(TestSpec(names, 0, 5), {"--state_dir=" + state.File("state")});
  Joins joins;
  std::vector<std::unique_ptr<Agent>> agents;
  for (size_t i = 0; i < kAgents; ++i) {
    agents.push_back(std::make_unique<Agent>(&joins, i, served.address));
  }
  ASSERT_TRUE(joins.Wait(1));

  served.Restart();
  const int64_t serves_ms = NowMs();
  EXPECT_TRUE(joins.Wait(2));
  const std::vector<int64_t> times = joins.Times(2);
  ASSERT_FALSE(times.empty());
  const int64_t spread_ms = times.back() - times.front();
  std::cout << "measured r22 agents=" << kAgents << " joined_again=" << times.size()
            << " spread_ms=" << spread_ms
            << " back_ms=" << std::max<int64_t>(0, times.back() - serves_ms)
            << " most_in_100_ms=" << MostAtOnce(times) << "\n";
  EXPECT_GE(spread_ms, kSpreadMsMin);
  EXPECT_LE(times.back() - serves_ms, kBackMsMax);
  EXPECT_EQ(served.Log().find("accept"), std::string::npos) << served.Log();
}

}  // namespace
}  // namespace isthmus
