// Nodes that come while rounds are committed, and one that was away for long: trainers, agents and
// a coordinator in one process, over real connections. ISTHMUS_JOINS and ISTHMUS_ROUNDS_AWAY make
// it longer; what was measured is printed.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "spec/run_spec.h"
#include "tests/worker/agent_fixture.h"
#include "tests/worker/observed_node.h"
#include "tests/worker/torch_fixture.h"

namespace isthmus {
namespace {

constexpr uint64_t kSnapshotEvery = 20;
constexpr uint64_t kKeptRounds = 60;

uint64_t FromEnvironment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

class JoinsTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& nodes, uint32_t quorum) {
    v1::RunSpec spec = SmallSpec();
    spec.clear_nodes();
    for (const std::string& node : nodes) spec.add_nodes()->set_name(node);
    spec.set_steps(1000000);
    spec.set_quorum(quorum);
    spec.mutable_model()->set_layers(1);
    spec.mutable_data()->set_sequences_per_node(1);
    spec.mutable_data()->set_eval_sequences(1);
    spec.mutable_snapshot()->set_every_rounds(kSnapshotEvery);
    v1::TimingSpec* timing = spec.mutable_timing();
    timing->set_lease_ms(1500);
    timing->set_heartbeat_ms(100);
    timing->set_deadline_ms(2000);
    timing->set_grace_ms(1000);
    ASSERT_TRUE(CompleteRunSpec(&spec).ok());
    coordinator_ = std::make_unique<TestCoordinator>(
        spec, "127.0.0.1:0", StoreLimits{kKeptRounds, kKeptUpdateBytesMax, kStoredDigestRounds});
    data_ = WriteText("joins.txt", 20000, 1);
  }

  std::unique_ptr<TestAgent> StartAgent(const std::string& node) {
    AgentOptions options;
    options.node = node;
    options.coordinator = coordinator_->address();
    options.state_dir = folder_.path() + "/state-" + node;
    return std::make_unique<TestAgent>(options, folder_.Socket(node));
  }

  std::unique_ptr<ObservedNode> StartTrainer(const std::string& node) {
    return std::make_unique<ObservedNode>(folder_.Socket(node), data_);
  }

  TestFolder folder_;
  std::unique_ptr<TestCoordinator> coordinator_;
  std::string data_;
};

// What the joiner held when it joined, and what it computed its first contribution on, is what the
// node that was there all along had after that very round, and after no other.
void CheckJoiner(const ObservedNode& joiner, const ObservedNode& witness) {
  const std::map<uint64_t, std::string> states = joiner.states();
  ASSERT_TRUE(Eventually([&] { return witness.last_round() >= states.rbegin()->first; }));
  const std::map<uint64_t, std::string> truth = witness.states();
  for (const auto& [round, sha256] : states) {
    const auto same = truth.find(round);
    ASSERT_NE(same, truth.end()) << round;
    EXPECT_EQ(same->second, sha256) << round;
  }
  const uint64_t base = joiner.sent().front() - 1;
  ASSERT_EQ(states.count(base), 1u) << base;
  EXPECT_EQ(std::count_if(truth.begin(), truth.end(),
                          [&](const auto& state) { return state.second == states.at(base); }),
            1);
}

TEST_F(JoinsTest, AJoinerAtAnyMomentIsBitEqual) {
  const uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const uint64_t joins = FromEnvironment("ISTHMUS_JOINS", 12);
  Start({"a", "b", "late"}, 2);
  const auto agent_a = StartAgent("a"), agent_b = StartAgent("b");
  const auto a = StartTrainer("a"), b = StartTrainer("b");
  ASSERT_TRUE(Eventually([&] { return a->last_round() > kKeptRounds + kSnapshotEvery; }));
  uint64_t equal = 0, fetched = 0;
  for (uint64_t i = 0; i < joins && !HasFailure(); ++i) {
    const uint64_t begin = a->last_round() + random() % kSnapshotEvery;
    ASSERT_TRUE(Eventually([&] { return a->last_round() >= begin; }));
    const auto agent = StartAgent("late");
    const auto late = StartTrainer("late");
    ASSERT_TRUE(Eventually([&] {
      return !late->sent().empty() && late->last_round() >= late->sent().front();
    })) << late->Stop();
    const absl::Status ended = late->Stop();
    EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
    agent->agent().Stop("the test is done with it");
    CheckJoiner(*late, *a);
    fetched += late->joined().front() > 0 ? 1 : 0;
    equal += HasFailure() ? 0 : 1;
  }
  EXPECT_EQ(fetched, joins);  // the start state is far behind what is kept
  std::printf("result joins joins=%llu equal=%llu by_snapshot=%llu rounds=%llu met=%d\n",
              static_cast<unsigned long long>(joins), static_cast<unsigned long long>(equal),
              static_cast<unsigned long long>(fetched),
              static_cast<unsigned long long>(a->last_round()), equal == joins ? 1 : 0);
}

TEST_F(JoinsTest, ANodeThatWasOutForLongReturnsBySnapshot) {
  const uint64_t away = FromEnvironment("ISTHMUS_ROUNDS_AWAY", 200);
  Start({"a", "b"}, 1);
  const auto agent_a = StartAgent("a");
  auto agent_b = StartAgent("b");
  const auto a = StartTrainer("a"), b = StartTrainer("b");
  ASSERT_TRUE(Eventually([&] { return b->sent().size() > 5 && a->last_round() > 5; }));
  agent_b = nullptr;  // its trainer waits
  ASSERT_TRUE(Eventually([&] { return b->last_round() + 3 < a->last_round(); }));
  const uint64_t out_at = b->last_round();
  const uint64_t bytes_before = a->sent_bytes(), rounds_before = a->last_round();
  // As long as it goes on.
  for (uint64_t goal = out_at; goal < out_at + away;) {
    goal = std::min(goal + 100, out_at + away);
    ASSERT_TRUE(Eventually([&] { return a->last_round() >= goal; })) << a->last_round();
  }
  const double bytes_a_round = static_cast<double>(a->sent_bytes() - bytes_before) /
                               static_cast<double>(a->last_round() - rounds_before);
  const size_t sent_before = b->sent().size();
  const auto back = std::chrono::steady_clock::now();
  agent_b = StartAgent("b");
  ASSERT_TRUE(Eventually([&] {
    const std::vector<uint64_t> sent = b->sent();
    return sent.size() > sent_before && b->last_round() >= sent[sent_before] &&
           sent.back() > out_at + away / 2;
  }));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - back).count();
  const std::vector<uint64_t> joined = b->joined();
  EXPECT_GT(joined.back(), out_at + away / 2);  // by snapshot
  const uint64_t reached = b->last_round();
  ASSERT_TRUE(Eventually([&] { return a->last_round() >= reached; }));
  const std::map<uint64_t, std::string> truth = a->states();
  uint64_t equal = 0, compared = 0;
  for (const auto& [round, sha256] : b->states()) {
    if (round > reached || round < joined.back()) continue;
    ++compared;
    equal += truth.at(round) == sha256 ? 1 : 0;
  }
  EXPECT_GT(compared, 0u);
  EXPECT_EQ(equal, compared);
  std::printf(
      "result node_out rounds=%llu seconds=%.2f bytes_per_round=%.0f compared=%llu equal=%llu "
      "met=%d\n",
      static_cast<unsigned long long>(away), seconds, bytes_a_round,
      static_cast<unsigned long long>(compared), static_cast<unsigned long long>(equal),
      HasFailure() ? 0 : 1);
}

}  // namespace
}  // namespace isthmus
