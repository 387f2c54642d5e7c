// Specs with an outer optimizer: rounds and steps, presets, what is filled in and what is refused.
#include "spec/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/text_format.h"
#include "spec/presets.h"
#include "spec/rounds.h"
#include "spec/run_spec.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kTwoNodes[] =
    "run: 'local' steps: 100 nodes { name: 'ams-1' } nodes { name: 'fra-2' } "
    "optimizer { lr: 0.004 warmup_steps: 5 clip_norm: 1 } ";
constexpr char kModel[] =
    "model { layers: 1 heads: 1 width: 64 context: 32 } data { sequences_per_node: 4 } ";

// What is said later is laid over what is said before.
absl::StatusOr<v1::RunSpec> Parse(const std::string& more) {
  v1::RunSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(absl::StrCat(kTwoNodes, more), &spec))
      << more;
  std::string text;
  EXPECT_TRUE(google::protobuf::TextFormat::PrintToString(spec, &text));
  return ParseRunSpec(text);
}

v1::RunSpec SpecOf(const std::string& more) {
  const auto spec = Parse(more);
  EXPECT_TRUE(spec.ok()) << more << "\n" << spec.status();
  return spec.ok() ? *spec : v1::RunSpec();
}

void ExpectRefused(const std::string& more, const std::string& text) {
  const auto spec = Parse(more);
  ASSERT_FALSE(spec.ok()) << more;
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << more;
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr(text)) << more;
}

std::string Outer(absl::string_view kind, absl::string_view more = "") {
  return absl::StrCat(
      "source: SOURCE_PARAM_DELTA schedule { local_steps: 10 } codec { kind: "
      "CODEC_KIND_NUMBERS } outer { kind: OUTER_KIND_",
      kind, " ", more, " } ");
}

// Steps of the rounds one by one, from NextStep.
void ExpectRounds(const v1::RunSpec& spec, const std::vector<uint64_t>& ends) {
  ASSERT_EQ(Rounds(spec), ends.size());
  uint64_t step = 0;
  for (size_t round = 1; round <= ends.size(); ++round) {
    step = NextStep(spec, step);
    EXPECT_EQ(step, ends[round - 1]) << round;
    EXPECT_EQ(StepAfterRound(spec, round), ends[round - 1]) << round;
  }
  EXPECT_EQ(StepAfterRound(spec, 0), 0u);
}

TEST(RoundsTest, HoldTheirStepsAndTheLastOneTheRest) {
  v1::RunSpec spec = SpecOf("");
  EXPECT_EQ(Rounds(spec), 100u);  // every step
  EXPECT_EQ(StepAfterRound(spec, 7), 7u);
  spec = SpecOf("preset: 'diloco' schedule { local_steps: 30 }");
  ExpectRounds(spec, {30, 60, 90, 100});
  EXPECT_EQ(RoundLearningRate(spec, 2), LearningRate(spec, 60));
  spec = SpecOf("preset: 'diloco' schedule { local_steps: 25 }");
  ExpectRounds(spec, {25, 50, 75, 100});
  spec = SpecOf("preset: 'diloco'");  // one round, shorter than its 500 steps
  ExpectRounds(spec, {100});
}

TEST(RoundsTest, SwitchAtAStep) {
  const std::string text =
      "preset: 'diloco' schedule { local_steps: 30 switch_step: 70 local_steps_after: 10 }";
  ExpectRounds(SpecOf(text), {30, 60, 70, 80, 90, 100});
  EXPECT_EQ(StepsOfRoundMax(SpecOf(text)), 30u);
  const std::string every =
      "preset: 'diloco' schedule { local_steps: 48 switch_step: 97 local_steps_after: 1 }";
  ExpectRounds(SpecOf(every), {48, 96, 97, 98, 99, 100});
}

