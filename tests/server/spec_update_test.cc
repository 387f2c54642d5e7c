// Another spec for a run under way: what it changes, what it may not, and what rounds become.
#include "server/spec_update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/limits.h"
#include "server/spec_difference.h"
#include "server/spec_revisions.h"
#include "spec/rounds.h"
#include "tests/server/outer_runs.h"
#include "tests/server/payloads.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Changes(const v1::RunSpec& last, const std::vector<std::string>& set) {
  const auto spec = UpdatedSpec(last, last.run(), "", set);
  if (!spec.ok()) return std::string(spec.status().message());
  return ChangesText(SpecChanges(last, *spec));
}

TEST(SpecUpdate, FieldsAreSetAndListed) {
  const v1::RunSpec last = TestSpec({"a", "b"}, 0, 100);
  EXPECT_EQ(Changes(last, {}), "");
  EXPECT_EQ(Changes(last, {"optimizer.lr=0.5", "steps=200"}),
            "steps 100 -> 200, optimizer.lr 0.01 -> 0.5");
  // What follows from it by default is filled in, and listed.
  EXPECT_EQ(Changes(last, {"quorum=1"}), "quorum 0 -> 1, timing.deadline_ms 0 -> 60000");
  EXPECT_EQ(Changes(last, {"codec.sign="}), "");
  EXPECT_EQ(Changes(last, {"optimizer.weight_decay=0.1", "optimizer.weight_decay="}), "");
  EXPECT_EQ(Changes(last, {"optimizer.base=BASE_OPTIMIZER_ADAMW"}),
            "optimizer.base BASE_OPTIMIZER_SGD -> BASE_OPTIMIZER_ADAMW");
}

// A run of a release before codec.numbers: no update may give it today's layouts by the way.
TEST(SpecUpdate, AnOlderRunKeepsItsLayouts) {
  v1::RunSpec older = TestSpec({"a", "b"}, 0, 100);
  older.mutable_codec()->clear_update_form();
  older.mutable_codec()->clear_numbers();
  for (const char* field : {"codec.matrix_density=", "codec.beta=", "codec.sign="}) {
    EXPECT_EQ(Changes(older, {field}), "") << field;
  }
  EXPECT_EQ(Changes(older, {"codec.matrix_density=0.5"}), "codec.matrix_density 0.0078125 -> 0.5");
  v1::RunSpec given = older;
  given.mutable_codec()->mutable_numbers()->set_format(v1::NUMBER_FORMAT_F32);
  EXPECT_EQ(SpecDifference(older, given),
            "codec.numbers is not set there and { format: NUMBER_FORMAT_F32 } here");
  EXPECT_EQ(SpecDifference(given, older),
            "codec.numbers is { format: NUMBER_FORMAT_F32 } there and not set here");
}

