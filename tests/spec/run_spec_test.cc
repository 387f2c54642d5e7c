#include "spec/run_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "google/protobuf/text_format.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

constexpr char kSmall[] =
    "run: 'demo-1' steps: 100 nodes { name: 'ams-1' } nodes { name: 'fra-2' data_parts: 3 } "
    "model { layers: 4 heads: 4 width: 128 context: 128 } data { sequences_per_node: 4 } "
    "optimizer { lr: 0.004 warmup_steps: 5 clip_norm: 1 } ";

// The small spec, completed after single values of it were replaced or added.
absl::StatusOr<v1::RunSpec> Parse(const std::string& more) {
  v1::RunSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kSmall, &spec));
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(more, &spec)) << more;
  const absl::Status status = CompleteRunSpec(&spec);
  if (!status.ok()) return status;
  return spec;
}

void ExpectRefused(const std::string& more, const std::string& text) {
  const absl::StatusOr<v1::RunSpec> spec = Parse(more);
  ASSERT_FALSE(spec.ok()) << more;
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << more;
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr(text)) << more;
}

TEST(RunSpecTest, FillsDefaults) {
  const absl::StatusOr<v1::RunSpec> spec = ParseRunSpec(kSmall);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->preset(), "demo");
  EXPECT_EQ(spec->nodes(0).data_parts(), 1u);
  EXPECT_EQ(spec->nodes(1).data_parts(), 3u);
  EXPECT_EQ(spec->model().vocab(), 256u);
  EXPECT_EQ(spec->data().heldout_permille(), 50u);
  EXPECT_EQ(spec->data().eval_sequences(), 64u);
  EXPECT_EQ(spec->optimizer().lr_final_ratio(), 0.05f);
  EXPECT_EQ(spec->codec().chunk_rule(), v1::CHUNK_RULE_TILES);
  EXPECT_EQ(spec->codec().chunk_side(), 64u);
  EXPECT_EQ(spec->codec().matrix_density(), 32.0 / 4096);
  EXPECT_EQ(spec->codec().vector_density(), 0.125);
  EXPECT_EQ(spec->codec().beta(), 0.999f);
  EXPECT_EQ(spec->codec().alpha(), 1.0f);
  EXPECT_EQ(spec->codec().numbers().format(), v1::NUMBER_FORMAT_F32);
  EXPECT_TRUE(spec->codec().sign());
  EXPECT_EQ(spec->timing().lease_ms(), 15000u);
  EXPECT_EQ(spec->timing().heartbeat_ms(), 3000u);
  EXPECT_EQ(spec->timing().grace_ms(), 5000u);
  EXPECT_EQ(spec->timing().deadline_ms(), 0u);
  EXPECT_EQ(EffectiveQuorum(*spec), 2u);
  EXPECT_EQ(NodeIndex(*spec, "fra-2"), 1);
  EXPECT_EQ(NodeIndex(*spec, "fra"), -1);
}

TEST(RunSpecTest, GivenZerosOfOptionalFieldsStay) {
  const absl::StatusOr<v1::RunSpec> spec =
      Parse("optimizer { lr_final_ratio: 0 } codec { beta: 0 sign: false alpha: 0.5 }");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->optimizer().lr_final_ratio(), 0.0f);
  EXPECT_EQ(spec->codec().beta(), 0.0f);
  EXPECT_FALSE(spec->codec().sign());
}

TEST(RunSpecTest, CompletionIsIdempotent) {
  absl::StatusOr<v1::RunSpec> spec = Parse("quorum: 1 preset: 'flexdemo'");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->timing().deadline_ms(), 60000u);
  EXPECT_EQ(EffectiveQuorum(*spec), 1u);
  const std::string once = spec->SerializeAsString();
  ASSERT_TRUE(CompleteRunSpec(&*spec).ok());
  // One that was completed before there was codec.numbers stays as it was.
  v1::RunSpec older = *spec, made = *spec;
  older.mutable_codec()->clear_numbers();
  ASSERT_TRUE(CompleteRunSpec(&older).ok());
  EXPECT_FALSE(older.codec().has_numbers());
  KeepLayouts(older, &made);
  EXPECT_FALSE(made.codec().has_numbers());
  EXPECT_EQ(spec->SerializeAsString(), once);
}