TEST(RoundsTest, OfMethodsOfEveryStepAreTheirExchanges) {
  ExpectRounds(SpecOf("steps: 7 schedule { every: 3 } allow_drift: true"), {3, 6, 7});
  ExpectRounds(SpecOf("steps: 8 schedule { skip: 4 } allow_drift: true"), {1, 2, 3, 5, 6, 7, 8});
  ExpectRounds(SpecOf("steps: 13 schedule { every: 2 skip: 6 } allow_drift: true"),
               {2, 4, 8, 10, 13});
  ExpectRounds(SpecOf("steps: 5 schedule { every: 1 }"), {1, 2, 3, 4, 5});
}

// Of each step by itself, for schedules of all kinds; revisions begin anywhere.
TEST(RoundsTest, ExchangesAreThoseOfEachStep) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 300; ++i) {
    v1::RunSpec spec;
    spec.set_steps(1 + random() % 60);
    spec.mutable_schedule()->set_every(random() % 7);
    spec.mutable_schedule()->set_skip(random() % 7);
    const v1::ScheduleSpec& schedule = spec.schedule();
    if (schedule.skip() == 1) continue;
    if (schedule.skip() > 0 && std::max(1u, schedule.every()) % schedule.skip() == 0) continue;
    const uint64_t before = random() % spec.steps();
    std::vector<uint64_t> ends;
    for (uint64_t step = before + 1; step <= spec.steps(); ++step) {
      const bool divides = schedule.every() == 0 || step % schedule.every() == 0;
      const bool skipped = schedule.skip() > 0 && step % schedule.skip() == 0;
      if ((divides && !skipped) || step == spec.steps()) ends.push_back(step);
    }
    ASSERT_EQ(RoundsLeft(spec, before), ends.size()) << spec.ShortDebugString() << before;
    uint64_t step = before;
    for (size_t round = 1; round <= ends.size(); ++round) {
      const uint64_t length = NextStep(spec, step) - step;
      EXPECT_LE(length, StepsOfRoundMax(spec));
      step = NextStep(spec, step);
      ASSERT_EQ(step, ends[round - 1]) << spec.ShortDebugString() << " from " << before;
      ASSERT_EQ(StepAfterRounds(spec, before, round), step);
    }
    EXPECT_EQ(StepAfterRounds(spec, before, 0), before);
  }
}

TEST(ReplicatorsTest, WhatIsRefused) {
  const std::pair<std::string, std::string> cases[] = {
      {"preset: 'random' codec { rate: 0 }", "codec.rate is 0; give the share"},
      {"preset: 'striding' codec { rate: 1.5 }", "codec.rate is 1.5; give the share"},
      {"codec { rate: 0.5 }", "codec.rate is 0.5; codec.kind CODEC_KIND_DEMO sends no rows"},
      {"preset: 'slicing' codec { matrix_density: 0.5 }", "codec.matrix_density has no effect"},
      {"preset: 'slicing' codec { chunk_side: 257 }", "codec.chunk_side is 257"},
      {"preset: 'random' codec { numbers { format: NUMBER_FORMAT_SIGN1 } }",
       "codec.numbers.format is NUMBER_FORMAT_SIGN1; rows"},
      {"preset: 'full' codec { rules: METHOD_RULES_PUBLISHED }", "codec.rules has no effect"},
      {"preset: 'full' codec { lr_in_momentum: false }", "codec.lr_in_momentum has no effect"},
      {"schedule { every: 2 }", "allow_drift is false; with schedule.every 2 and skip 0"},
      {"schedule { skip: 2 }", "allow_drift is false; with schedule.every 0 and skip 2"},
      {"schedule { every: 1 } allow_drift: true", "keeps the nodes equal"},
      {"schedule { skip: 1 } allow_drift: true", "schedule.skip is 1; steps that it divides"},
      {"schedule { every: 4 skip: 2 } allow_drift: true", "schedule.skip is 2; it divides"},
      {"schedule { every: 100001 } allow_drift: true", "schedule.every is 100001"},
      {"schedule { skip: 100001 } allow_drift: true", "schedule.skip is 100001"},
      {"schedule { local_steps: 5 }", "schedule.local_steps, switch_step"},
      {"preset: 'none' schedule { every: 2 } allow_drift: true", "schedule.every is 2; with codec"},
      {"preset: 'diloco' schedule { every: 2 }", "schedule.every is 2; it is that of methods"},
      {"preset: 'diloco' schedule { skip: 3 }", "schedule.skip is 3; it is that of methods"},
      {"optimizer { momentum: 1 }", "optimizer.momentum is 1; give the decay"},
      {"optimizer { momentum: -0.5 }", "optimizer.momentum is -0.5; give the decay"},
      {"preset: 'full' optimizer { momentum: 0.9 }", "optimizer.momentum is 0.9; it is that of"},
      {"preset: 'local_sgd' optimizer { base: BASE_OPTIMIZER_SGD momentum: 0.9 }",
       "optimizer.momentum is 0.9; with an outer"},
  };
  for (const auto& [more, text] : cases) ExpectRefused(more, text);
}