TEST(SpecUpdate, AWholeSpecIsTakenAsItIs) {
  const v1::RunSpec last = TestSpec({"a", "b"}, 0, 100);
  v1::RunSpec other = last;
  other.set_run("other");
  other.mutable_optimizer()->set_lr(0.25f);
  const auto spec = UpdatedSpec(last, "test", other.DebugString(), {"optimizer.clip_norm=1"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(ChangesText(SpecChanges(last, *spec)),
            "optimizer.lr 0.01 -> 0.25, optimizer.clip_norm 0 -> 1");
}

TEST(SpecUpdate, WhatIsNoFieldOrNoValueIsNamed) {
  const v1::RunSpec last = TestSpec({"a", "b"}, 0, 100);
  EXPECT_THAT(Changes(last, {"optimizer.rate=1"}), HasSubstr("OptimizerSpec has no field 'rate'"));
  EXPECT_THAT(Changes(last, {"steps.x=1"}), HasSubstr("steps has no fields"));
  EXPECT_THAT(Changes(last, {"optimizer=1"}), HasSubstr("'optimizer' is no single value"));
  EXPECT_THAT(Changes(last, {"nodes=1"}), HasSubstr("'nodes' is no single value"));
  EXPECT_THAT(Changes(last, {"lr"}), HasSubstr("write FIELD=VALUE"));
  EXPECT_THAT(Changes(last, {"=1"}), HasSubstr("write FIELD=VALUE"));
  EXPECT_THAT(Changes(last, {"steps=many"}), HasSubstr("that is no uint64 value"));
  EXPECT_THAT(Changes(last, {"steps=5 quorum: 1"}), HasSubstr("that is no uint64 value"));
  EXPECT_THAT(Changes(last, {"steps=0"}), HasSubstr("steps is 0"));
  EXPECT_THAT(Changes(last, {"codec.chunk_rule=X"}),
              HasSubstr("that is no enum value; give CHUNK_RULE_TILES, CHUNK_RULE_DIVISOR"));
  EXPECT_THAT(Changes(last, {"codec.topk_k=3"}), HasSubstr("codec.topk_k has no effect"));
  EXPECT_THAT(Changes(last, {"preset=full"}), HasSubstr("give a whole spec, with --spec"));
  EXPECT_THAT(Changes(last, std::vector<std::string>(65, "steps=5")), HasSubstr("limit is 64"));
}

TEST(SpecUpdate, EveryFieldThatStaysIsNamedWithBothValues) {
  const v1::RunSpec last = TestSpec({"a", "b"}, 0, 100);
  const auto spec = UpdatedSpec(last, "test", "", {"seed=7", "optimizer.lr=0.5", "model.width=16"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  const absl::Status refused = CheckMayChange(SpecChanges(last, *spec));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(refused), "SPEC_FIELD_FIXED");
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("seed (0 -> 7), model.width (8 -> 16)"),
                    testing::Not(HasSubstr("optimizer.lr"))));
  const auto fine = UpdatedSpec(last, "test", "", {"optimizer.lr=0.5", "timing.lease_ms=9000"});
  ASSERT_TRUE(fine.ok()) << fine.status();
  EXPECT_TRUE(CheckMayChange(SpecChanges(last, *fine)).ok());
}

// All that does not cut the model, or decide what is kept of it, is taken up in the round.
TEST(SpecUpdate, WhatRunsAndTheirNodesTakeUp) {
  v1::RunSpec hosted;
  hosted.set_run("test");
  hosted.set_steps(100);
  hosted.add_nodes()->set_name("a");
  hosted.add_nodes()->set_name("b");
  hosted.set_preset("diloco");
  hosted.mutable_model()->set_layers(1);
  hosted.mutable_model()->set_heads(1);
  hosted.mutable_model()->set_width(8);
  hosted.mutable_model()->set_context(8);
  hosted.mutable_data()->set_sequences_per_node(8);
  hosted.mutable_optimizer()->set_lr(0.01f);
  const absl::Status complete = CompleteRunSpec(&hosted);
  ASSERT_TRUE(complete.ok()) << complete;
  const auto can = [&](const v1::RunSpec& last, const std::string& field) {
    const auto spec = UpdatedSpec(last, "test", "", {field});
    EXPECT_TRUE(spec.ok()) << spec.status();
    const auto changes = SpecChanges(last, *spec);
    EXPECT_TRUE(CheckMayChange(changes).ok()) << CheckMayChange(changes);
    return CheckNodesCanChange(changes).ok() && CheckKeepsState(last, *spec).ok();
  };
  EXPECT_TRUE(can(hosted, "outer.lr=0.25"));
  EXPECT_TRUE(can(hosted, "aggregate.kind=AGGREGATE_KIND_MEDIAN"));
  EXPECT_TRUE(can(hosted, "optimizer.lr=0.25"));
  EXPECT_TRUE(can(hosted, "optimizer.weight_decay=0.25"));
  EXPECT_TRUE(can(hosted, "schedule.local_steps=7"));
  EXPECT_TRUE(can(hosted, "codec.numbers.format=NUMBER_FORMAT_INT8"));
  EXPECT_FALSE(can(hosted, "codec.reply.format=NUMBER_FORMAT_INT8"));  // F32 is exact
  EXPECT_FALSE(can(hosted, "timing.heartbeat_ms=1000"));
  v1::RunSpec replicated = hosted;
  replicated.set_placement(v1::PLACEMENT_REPLICATED);
  EXPECT_TRUE(can(replicated, "outer.lr=0.25"));
  EXPECT_TRUE(can(replicated, "quorum=1"));
  const v1::RunSpec every_step = TestSpec({"a", "b"}, 0, 100);
  EXPECT_TRUE(can(every_step, "optimizer.lr=0.5"));
  EXPECT_TRUE(can(every_step, "optimizer.clip_norm=0.5"));
  EXPECT_TRUE(can(every_step, "steps=200"));
  EXPECT_TRUE(can(every_step, "codec.matrix_density=0.5"));
  EXPECT_TRUE(can(every_step, "codec.numbers.format=NUMBER_FORMAT_INT4"));
  EXPECT_TRUE(can(every_step, "codec.update_form=UPDATE_FORM_DENSE"));
  v1::RunSpec dense = every_step;
  dense.mutable_codec()->set_kind(v1::CODEC_KIND_DENSE);
  dense.mutable_codec()->clear_numbers();
  dense.mutable_codec()->clear_update_form();
  EXPECT_TRUE(can(dense, "optimizer.clip_norm=0.5"));
}

v1::StoredRevision Revision(uint64_t number, uint64_t from_round, const v1::RunSpec& spec) {
  v1::StoredRevision revision;
  revision.set_revision(number);
  revision.set_from_round(from_round);
  *revision.mutable_spec() = spec;
  return revision;
}

TEST(SpecRevisions, HoldFromTheirRoundsOn) {
  v1::RunSpec spec = TestSpec({"a", "b"}, 0, 100);
  SpecRevisions revisions(spec);
  EXPECT_EQ(revisions.rounds(), 100u);
  EXPECT_EQ(revisions.RevisionOf(1), 1u);
  spec.mutable_optimizer()->set_lr(0.5f);
  ASSERT_TRUE(revisions.Check(spec, 10).ok());
  revisions.Add(Revision(2, 10, spec));
  spec.set_steps(50);
  ASSERT_TRUE(revisions.Check(spec, 20).ok());
  revisions.Add(Revision(3, 20, spec));
  spec.set_quorum(1);
  revisions.Add(Revision(4, 20, spec));  // in place of the third
  EXPECT_EQ(revisions.RevisionOf(9), 1u);
  EXPECT_EQ(revisions.RevisionOf(10), 2u);
  EXPECT_EQ(revisions.RevisionOf(19), 2u);
  EXPECT_EQ(revisions.RevisionOf(20), 4u);
  EXPECT_EQ(revisions.rounds(), 50u);
  EXPECT_EQ(revisions.StepAfter(50), 50u);
  EXPECT_EQ(revisions.After(10).size(), 2u);
  EXPECT_EQ(revisions.Stored().size(), 3u);
  const auto sentence = [&](uint64_t from_round) {
    return std::string(revisions.Check(spec, from_round).message());
  };
  EXPECT_THAT(sentence(19), HasSubstr("revision 4 holds from round 20 on"));
  EXPECT_THAT(sentence(52), HasSubstr("the run ends with round 50"));
  EXPECT_THAT(sentence(51), HasSubstr("steps is 50, but round 51 begins after step 50"));
  spec.set_steps(60);
  EXPECT_TRUE(revisions.Check(spec, 51).ok());
}

// A delta that was left out is as old as the spec of its time let it become.
TEST(SpecRevisions, LimitsAreThoseThatACarriedDeltaMayHaveSeen) {
  const auto spec = [](uint32_t local_steps, uint32_t carry_rounds, uint64_t steps_max = 0) {
    v1::RunSpec made = OuterRunSpec({"a", "b"}, "preset: 'diloco' quorum: 1 steps: 10000");
    made.mutable_schedule()->set_local_steps(local_steps);
    made.mutable_aggregate()->set_carry_rounds(carry_rounds);
    made.mutable_aggregate()->set_steps_max(steps_max);
    made.mutable_aggregate()->set_tokens_max(0);
    EXPECT_TRUE(CompleteRunSpec(&made).ok());
    return made;
  };
  SpecRevisions revisions(spec(30, 2));
  const auto steps = [&](uint64_t round) { return revisions.SizeLimitsOf(round).steps; };
  EXPECT_EQ(steps(1), 90u);
  EXPECT_EQ(revisions.SizeLimitsOf(1).tokens, kTokensMax);  // the spec names no model
  revisions.Add(Revision(2, 10, spec(5, 2)));
  EXPECT_EQ(steps(9), 90u);
  EXPECT_EQ(steps(11), 90u);  // rounds 9, 10 and 11
  EXPECT_EQ(steps(12), 15u);
  // Where it is carried longer, rounds of 5 steps may be as many as that.
  revisions.Add(Revision(3, 20, spec(3, 5)));
  EXPECT_EQ(steps(20), 30u);
  EXPECT_EQ(steps(24), 30u);
  EXPECT_EQ(steps(25), 18u);
  // Nothing is carried from then on; what was carried till then still counts.
  revisions.Add(Revision(4, 40, spec(2, 0)));
  EXPECT_EQ(steps(40), 18u);
  EXPECT_EQ(steps(41), 2u);
  // A limit that was given is one.
  revisions.Add(Revision(5, 50, spec(8, 1, 9)));
  EXPECT_EQ(steps(50), 9u);
  revisions.Add(Revision(6, 60, spec(1, 1, 7)));
  EXPECT_EQ(steps(60), 9u);
  EXPECT_EQ(steps(61), 7u);
  revisions.Add(Revision(7, 60, spec(1, 1, 4)));  // in place of the sixth
  EXPECT_EQ(steps(60), 9u);
  EXPECT_EQ(steps(61), 4u);
}

// Against the step from round to round that spec/rounds.h has.
TEST(SpecRevisions, StepsFollowFromAllRevisionsBefore) {
  const char* given = std::getenv("ISTHMUS_TEST_SEED");
  const uint32_t seed = given != nullptr ? std::atoi(given) : 1;
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto between = [&](uint64_t low, uint64_t high) {
    return std::uniform_int_distribution<uint64_t>(low, high)(random);
  };
  const auto pick = [&](v1::RunSpec* spec, uint64_t steps_min) {
    spec->set_steps(between(steps_min, steps_min + 60));
    v1::ScheduleSpec* schedule = spec->mutable_schedule();
    schedule->Clear();
    schedule->set_local_steps(static_cast<uint32_t>(between(1, 9)));
    if (between(0, 1) == 0) return;
    schedule->set_switch_step(between(1, spec->steps()));
    schedule->set_local_steps_after(static_cast<uint32_t>(between(1, 9)));
  };
  for (int round_of_test = 0; round_of_test < 300; ++round_of_test) {
    v1::RunSpec spec;
    spec.mutable_outer()->set_kind(v1::OUTER_KIND_SGD);
    pick(&spec, 1);
    SpecRevisions revisions(spec);
    std::vector<std::pair<uint64_t, v1::RunSpec>> plain = {{1, spec}};
    for (uint64_t number = 2; number <= between(1, 5); ++number) {
      const uint64_t from_round = between(revisions.last_from_round(), revisions.rounds() + 1);
      pick(&spec, revisions.StepAfter(from_round - 1) + 1);
      ASSERT_TRUE(revisions.Check(spec, from_round).ok());
      revisions.Add(Revision(number, from_round, spec));
      plain.emplace_back(from_round, spec);
    }
    uint64_t step = 0, round = 0;
    for (;;) {
      const v1::RunSpec* now = nullptr;
      for (const auto& [from_round, one] : plain) {
        if (from_round <= round + 1) now = &one;
      }
      if (step >= now->steps()) break;
      step = NextStep(*now, step);
      ASSERT_EQ(revisions.StepAfter(++round), step) << "round " << round;
    }
    EXPECT_EQ(revisions.rounds(), round);
    EXPECT_EQ(revisions.StepAfter(0), 0u);
  }
}

}  // namespace
}  // namespace isthmus