// A text is today's, even where it names every field that there was before codec.numbers.
TEST(RunSpecTest, EveryTextHasTodaysLayouts) {
  for (const char* codec :
       {"", "codec { kind: CODEC_KIND_DEMO }",
        "codec { kind: CODEC_KIND_DEMO chunk_rule: CHUNK_RULE_TILES chunk_side: 64 "
        "matrix_density: 0.01 vector_density: 0.125 beta: 0.999 alpha: 1 sign: true }"}) {
    const auto spec = ParseRunSpec(std::string(kSmall) + codec);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->codec().numbers().format(), v1::NUMBER_FORMAT_F32) << codec;
  }
}

TEST(RunSpecTest, ModelAndDataMayBeLeftOutTogether) {
  EXPECT_TRUE(ParseRunSpec("run: 'r' steps: 1 nodes { name: 'a' } optimizer { lr: 1 }").ok());
}

TEST(RunSpecTest, TextErrorsNameLineAndColumn) {
  absl::Status status = ParseRunSpec("run: 'r'\nsteps: many\n").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("line 2:8: "));
  status = ParseRunSpec("run: 'r'\n\n  stepps: 3\n").status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("line 3:"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("stepps"));
  status = ParseRunSpec("steps: 1\nsteps: 2\n").status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("line 2:"));
}

TEST(RunSpecTest, RefusalsNameFieldLimitAndValue) {
  ExpectRefused("steps: 0", "steps is 0; give the number of rounds, 1 to 1000000000");
  ExpectRefused("steps: 1000000001", "steps is 1000000001;");
  ExpectRefused("run: ''", "run is ''; give a name of 1 to 63 characters of a-z, 0-9, '-'");
  ExpectRefused("run: 'A'", "run is 'A'");
  ExpectRefused("nodes { name: 'fra_3' }", "nodes[2].name is 'fra_3'");
  ExpectRefused("nodes { name: 'fra-2' }", "nodes[2].name is 'fra-2'; an earlier node");
  ExpectRefused("nodes { name: 'x' data_parts: 1001 }", "nodes[2].data_parts is 1001;");
  ExpectRefused("quorum: 3", "quorum is 3; the run has 2 nodes");
  ExpectRefused("preset: 'adam'", "preset is 'adam'; known presets are demo, flexdemo, random");
  ExpectRefused("start_state_sha256: 'abc'", "start_state_sha256 is 3; give 32 bytes");
  std::string many;
  for (int i = 0; i < 255; ++i) many += "nodes { name: 'n" + std::to_string(i) + "' } ";
  ExpectRefused(many, "the number of nodes is 257; name the sites of the run under 'nodes', 1 to");
}

TEST(RunSpecTest, ModelAndDataRefusals) {
  ExpectRefused("model { layers: 1001 }", "model.layers is 1001;");
  ExpectRefused("model { heads: 5 }", "model.width is 128; model.heads is 5 and must divide it");
  ExpectRefused("model { heads: 0 }", "model.heads is 0;");
  ExpectRefused("model { width: 65537 }", "model.width is 65537;");
  ExpectRefused("model { context: 0 }", "model.context is 0;");
  ExpectRefused("model { vocab: 255 }", "model.vocab is 255;");
  ExpectRefused("model { frozen: '' }", "the length of model.frozen[0] is 0;");
  // Stored it could not be read again.
  ExpectRefused("model { frozen: '\\377*' }", "model.frozen[0] is '\\xff*'; give a tensor name in");
  ExpectRefused("data { sequences_per_node: 0 }", "data.sequences_per_node is 0;");
  ExpectRefused("data { heldout_permille: 1000 }", "data.heldout_permille is 1000;");
}

TEST(RunSpecTest, OptimizerRefusals) {
  ExpectRefused("optimizer { lr: 0 }", "optimizer.lr is 0;");
  ExpectRefused("optimizer { lr: -1 }", "optimizer.lr is -1;");
  ExpectRefused("optimizer { lr: inf }", "optimizer.lr is inf;");
  ExpectRefused("optimizer { lr: nan }", "optimizer.lr is nan;");
  ExpectRefused("optimizer { warmup_steps: 101 }",
                "optimizer.warmup_steps is 101; give at most steps, 100");
  ExpectRefused("optimizer { lr_final_ratio: 1.5 }", "optimizer.lr_final_ratio is 1.5;");
  ExpectRefused("optimizer { weight_decay: -0.5 }", "optimizer.weight_decay is -0.5;");
  ExpectRefused("optimizer { lr: 1 weight_decay: 2 }", "the product is at most 1");
  ExpectRefused("optimizer { clip_norm: nan }", "optimizer.clip_norm is nan;");
}