TEST(ReplicatorsTest, WhatIsFilledIn) {
  const v1::RunSpec random = SpecOf("preset: 'random'");
  EXPECT_EQ(random.codec().rate(), 0.1);
  EXPECT_TRUE(random.codec().sign());
  EXPECT_EQ(random.codec().numbers().format(), v1::NUMBER_FORMAT_F32);
  EXPECT_EQ(random.optimizer().base(), v1::BASE_OPTIMIZER_SGD);
  EXPECT_EQ(StateSections(random), 1u);
  EXPECT_EQ(StateSections(SpecOf("optimizer { momentum: 0.9 }")), 2u);
  EXPECT_EQ(SpecOf("quorum: 1").timing().deadline_ms(), 60000u);
  EXPECT_EQ(SpecOf("quorum: 1 schedule { every: 9 } allow_drift: true").timing().deadline_ms(), 0u);
  // A spec of before these fields stays as it was.
  EXPECT_FALSE(SpecOf("").codec().has_lr_in_momentum());
  EXPECT_EQ(SpecOf("").codec().rules(), v1::METHOD_RULES_UNSPECIFIED);
}

TEST(ReplicatorsTest, ThePublishedRulesHaveThePublishedDefaults) {
  v1::RunSpec spec = SpecOf("codec { rules: METHOD_RULES_PUBLISHED }");
  EXPECT_EQ(spec.codec().chunk_rule(), v1::CHUNK_RULE_DIVISOR);
  EXPECT_EQ(spec.codec().top_k(), 32u);
  spec = SpecOf("codec { rules: METHOD_RULES_PUBLISHED chunk_rule: CHUNK_RULE_TILES }");
  EXPECT_EQ(spec.codec().top_k(), 0u);
  spec = SpecOf("codec { rules: METHOD_RULES_PUBLISHED vector_density: 0.5 }");
  EXPECT_EQ(spec.codec().top_k(), 0u);
  // A node alone sends all of its momentum.
  const auto alone = [](const std::string& codec) {
    auto parsed = ParseRunSpec(absl::StrCat(
        "run: 'alone' steps: 9 nodes { name: 'a' } optimizer { lr: 0.01 } codec { rules: "
        "METHOD_RULES_PUBLISHED ",
        codec, " }"));
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    v1::RunSpec again = *parsed;
    EXPECT_TRUE(CompleteRunSpec(&again).ok());
    EXPECT_EQ(again.SerializeAsString(), parsed->SerializeAsString());
    return *parsed;
  };
  EXPECT_EQ(alone("").codec().top_k(), 64u * 64);
  EXPECT_EQ(alone("kind: CODEC_KIND_RANDOM rate: 0.25").codec().rate(), 1);
}

TEST(ReplicatorsTest, TheLearningRateThatActsTwiceIsWarnedOf) {
  EXPECT_TRUE(SpecWarnings(SpecOf("")).empty());
  EXPECT_TRUE(SpecWarnings(SpecOf("preset: 'full'")).empty());
  for (const char* preset : {"demo", "striding"}) {
    const std::string text = absl::StrCat("preset: '", preset, "' codec { sign: false ");
    const std::vector<std::string> warnings = SpecWarnings(SpecOf(text + "}"));
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_THAT(warnings[0], HasSubstr("acts twice"));
    EXPECT_THAT(warnings[0], HasSubstr("codec.lr_in_momentum: false"));
    EXPECT_TRUE(SpecWarnings(SpecOf(text + "lr_in_momentum: false }")).empty());
  }
}

