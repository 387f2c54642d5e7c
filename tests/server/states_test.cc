// Nodes whose states are compared at the coordinator: who heals, and how; what an operator chooses
// where none has a majority; what outlives the process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "server/monitor_view.h"
#include "tests/server/hosted_runs.h"
#include "tests/server/snapshot_states.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Hash(char letter) { return std::string(32, letter); }

v1::HeartbeatRequest Checks(const FakeNode& node, const std::string& name,
                            const std::map<uint64_t, std::string>& states) {
  v1::HeartbeatRequest request;
  request.set_run("test");
  request.set_node(name);
  request.set_incarnation(node.joined.incarnation());
  for (const auto& [round, sha256] : states) {
    v1::StateReport* const check = request.add_checks();
    check->set_round(round);
    check->set_sha256(sha256);
  }
  return request;
}

class StatesTest : public SnapshotFixture {
 protected:
  void BeginRun(const std::vector<std::string>& nodes, uint32_t quorum = 0, uint64_t steps = 20) {
    v1::RunSpec spec = TestSpec(nodes, quorum, steps);
    spec.set_check_every(2);
    Begin(spec, MakeMemoryStore());
    for (size_t i = 0; i < nodes.size(); ++i) node(i).JoinAndWatch();
  }
  absl::Status Say(size_t number, const std::map<uint64_t, std::string>& states) {
    v1::HeartbeatRequest request = Checks(node(number), name(number), states);
    request.set_acknowledged_round(store_->last_round());
    return host()->Heartbeat(request).status();
  }
  // One letter a node; '.': it says nothing.
  void SayAll(uint64_t round, const std::string& letters) {
    for (size_t i = 0; i < letters.size(); ++i) {
      if (letters[i] == '.') continue;
      const absl::Status said = Say(i, {{round, Hash(letters[i])}});
      EXPECT_TRUE(said.ok()) << said;
    }
    host()->Tick();
  }
  absl::StatusOr<v1::ChooseStateResponse> Choose(const std::string& node) {
    v1::ChooseStateRequest request;
    request.set_node(node);
    return host()->ChooseState(request);
  }
  // As the node that has a state of that letter after the round.
  void Holds(size_t number, uint64_t round, char letter) {
    v1::JoinRunRequest& join = node(number).join_request;
    join.set_last_round(round);
    join.set_last_update_sha256(*store_->RecordSha256(round));
    join.set_state_sha256(Hash(letter));
  }
  // As the node that has this state after its round.
  void Holds(size_t number, const TestState& state) {
    v1::JoinRunRequest& join = node(number).join_request;
    join.set_last_round(state.facts.round());
    join.set_last_update_sha256(state.facts.update_sha256());
    join.set_state_sha256(state.facts.state_sha256());
  }
  v1::Run View() { return ViewOfRun(host()->Look(), {}, /*with_spec=*/false); }
  v1::Node ViewOf(size_t number) {
    const RunFacts facts = host()->Look();
    return ViewOfNode(facts, facts.nodes[number]);
  }
};