TEST(RunSpecTest, CodecAndTimingRefusals) {
  ExpectRefused("codec { chunk_side: 129 }", "codec.chunk_side is 129;");
  ExpectRefused("codec { chunk_rule: 7 }", "codec.chunk_rule is 7; give CHUNK_RULE_TILES or");
  ExpectRefused("codec { matrix_density: 0 }", "codec.matrix_density is 0;");
  ExpectRefused("codec { vector_density: 1.5 }", "codec.vector_density is 1.5;");
  ExpectRefused("codec { vector_density: nan }", "codec.vector_density is nan;");
  ExpectRefused("codec { top_k: 32 }", "codec.top_k is 32; it goes with CHUNK_RULE_DIVISOR only");
  ExpectRefused("codec { beta: 1 }", "codec.beta is 1;");
  ExpectRefused("codec { alpha: 0 }", "codec.alpha is 0;");
  ExpectRefused("codec { numbers { format: NUMBER_FORMAT_TERNARY } }",
                "codec.numbers.format is NUMBER_FORMAT_TERNARY; components are sent as");
  ExpectRefused("codec { numbers { format: NUMBER_FORMAT_INT8 group: 64 } }",
                "codec.numbers.group is 64; the components of a chunk share a scale");
  ExpectRefused("codec { numbers { hadamard: 64 } }", "codec.numbers.hadamard is 64;");
  ExpectRefused("codec { update_form: 9 }", "codec.update_form is 9;");
  ExpectRefused("codec { sign: false update_form: UPDATE_FORM_SIGN_PLANE }",
                "codec.update_form is UPDATE_FORM_SIGN_PLANE; codec.sign is false");
  ExpectRefused("timing { lease_ms: 8999 }",
                "timing.heartbeat_ms is 3000; give at most a third of timing.lease_ms, 1 to 2999");
  ExpectRefused("timing { deadline_ms: 700000000 }", "timing.deadline_ms is 700000000;");
  EXPECT_TRUE(Parse("timing { lease_ms: 9000 }").ok());
  EXPECT_TRUE(Parse("codec { chunk_rule: CHUNK_RULE_DIVISOR top_k: 32 }").ok());
}

TEST(RunSpecTest, PresetsFillInWhatIsLeftOut) {
  absl::StatusOr<v1::RunSpec> spec = Parse("");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->codec().kind(), v1::CODEC_KIND_DEMO);
  EXPECT_EQ(spec->optimizer().base(), v1::BASE_OPTIMIZER_SGD);
  EXPECT_EQ(spec->data().format(), v1::TOKEN_FORMAT_BYTES);
  spec = Parse("preset: 'full'");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->codec().kind(), v1::CODEC_KIND_DENSE);
  EXPECT_FALSE(spec->codec().sign());
  EXPECT_EQ(spec->optimizer().base(), v1::BASE_OPTIMIZER_ADAMW);
  EXPECT_EQ(spec->optimizer().beta1(), 0.9f);
  EXPECT_EQ(spec->optimizer().beta2(), 0.95f);
  EXPECT_EQ(spec->optimizer().eps(), 1e-8f);
  spec = Parse("preset: 'none' allow_drift: true optimizer { base: BASE_OPTIMIZER_SGD }");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->codec().kind(), v1::CODEC_KIND_NONE);
  EXPECT_EQ(spec->optimizer().base(), v1::BASE_OPTIMIZER_SGD);
  spec = Parse("preset: 'none' allow_drift: true optimizer { beta2: 0 }");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->optimizer().beta2(), 0.0f);
  spec = Parse("preset: 'demo' optimizer { base: BASE_OPTIMIZER_ADAMW }");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->codec().sign());
}

TEST(RunSpecTest, DriftIsSaidAloud) {
  ExpectRefused("preset: 'none'",
                "allow_drift is false; with codec.kind CODEC_KIND_NONE the nodes' parameters drift "
                "apart for good; say allow_drift: true where that is meant");
  ExpectRefused("allow_drift: true",
                "allow_drift is true; codec.kind CODEC_KIND_DEMO keeps the nodes equal");
}

TEST(RunSpecTest, DeterministicModeWaitsForAll) {
  ExpectRefused("deterministic: true quorum: 1", "quorum is 1; with deterministic: true");
  ExpectRefused("deterministic: true timing { deadline_ms: 9 }", "timing.deadline_ms is 9; with");
}