TEST(ReplicatorsTest, NodesThatDriftApartAreToldWhatTheyGoWithout) {
  const v1::RunSpec drifting = SpecOf("preset: 'none' allow_drift: true");
  EXPECT_EQ(drifting.check_every(), 0u);
  EXPECT_FALSE(IsChecked(drifting, 100));
  ASSERT_EQ(SpecWarnings(drifting).size(), 1u);
  EXPECT_THAT(SpecWarnings(drifting)[0], HasSubstr("nodes are not compared (check_every)"));
}

TEST(ReplicatorsTest, StepsByComponentsOfWhichOnlySignsTravelAreWarnedOf) {
  const std::string text = "codec { sign: false lr_in_momentum: false numbers { format: ";
  const auto warnings = SpecWarnings(SpecOf(text + "NUMBER_FORMAT_SIGN1 } }"));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("whatever its size"));
  EXPECT_TRUE(SpecWarnings(SpecOf(text + "NUMBER_FORMAT_INT4 } }")).empty());
  EXPECT_TRUE(SpecWarnings(SpecOf("codec { numbers { format: NUMBER_FORMAT_SIGN1 } }")).empty());
}

TEST(PresetsTest, SignsThatAnOuterStepTakesForMagnitudesAreWarnedOf) {
  for (const Preset& preset : Presets()) {
    std::string text = absl::StrCat("preset: '", preset.name, "' ", kModel);
    if (preset.name == "none") text += "allow_drift: true";
    const v1::RunSpec spec = SpecOf(text);
    EXPECT_EQ(SpecWarnings(spec).size(), spec.allow_drift() ? 1u : 0u) << preset.name;
  }
  for (const char* kind : {"ASSIGN", "SGD", "MOMENTUM", "NESTEROV", "SLOWMO", "ADAMW"}) {
    EXPECT_TRUE(SpecWarnings(SpecOf(Outer(kind))).empty());
    for (const char* format : {"SIGN1", "TERNARY"}) {
      const auto warnings = SpecWarnings(SpecOf(
          absl::StrCat(Outer(kind), "codec { numbers { format: NUMBER_FORMAT_", format, " } }")));
      ASSERT_EQ(warnings.size(), 1u) << kind;
      EXPECT_THAT(warnings[0],
                  HasSubstr(absl::StrCat("codec.numbers.format is NUMBER_FORMAT_", format)));
      EXPECT_THAT(warnings[0], HasSubstr(absl::StrCat("outer.kind OUTER_KIND_", kind)));
      EXPECT_THAT(warnings[0], HasSubstr("Give NUMBER_FORMAT_INT8"));
    }
  }
  for (const char* kind : {"SIGN_MOMENTUM", "SIGN_SGD"}) {
    EXPECT_TRUE(SpecWarnings(SpecOf(absl::StrCat(
                                 Outer(kind), "codec { numbers { format: NUMBER_FORMAT_SIGN1 } }")))
                    .empty());
  }
}

TEST(PresetsTest, EachMakesASpecThatStaysAsItIs) {
  for (const Preset& preset : Presets()) {
    std::string text = absl::StrCat("preset: '", preset.name, "' ", kModel);
    if (preset.name == "none") text += "allow_drift: true";
    const v1::RunSpec spec = SpecOf(text);
    v1::RunSpec again = spec;
    ASSERT_TRUE(CompleteRunSpec(&again).ok());
    EXPECT_EQ(again.SerializeAsString(), spec.SerializeAsString()) << preset.name;
    // As an operator may store it.
    std::string printed;
    ASSERT_TRUE(google::protobuf::TextFormat::PrintToString(spec, &printed));
    const auto parsed = ParseRunSpec(printed);
    ASSERT_TRUE(parsed.ok()) << preset.name << ": " << parsed.status();
    EXPECT_EQ(parsed->SerializeAsString(), spec.SerializeAsString()) << preset.name;
    EXPECT_FALSE(preset.paper.empty());
  }
}