TEST_F(StatesTest, AMinorityHealsFromASnapshotThatAgrees) {
  BeginRun({"a", "b", "c"});
  Round(1, {0, 1, 2});
  SayAll(1, "XYZ");  // not a round that is checked
  Round(2, {0, 1, 2});
  SayAll(2, "XX.");
  EXPECT_EQ(View().state_check().agreed_round(), 2u);
  EXPECT_EQ(View().state_check().every_rounds(), 2u);
  ASSERT_TRUE(node(2).SubmitRandom(3, 1).ok());  // before it is known
  SayAll(2, "..Y");

  EXPECT_EQ(ViewOf(2).state(), v1::NODE_STATE_HEALING);
  EXPECT_EQ(ViewOf(2).outcome(), v1::NODE_OUTCOME_DIVERGED);
  EXPECT_EQ(ViewOf(2).diverged_round(), 2u);
  ASSERT_EQ(View().state_check().healing_size(), 1);
  EXPECT_EQ(View().state_check().healing(0).right_sha256(), Hash('X'));
  EXPECT_THAT(View().waiting_for(), HasSubstr("c heals from a snapshot"));
  // Nothing of it counts.
  EXPECT_TRUE(absl::IsFailedPrecondition(node(2).SubmitRandom(3, 1).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(Say(2, {{2, Hash('X')}})));
  Holds(2, 2, 'Y');
  absl::Status refused = node(2).Join();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(ReasonOf(refused), "NO_SNAPSHOT");

  // The others go on without it, and the next round's state is asked for of one of them.
  Round(3, {0, 1});
  EXPECT_EQ(Round(4, {0, 1})[0], v1::SNAPSHOT_DUTY_UPLOAD);
  const TestState state = StateOf(1);
  UploadAll(0, state);
  ASSERT_TRUE(Report(1, state).ok());
  ASSERT_TRUE(host()->FinishSnapshot().ok());
  ASSERT_THAT(Kept(), ElementsAre(4));
  refused = node(2).Join();
  EXPECT_TRUE(AsksForSnapshot(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("fetch that of round 4"));
  // A state that is not the snapshot's heals nobody.
  Holds(2, state);
  node(2).join_request.set_state_sha256(Hash('Y'));
  EXPECT_TRUE(AsksForSnapshot(node(2).Join()));
  node(2).join_request.set_state_sha256(state.facts.state_sha256());
  node(2).JoinAndWatch();
  EXPECT_THAT(View().state_check().healing(), IsEmpty());
  EXPECT_EQ(View().state_check().diverged_count(), 1u);
  EXPECT_EQ(View().state_check().healed_count(), 1u);
  EXPECT_NE(ViewOf(2).state(), v1::NODE_STATE_HEALING);
  Round(5, {0, 1, 2});
}

TEST_F(StatesTest, WhoHealsDoesSoAfterARestart) {
  BeginRun({"a", "b", "c"});
  Round(1, {0, 1, 2});
  Round(2, {0, 1, 2});
  SayAll(2, "XXY");
  Restart();
  EXPECT_EQ(ViewOf(2).state(), v1::NODE_STATE_HEALING);
  Holds(2, 2, 'Y');
  EXPECT_EQ(ReasonOf(node(2).Join()), "NO_SNAPSHOT");
  // Who begins from the start state and takes every update is right as well.
  node(2).join_request.set_last_round(0);
  node(2).join_request.clear_last_update_sha256();
  node(2).join_request.set_state_sha256(Sha256Of("start state"));
  EXPECT_TRUE(node(2).Join().ok());
  EXPECT_EQ(View().state_check().healed_count(), 1u);
  Restart();
  EXPECT_NE(ViewOf(2).state(), v1::NODE_STATE_HEALING);
}

TEST_F(StatesTest, WhatIsKnownToBeRightHealsWithoutASnapshot) {
  BeginRun({"a", "b", "c"});
  Round(1, {0, 1, 2});
  Round(2, {0, 1, 2});
  SayAll(2, "XXY");
  // Its trainers were started again, and computed what the others have.
  Holds(2, 2, 'X');
  node(2).JoinAndWatch();
  EXPECT_EQ(View().state_check().healed_count(), 1u);
  EXPECT_EQ(node(2).ExpectOpened(3).round(), 3u);
}

TEST_F(StatesTest, WithoutAMajorityTheRunStandsUntilAnOperatorChooses) {
  BeginRun({"a", "b"});
  for (uint64_t round : {1, 2}) Round(round, {0, 1});
  SayAll(2, "XX");
  for (uint64_t round : {3, 4}) Round(round, {0, 1});
  EXPECT_THAT(std::string(Choose("a").status().message()), HasSubstr("nothing to choose"));
  SayAll(4, "XY");
  // The open round finishes.
  for (size_t i : {0, 1}) {
    node(i).ExpectOpened(5);
    ASSERT_TRUE(node(i).SubmitRandom(5, 1).ok());
  }
  ASSERT_TRUE(host()->CommitOne().ok());
  for (size_t i : {0, 1}) node(i).ExpectUpdate(5);
  EXPECT_EQ(host()->Look().machine.open_round(), 0u);
  for (int restarts = 0; restarts < 2; ++restarts) {
    const v1::Run run = View();
    EXPECT_EQ(run.state(), v1::RUN_STATE_DISPUTED);
    EXPECT_THAT(run.waiting_for(),
                AllOf(HasSubstr("differ after round 4"), HasSubstr(" on a"), HasSubstr(" on b"),
                      HasSubstr("the last round in agreement is 2"),
                      HasSubstr("isthmusctl runs choose test --node=")));
    EXPECT_EQ(run.state_check().disputed_round(), 4u);
    EXPECT_EQ(run.state_check().agreed_round(), 2u);
    EXPECT_EQ(run.state_check().disputed_size(), 2);
    EXPECT_FALSE(run.is_paused());
    const absl::Status resumed = host()->ResumeRun(v1::ResumeRunRequest()).status();
    EXPECT_EQ(ReasonOf(resumed), "STATES_DISPUTED") << resumed;
    if (restarts > 0) break;
    Restart();
    for (size_t i : {0, 1}) {
      Holds(i, 5, 'Z');
      node(i).JoinAndWatch();
    }
  }
  EXPECT_TRUE(absl::IsNotFound(Choose("z").status()));
  for (int times = 0; times < 2; ++times) {
    const auto chosen = Choose("b");
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    EXPECT_EQ(chosen->round(), 4u);
    EXPECT_EQ(chosen->sha256(), Hash('Y'));
    EXPECT_THAT(chosen->right(), ElementsAre("b"));
    EXPECT_THAT(chosen->healing(), ElementsAre("a"));
  }
  EXPECT_THAT(std::string(Choose("a").status().message()), HasSubstr("was chosen"));
  EXPECT_EQ(ViewOf(0).state(), v1::NODE_STATE_HEALING);
  // Alone it goes on, and its state is the one that the other starts from.
  Round(6, {1});
  EXPECT_EQ(View().state(), v1::RUN_STATE_RUNNING);
  Restart();
  EXPECT_EQ(ViewOf(0).state(), v1::NODE_STATE_HEALING);
  const auto again = Choose("b");
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST_F(StatesTest, ALateReportMakesAMajority) {
  BeginRun({"a", "b", "c"});
  for (uint64_t round : {1, 2}) Round(round, {0, 1, 2});
  SayAll(2, "XY.");
  EXPECT_EQ(View().state_check().disputed_round(), 0u);
  // All go on living while one of them says nothing.
  for (int ms = 0; ms < kStateVerdictMs; ms += 1000) {
    coordinator_->clock.Advance(1000);
    for (size_t i : {0, 1, 2}) ASSERT_TRUE(node(i).Beat(2).ok());
    host()->Tick();
  }
  EXPECT_EQ(View().state_check().disputed_round(), 2u);
  SayAll(2, "..Y");
  EXPECT_EQ(View().state_check().disputed_round(), 0u);
  EXPECT_EQ(ViewOf(0).state(), v1::NODE_STATE_HEALING);
}

TEST_F(StatesTest, ASnapshotOfADivergedNodeIsGivenToNobody) {
  v1::RunSpec spec = TestSpec({"a", "b", "c"}, 0, 20);
  spec.set_check_every(4);
  spec.mutable_snapshot()->set_every_rounds(2);
  Begin(spec, MakeMemoryStore());
  for (size_t i : {0, 1, 2}) node(i).JoinAndWatch();
  Round(1, {0, 1, 2});
  EXPECT_EQ(Round(2, {0, 1, 2})[0], v1::SNAPSHOT_DUTY_UPLOAD);
  const TestState wrong = StateOf(1);
  UploadAll(0, wrong);
  // The others are slow to say what they have.
  for (int ms = 0; ms <= kSnapshotVerdictMs; ms += 1000) {
    coordinator_->clock.Advance(1000);
    for (size_t i : {0, 1, 2}) ASSERT_TRUE(node(i).Beat(2).ok());
    ASSERT_TRUE(host()->FinishSnapshot().ok());
  }
  ASSERT_THAT(Kept(), ElementsAre(2));
  Round(3, {0, 1, 2});
  Round(4, {0, 1, 2});
  SayAll(4, "YXX");
  for (int restarts = 0; restarts < 2; ++restarts) {
    EXPECT_EQ(ReasonOf(Fetch(absl::nullopt).status()), "NO_SNAPSHOT");
    Holds(0, wrong);
    EXPECT_EQ(ReasonOf(node(0).Join()), "NO_SNAPSHOT");
    Restart();
  }
}

TEST_F(StatesTest, ReportsHaveLimits) {
  BeginRun({"a", "b"});
  for (uint64_t round : {1, 2}) Round(round, {0, 1});
  std::map<uint64_t, std::string> many;
  for (uint64_t round = 1; round <= kStateReportsMax + 1; ++round) many[2 * round] = Hash('X');
  EXPECT_TRUE(absl::IsInvalidArgument(Say(0, many)));
  EXPECT_TRUE(absl::IsInvalidArgument(Say(0, {{2, "short"}})));
  // Rounds that are not there yet are nothing.
  EXPECT_TRUE(Say(0, {{4, Hash('X')}}).ok());
}

TEST_F(StatesTest, NothingIsComparedWhereItIsOff) {
  BeginRun({"a", "b"});
  v1::RunSpec spec = TestSpec({"a", "b"}, 0, 20);
  spec.set_check_every(0);
  Begin(spec, MakeMemoryStore());
  for (size_t i : {0, 1}) node(i).JoinAndWatch();
  Round(1, {0, 1});
  SayAll(1, "XY");
  EXPECT_EQ(View().state(), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(View().state_check().every_rounds(), 0u);
}

class HostedStatesTest : public HostedFixture {
 protected:
  std::string StateOf(uint64_t round, const std::vector<float>& x) {
    v1::SnapshotFacts facts = StartFacts();
    facts.set_step(StepAfterRound(spec_, round));
    StateHasher hasher(*grid_, facts);
    EXPECT_TRUE(hasher.Add(BytesOfValues(x)).ok());
    return *hasher.Finish();
  }
};

TEST_F(HostedStatesTest, WhoHostsTheModelIsRight) {
  Begin("preset: 'diloco' placement: PLACEMENT_HOSTED snapshot { start_node: 'a' } check_every: 2");
  Start();
  RunRounds(1, 2);
  const std::string right = StateOf(2, nodes_[0].x);
  // Two agree with each other, and not with the coordinator.
  for (size_t i : {0, 1}) {
    ASSERT_TRUE(host()->Heartbeat(Checks(speaker(i), i == 0 ? "a" : "b", {{2, Hash('Y')}})).ok());
  }
  ASSERT_TRUE(host()->Heartbeat(Checks(speaker(2), "c", {{2, right}})).ok());
  host()->Tick();
  const v1::Run run = ViewOfRun(host()->Look(), {}, false);
  ASSERT_EQ(run.state_check().healing_size(), 2);
  EXPECT_EQ(run.state_check().healing(0).right_sha256(), right);
  EXPECT_EQ(run.state_check().agreed_round(), 2u);
  // There is a snapshot, and all updates since; or the node has what is right by now.
  speaker(0).join_request.set_last_round(2);
  speaker(0).join_request.set_last_update_sha256(*store_->RecordSha256(2));
  speaker(0).join_request.set_state_sha256(Hash('Y'));
  EXPECT_TRUE(AsksForSnapshot(speaker(0).Join()));
  speaker(0).join_request.set_last_round(2);
  speaker(0).join_request.set_last_update_sha256(*store_->RecordSha256(2));
  speaker(0).join_request.set_state_sha256(right);
  EXPECT_TRUE(speaker(0).Join().ok());
  v1::ChooseStateRequest request;
  request.set_node("a");
  EXPECT_THAT(std::string(host()->ChooseState(request).status().message()),
              HasSubstr("the coordinator hosts the model"));
}

}  // namespace
}  // namespace isthmus