TEST(RunSpecTest, StatesAreComparedUnlessTheyDrift) {
  EXPECT_EQ(Parse("")->check_every(), 100u);
  EXPECT_EQ(Parse("check_every: 0")->check_every(), 0u);
  EXPECT_EQ(Parse("preset: 'none' allow_drift: true")->check_every(), 0u);
  ExpectRefused("check_every: 1000000001", "check_every is 1000000001; give the rounds between");
  EXPECT_EQ(Parse("preset: 'none' allow_drift: true check_every: 100")->check_every(), 0u);
  // Who writes it expects something of it.
  const auto written =
      ParseRunSpec(absl::StrCat(kSmall, "preset: 'none' allow_drift: true check_every: 5"));
  EXPECT_THAT(std::string(written.status().message()),
              HasSubstr("check_every has no effect with allow_drift; leave it out"));
}

TEST(RunSpecTest, OverlapGoesWithMethodsOfEveryStep) {
  ExpectRefused("overlap: 3", "overlap is 3; give the rounds under way beside the oldest, 0 to 2");
  ExpectRefused("look: 1", "look is 1; without overlap nothing is under way");
  ExpectRefused("overlap: 1 look: 1.5",
                "look is 1.5; give the share of the own step, 0 (off) to 1");
  ExpectRefused("overlap: 1 look: nan", "look is nan; give");
  ExpectRefused("overlap: 1 preset: 'full' look: 1",
                "look is 1; codec.kind CODEC_KIND_DENSE sends");
  ExpectRefused("overlap: 1 preset: 'full' deterministic: true", "overlap is 1; with codec.kind");
  ExpectRefused("overlap: 1 preset: 'none' allow_drift: true", "overlap is 1; with allow_drift");
  ExpectRefused("overlap: 1 preset: 'diloco'", "overlap is 1; with an outer optimizer");
  for (const auto& [fields, look] : std::vector<std::pair<std::string, double>>{
           {"overlap: 1", 1}, {"overlap: 2 look: 0", 0}, {"overlap: 2 preset: 'full'", 0}}) {
    const auto spec = Parse(fields);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_TRUE(spec->has_look());
    EXPECT_EQ(spec->look(), look) << fields;
  }
}

TEST(RunSpecTest, WhatHasNoEffectIsRefused) {
  const auto refusal = [](const std::string& codec, const std::string& optimizer) {
    const auto spec = ParseRunSpec(absl::StrCat("run: 'r' steps: 9 nodes { name: 'a' } ", codec,
                                                " optimizer { lr: 0.1 ", optimizer, " }"));
    return spec.ok() ? "taken" : std::string(spec.status().message());
  };
  EXPECT_EQ(refusal("codec { beta: 0.5 }", ""), "taken");
  for (const char* field : {"matrix_density", "vector_density", "beta", "alpha"}) {
    EXPECT_EQ(refusal(absl::StrCat("preset: 'full' codec { ", field, ": 0.5 }"), ""),
              absl::StrCat("codec.", field,
                           " has no effect with codec.kind CODEC_KIND_DENSE; leave it out"));
  }
  EXPECT_EQ(refusal("codec { update_form: UPDATE_FORM_DENSE }", ""), "taken");
  EXPECT_EQ(refusal("preset: 'full' codec { update_form: UPDATE_FORM_DENSE }", ""),
            "codec.update_form has no effect with codec.kind CODEC_KIND_DENSE; leave it out");
  for (const char* field : {"beta1", "beta2", "eps"}) {
    EXPECT_EQ(refusal("", absl::StrCat(field, ": 0.5")),
              absl::StrCat("optimizer.", field,
                           " has no effect with optimizer.base BASE_OPTIMIZER_SGD; leave it out"));
  }
  for (const char* preset : {"demo", "full"}) {
    const auto spec = Parse(absl::StrCat("preset: '", preset, "'"));
    ASSERT_TRUE(spec.ok()) << spec.status();
    std::string text;
    ASSERT_TRUE(google::protobuf::TextFormat::PrintToString(*spec, &text));
    EXPECT_TRUE(ParseRunSpec(text).ok()) << "a complete spec is a spec";
  }
  EXPECT_THAT(refusal("", "decay_groups { tensors: '*.bias' }"),
              HasSubstr("optimizer.decay_groups has no effect with optimizer.weight_decay 0"));
}