TEST(PresetsTest, ValuesAreLaidOverThoseOfThePreset) {
  v1::RunSpec spec = SpecOf("preset: 'diloco' outer { lr: 0.4 }");
  EXPECT_EQ(spec.outer().lr(), 0.4);
  EXPECT_EQ(spec.outer().momentum(), 0.9);
  // Another outer step has nothing of the preset's.
  spec = SpecOf("preset: 'diloco' outer { kind: OUTER_KIND_SLOWMO }");
  EXPECT_FALSE(spec.outer().has_lr());
  EXPECT_EQ(spec.outer().beta(), 0.5);
  EXPECT_EQ(spec.schedule().local_steps(), 500u);
  EXPECT_EQ(spec.snapshot().start_node(), "ams-1");
  EXPECT_EQ(spec.timing().deadline_ms(), 0u);
  EXPECT_EQ(spec.optimizer().base(), v1::BASE_OPTIMIZER_ADAMW);
}

TEST(PresetsTest, FormsOfUpdates) {
  const auto form = [](const std::string& more) { return UpdateFormOf(SpecOf(more)); };
  EXPECT_EQ(form(""), UpdateForm::kMerged);
  EXPECT_EQ(form("preset: 'diloco'"), UpdateForm::kParameters);
  EXPECT_EQ(form("preset: 'diloco' placement: PLACEMENT_REPLICATED"), UpdateForm::kAggregate);
  EXPECT_EQ(form("preset: 'diloco' codec { reply { format: NUMBER_FORMAT_INT8 } }"),
            UpdateForm::kDifference);
  EXPECT_EQ(form("preset: 'dist_sign_momentum'"), UpdateForm::kDirection);
  EXPECT_EQ(form("preset: 'dist_lion'"), UpdateForm::kAggregate);
  EXPECT_EQ(form("preset: 'dist_lion' placement: PLACEMENT_HOSTED"), UpdateForm::kDirection);
}

TEST(PresetsTest, Sections) {
  const v1::RunSpec hosted = SpecOf("preset: 'diloco'");
  EXPECT_EQ(StateSections(hosted), 1u);
  EXPECT_EQ(HostedSections(hosted), 1u);
  const v1::RunSpec lossy =
      SpecOf("preset: 'diloco' codec { reply { format: NUMBER_FORMAT_BF16 } }");
  EXPECT_EQ(HostedSections(lossy), 2u);
  const v1::RunSpec replicated = SpecOf("preset: 'diloco' placement: PLACEMENT_REPLICATED");
  EXPECT_EQ(StateSections(replicated), 2u);
  EXPECT_EQ(HostedSections(replicated), 0u);
  EXPECT_EQ(StateSections(SpecOf("preset: 'full'")), 3u);
}

TEST(StagesTest, FillsLimitsOfAContribution) {
  const v1::RunSpec spec =
      SpecOf(absl::StrCat("preset: 'diloco' schedule { local_steps: 10 } ", kModel));
  EXPECT_EQ(spec.aggregate().carry_rounds(), 5u);
  EXPECT_EQ(spec.aggregate().steps_max(), 60u);
  EXPECT_EQ(spec.aggregate().tokens_max(), 60u * 4 * 32);
  EXPECT_EQ(SpecOf("preset: 'sparse_loco'").aggregate().steps_max(), 30u);  // feedback carries
}

// Of a spec with several contradictions the answer has all, each once and none that follows from
// another one.
TEST(StagesTest, AllContradictionsAreSaidAtOnce) {
  const auto said = [](const std::string& more) {
    return std::vector<std::string>(
        absl::StrSplit(std::string(Parse(more).status().message()), ". Also: "));
  };
  const std::vector<std::string> stages = said(
      "optimizer { lr: -1 } timing { lease_ms: 1 } schedule { every: 3 } "
      "source: SOURCE_UPDATE_SIGN schedule { local_steps: 200000 } "
      "codec { kind: CODEC_KIND_NUMBERS numbers { format: NUMBER_FORMAT_TERNARY } feedback { } "
      "reply { format: NUMBER_FORMAT_SIGN1 } } aggregate { trim: 3 } "
      "outer { kind: OUTER_KIND_NESTEROV eps: 1 }");
  const std::vector<std::string> begin = {
      "optimizer.lr is -1",       "schedule.every is 3",
      "schedule.local_steps is ", "source is SOURCE_UPDATE_SIGN",
      "codec.numbers.format is ", "codec.reply.format is NUMBER_FORMAT_SIGN1",
      "outer.eps has no effect",  "timing.lease_ms is 1"};
  ASSERT_EQ(stages.size(), begin.size()) << Parse("").status();
  for (size_t i = 0; i < begin.size(); ++i) EXPECT_THAT(stages[i], StartsWith(begin[i]));
  EXPECT_EQ(said(Outer("NESTEROV") + "aggregate { trim: 3 } codec { reply { format: "
                                     "NUMBER_FORMAT_SIGN1 } }")
                .size(),
            2u);
  // The start node is what a hosted run fills in, and no fault of who wrote this.
  EXPECT_EQ(said(Outer("NESTEROV") + "allow_drift: true").size(), 1u);
  EXPECT_EQ(said("preset: 'full' codec { matrix_density: 0.5 alpha: 0.5 }").size(), 2u);
}

TEST(StagesTest, SettingsReachTheKernels) {
  const v1::RunSpec spec = SpecOf("preset: 'dist_sign_momentum_short' steps: 3000");
  const OuterSettings settings = OuterSettingsOf(spec.outer(), 0.004f);
  EXPECT_EQ(settings.kind, OuterKind::kSignMomentum);
  EXPECT_EQ(settings.sign, SignKind::kRandomThreePoint);
  EXPECT_EQ(settings.bound_kind, BoundKind::kFixed);
  EXPECT_EQ(settings.bound, 4.0);
  EXPECT_EQ(settings.beta1, 0.0);
  EXPECT_EQ(settings.weight_decay, 0.1);
  const OuterSettings direction = DirectionSettingsOf(spec.outer(), 0.004f);
  EXPECT_EQ(direction.kind, OuterKind::kSignSgd);
  EXPECT_EQ(direction.lr, 4.0 * static_cast<double>(0.004f));
  EXPECT_EQ(OuterSettingsOf(SpecOf("preset: 'dist_lion'").outer(), 0.25f).lr, 0.25);
}