TEST(RunSpecTest, BaseOptimizerAndFormatRefusals) {
  ExpectRefused("optimizer { base: 9 }", "optimizer.base is 9; give BASE_OPTIMIZER_SGD, ");
  ExpectRefused("optimizer { beta1: 1 }", "optimizer.beta1 is 1;");
  ExpectRefused("optimizer { beta2: -0.5 }", "optimizer.beta2 is -0.5;");
  ExpectRefused("optimizer { eps: 0 }", "optimizer.eps is 0;");
  ExpectRefused("codec { kind: 99 }", "codec.kind is 99; give CODEC_KIND_DEMO,");
  ExpectRefused("data { format: 4 }", "data.format is 4; give TOKEN_FORMAT_BYTES,");
  EXPECT_TRUE(Parse("data { format: TOKEN_FORMAT_UINT16 } model { vocab: 100 }").ok());
  ExpectRefused("optimizer { decay_groups { } }",
                "the number of patterns in optimizer.decay_groups[0].tensors is 0;");
  ExpectRefused("optimizer { decay_groups { tensors: '' } }",
                "the length of optimizer.decay_groups[0].tensors[0] is 0;");
  ExpectRefused("optimizer { decay_groups { tensors: 'a' scale: nan } }",
                "optimizer.decay_groups[0].scale is nan; give 0 to 1000");
  ExpectRefused("optimizer { lr: 0.5 weight_decay: 1 decay_groups { tensors: 'a' scale: 3 } }",
                "the product is at most 1");
}

TEST(RunSpecTest, TheFirstDecayGroupThatMatchesCounts) {
  const absl::StatusOr<v1::RunSpec> spec = Parse(
      "optimizer { weight_decay: 0.1 decay_groups { tensors: '*.bias' } "
      "decay_groups { tensors: 'h.*' scale: 0.5 } }");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto scales = DecayScales(spec->optimizer(), {"wte", "h.0.bias", "h.0.weight"});
  ASSERT_TRUE(scales.ok()) << scales.status();
  EXPECT_EQ(*scales, (std::vector<float>{1, 0, 0.5}));
  EXPECT_THAT(std::string(DecayScales(spec->optimizer(), {"wte", "h.w"}).status().message()),
              HasSubstr("optimizer.decay_groups[0].tensors: '*.bias' matches no trainable tensor; "
                        "names are like 'h.w'"));
}

TEST(RunSpecTest, LearningRateEndpoints) {
  const absl::StatusOr<v1::RunSpec> spec = Parse("");
  ASSERT_TRUE(spec.ok());
  const double lr = 0.004f;
  EXPECT_EQ(LearningRate(*spec, 1), static_cast<float>(lr / 5));
  EXPECT_EQ(LearningRate(*spec, 5), 0.004f);
  EXPECT_LT(LearningRate(*spec, 6), 0.004f);
  EXPECT_GT(LearningRate(*spec, 6), 0.0039f);
  EXPECT_EQ(LearningRate(*spec, 100), static_cast<float>(lr * static_cast<double>(0.05f)));
  for (uint64_t step = 7; step <= 100; ++step) {
    EXPECT_LT(LearningRate(*spec, step), LearningRate(*spec, step - 1));
  }
}

TEST(RunSpecTest, LearningRateWithoutWarmupAndWithWarmupOnly) {
  absl::StatusOr<v1::RunSpec> spec = Parse("optimizer { warmup_steps: 0 lr_final_ratio: 0 }");
  ASSERT_TRUE(spec.ok());
  EXPECT_NEAR(LearningRate(*spec, 50), 0.002, 1e-9);
  EXPECT_EQ(LearningRate(*spec, 100), 0.0f);
  spec = Parse("optimizer { warmup_steps: 100 }");
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(LearningRate(*spec, 100), 0.004f);
  spec = Parse("steps: 1 optimizer { warmup_steps: 0 lr_final_ratio: 1 }");
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(LearningRate(*spec, 1), 0.004f);
}

TEST(RunSpecTest, FilesAreNamedInErrors) {
  const char* folder = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/run_spec_test." +
                           std::to_string(getpid()) + ".txtpb";
  EXPECT_EQ(ReadRunSpecFile(path).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadRunSpecFile(path).status().message()), HasSubstr(path));
  std::ofstream(path) << kSmall;
  EXPECT_TRUE(ReadRunSpecFile(path).ok());
  std::ofstream(path) << "steps: x";
  EXPECT_THAT(std::string(ReadRunSpecFile(path).status().message()), HasSubstr(path + ": the run"));
  std::ofstream(path) << std::string(kRunSpecFileBytesMax + 1, '#');
  EXPECT_THAT(std::string(ReadRunSpecFile(path).status().message()),
              HasSubstr("more than 1048576"));
  std::remove(path.c_str());
  EXPECT_EQ(ReadRunSpecFile("/").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace isthmus