TEST(StagesTest, Refusals) {
  const std::pair<std::string, std::string> cases[] = {
      {"preset: 'diloca'",
       "known presets are demo, flexdemo, random, striding, slicing, full, none, diloco"},
      {Outer("NESTEROV", "lr: 0"), "outer.lr is 0"},
      {Outer("NESTEROV", "momentum: 1"), "outer.momentum is 1"},
      {Outer("NESTEROV", "beta: 0.5"), "outer.beta has no effect with outer.kind"},
      {Outer("ASSIGN", "weight_decay: 0.1"), "outer.weight_decay has no effect"},
      {Outer("SIGN_MOMENTUM", "beta1: 1.5"), "outer.beta1 is 1.5"},
      {Outer("SIGN_MOMENTUM", "bound: 4"), "outer.bound has no effect"},
      {Outer("SIGN_MOMENTUM", "sign: 7"), "outer.sign is 7"},
      {Outer("NESTEROV", "alpha: 1 beta: 0.5 eps: 1"),
       "outer.alpha, outer.beta, outer.eps have no effect with outer.kind OUTER_KIND_NESTEROV"},
      // The smallest rate may be that of the first round.
      {Outer("SLOWMO") + "steps: 100000000 optimizer { lr: 1e-6 warmup_steps: 100000000 } "
                         "schedule { local_steps: 1 }",
       "where the learning rate is 1e-14"},
      {absl::StrCat(Outer("NESTEROV"), kModel, "aggregate { tokens_max: 5 }"),
       "aggregate.tokens_max is 5; a round has up to 1280 tokens of a node"},
      {Outer("SIGN_MOMENTUM", "eta: 100 weight_decay: 10"), "weight_decay"},
      {Outer("SIGN_MOMENTUM") + "optimizer { lr_final_ratio: 0 }", "learning rate is 0"},
      {Outer("LION"), "it is the step of votes"},
      {Outer("NESTEROV") + "schedule { local_steps: 200000 }", "schedule.local_steps is 200000"},
      {Outer("NESTEROV") + "schedule { switch_step: 50 }", "schedule.local_steps_after is 0"},
      {Outer("NESTEROV") + "schedule { local_steps_after: 5 }", "it wants schedule.switch_step"},
      {Outer("NESTEROV") + "schedule { switch_step: 101 local_steps_after: 1 }",
       "schedule.switch_step is 101"},
      {Outer("NESTEROV") + "aggregate { kind: AGGREGATE_KIND_TRIMMED_MEAN }", "trim"},
      {Outer("NESTEROV") + "aggregate { trim: 1 }", "does not trim"},
      {Outer("NESTEROV") + "aggregate { kind: AGGREGATE_KIND_MAJORITY }", "votes"},
      {Outer("NESTEROV") + "aggregate { weight: CONTRIBUTION_WEIGHT_STEPS }",
       "go with AGGREGATE_KIND_WEIGHTED_MEAN only"},
      {Outer("NESTEROV") +
           "aggregate { kind: AGGREGATE_KIND_WEIGHTED_MEAN weight_max_share: -0.5 }",
       "weight_max_share is -0.5"},
      {Outer("NESTEROV") + "aggregate { steps_max: 3 }", "aggregate.steps_max is 3"},
      {Outer("NESTEROV") + "aggregate { carry_rounds: 101 }", "aggregate.carry_rounds is 101"},
      {Outer("NESTEROV") + "codec { feedback { decay: 2 } }", "decay is 2"},
      {Outer("NESTEROV") + "codec { feedback { } } aggregate { carry_rounds: 3 }",
       "aggregate.carry_rounds is 3"},
      {Outer("NESTEROV") + "codec { numbers { format: NUMBER_FORMAT_INT8 group: 100 } }",
       "codec.numbers.group is 100"},
      {Outer("NESTEROV") + "codec { numbers { format: NUMBER_FORMAT_INT4 hadamard: 48 } }",
       "hadamard is 48"},
      {Outer("NESTEROV") + "codec { reply { format: NUMBER_FORMAT_TERNARY } }",
       "codec.reply.format is NUMBER_FORMAT_TERNARY"},
      {Outer("NESTEROV") +
           "codec { reply { format: NUMBER_FORMAT_INT8 } } placement: PLACEMENT_REPLICATED",
       "its error is kept by the coordinator"},
      {"codec { kind: CODEC_KIND_TOPK topk_chunk: 100 } outer { kind: OUTER_KIND_SGD } schedule { "
       "local_steps: 1 }",
       "codec.topk_chunk is 100"},
      {"preset: 'sparse_loco' codec { topk_k: 5000 }", "codec.topk_k is 5000"},
      {"preset: 'diloco' codec { kind: CODEC_KIND_DEMO }", "with an outer optimizer give"},
      {"preset: 'diloco' allow_drift: true", "allow_drift is true"},
      {"preset: 'dist_lion' schedule { local_steps: 2 }", "every step is a round"},
      {"preset: 'dist_lion' optimizer { weight_decay: 0.1 }", "give outer.weight_decay"},
      {"source: SOURCE_PARAM_DELTA", "source goes with an outer optimizer"},
      {"optimizer { base: BASE_OPTIMIZER_LION }", "goes with an outer optimizer"},
      {"preset: 'full' codec { numbers { format: NUMBER_FORMAT_INT8 } }", "codec.numbers"},
  };
  for (const auto& [more, text] : cases) ExpectRefused(more, text);
}

}  // namespace
}  // namespace isthmus
