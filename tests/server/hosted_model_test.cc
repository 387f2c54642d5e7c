// The hosted model beside a plain one, and beside what nodes make of its updates.
#include "server/hosted_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <random>

#include "spec/state_hash.h"
#include "tests/server/outer_runs.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

const char kSignMomentum[] = "preset: 'diloco' outer { kind: OUTER_KIND_SIGN_MOMENTUM ";
const char kInt8[] = "codec { reply { format: NUMBER_FORMAT_INT8 } } ";
const char kTernary[] = "codec { reply { format: NUMBER_FORMAT_TERNARY } } ";

std::vector<std::string> Runs() {
  const std::string sign = kSignMomentum;
  return {
      "preset: 'local_sgd'",
      "preset: 'diloco'",
      "preset: 'slowmo'",
      "preset: 'diloco' outer { kind: OUTER_KIND_ADAMW }",
      std::string("preset: 'diloco' ") + kInt8,
      "preset: 'local_sgd' codec { reply { format: NUMBER_FORMAT_BF16 } }",
      "preset: 'slowmo' codec { reply { format: NUMBER_FORMAT_INT4 hadamard: 32 } }",
      "preset: 'sparse_loco' codec { topk_chunk: 512 reply { format: NUMBER_FORMAT_INT8 } }",
      "preset: 'demo_local'",
      sign + "} ",
      sign + "sign: OUTER_SIGN_RANDOM_THREE_POINT } " + kInt8,
      sign + "weight_decay: 0 } " + kTernary,
      sign + "sign: OUTER_SIGN_RANDOM_TWO_POINT bound: 3 } " + kTernary,
      sign + "sign: OUTER_SIGN_RANDOM_THREE_POINT } " + kTernary,
      std::string("preset: 'diloco' outer { kind: OUTER_KIND_SIGN_SGD weight_decay: 0.1 } ") +
          kTernary,
      "preset: 'dist_lion' schedule { local_steps: 1 } outer { weight_decay: 0.1 } "
      "placement: PLACEMENT_HOSTED",
  };
}

std::vector<float> Normals(size_t count, float scale, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = scale * normal(*random);
  return values;
}

// Votes where the outer step takes them.
std::vector<float> RandomAggregate(const v1::RunSpec& spec, size_t count, std::mt19937* random) {
  std::vector<float> g = Normals(count, 0.01f, random);
  if (spec.outer().kind() == v1::OUTER_KIND_LION) reference::SignInPlace(absl::MakeSpan(g));
  return g;
}

std::string Bytes(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

HostedStep StepOf(const v1::RunSpec& spec, uint64_t round) {
  return HostedStepOf(spec, round, RoundLearningRate(spec, round));
}

std::vector<float> Copy(absl::Span<const float> values) { return {values.begin(), values.end()}; }

// The sections as plain arrays; the outer step tensor by tensor.
struct PlainModel {
  PlainModel(const v1::RunSpec& run, const Grid& cut, const std::vector<float>& start)
      : spec(run), grid(cut), x(start), first(x.size()), second(x.size()), error(x.size()) {}

  // x' of the outer rule in x.
  void OuterStepOfAll(uint64_t round, absl::Span<const float> g) {
    const float gamma = RoundLearningRate(spec, round);
    const OuterSettings settings = OuterSettingsOf(spec.outer(), gamma);
    powers = NextOuterPowers(settings, powers);
    OuterRound made =
        *MakeOuterRound(settings, {static_cast<double>(gamma), powers, DrawKeyOf(spec, round)});
    const int arrays = OuterStateArrays(settings.kind);
    for (uint32_t t = 0; t < grid.tensors(); ++t) {
      const size_t at = grid.tensor_offset(t), count = grid.tensor_elements(t);
      const auto part = [&](std::vector<float>& all, bool there) {
        return there ? absl::MakeSpan(all).subspan(at, count) : absl::Span<float>();
      };
      if (NeedsLargest(settings)) {
        made.bound = OuterLargest(made, g.subspan(at, count), part(first, true));
      }
      OuterStep(made, at, g.subspan(at, count),
                {part(x, true), part(first, arrays > 0), part(second, arrays > 1)});
    }
  }

  void Step(uint64_t round, const std::vector<float>& g) {
    const std::vector<float> before = x;
    OuterStepOfAll(round, g);
    if (UpdateFormOf(spec) != UpdateForm::kDifference) return;
    const NumberSettings reply = NumberSettingsOf(spec.codec().reply());
    for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {  // flat ones
      const ChunkPlace place = grid.Place(chunk);
      const size_t at = grid.tensor_offset(place.tensor) + place.first_element;
      const size_t count = place.shape.elements();
      std::vector<float> sum(count), sent(count);
      for (size_t i = 0; i < count; ++i) sum[i] = error[at + i] + (x[at + i] - before[at + i]);
      std::vector<char> coded;
      AppendNumbers(reply, sum, {}, &coded);
      absl::string_view bytes(coded.data(), coded.size());
      ASSERT_TRUE(ReadNumbers(reply, &bytes, absl::MakeSpan(sent)).ok());
      for (size_t i = 0; i < count; ++i) {
        x[at + i] = before[at + i] + sent[i];
        error[at + i] = sum[i] - sent[i];
      }
    }
  }

  const v1::RunSpec& spec;
  const Grid& grid;
  std::vector<float> x, first, second, error;
  OuterPowers powers;
};

std::unique_ptr<HostedModel> Hosted(const v1::RunSpec& spec,
                                    const std::shared_ptr<const Grid>& grid,
                                    const std::vector<float>& start, int threads,
                                    const std::string& dir = "") {
  auto made = HostedModel::Make(spec, grid, {dir, threads});
  EXPECT_TRUE(made.ok()) << made.status();
  (*made)->Load({0, 0, grid->elements()}, Bytes(start));
  return *std::move(made);
}

TEST(HostedModel, IsThePlainModelAndWhatNodesHold) {
  const uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (const std::string& run : Runs()) {
    SCOPED_TRACE(run);
    v1::RunSpec spec = OuterRunSpec({"a", "b"}, run);
    spec.set_seed(seed);
    const auto grid = GridOf(spec.codec());
    std::vector<float> node = Normals(grid->elements(), 0.1f, &random);
    PlainModel plain(spec, *grid, node);
    const auto hosted = Hosted(spec, grid, node, 1);
    const auto threaded = Hosted(spec, grid, node, 3, ::testing::TempDir());
    EXPECT_EQ(hosted->sections(), 1 + HostedSections(spec));
    for (uint64_t round = 1; round <= 6; ++round) {
      const std::vector<float> g = RandomAggregate(spec, grid->elements(), &random);
      plain.Step(round, g);
      const auto update = hosted->Step(StepOf(spec, round), g);
      ASSERT_TRUE(update.ok()) << update.status();
      ASSERT_TRUE(SameBits(Copy(hosted->Section(0)), plain.x)) << round;
      EXPECT_EQ(update->sha256, DigestOf(*grid, update->pieces));
      ApplyHosted(spec, *grid, round, update->pieces, &node);
      ASSERT_TRUE(SameBits(node, plain.x)) << round;
      const auto same = threaded->Step(StepOf(spec, round), g);
      ASSERT_TRUE(same.ok()) << same.status();
      EXPECT_TRUE(same->pieces == update->pieces);
      for (uint32_t section = 0; section < hosted->sections(); ++section) {
        EXPECT_EQ(hosted->SectionHash(section, round), threaded->SectionHash(section, round));
      }
    }
    if (UpdateFormOf(spec) == UpdateForm::kDifference) {
      EXPECT_TRUE(SameBits(Copy(hosted->Section(1)), plain.error));
    }
    EXPECT_EQ(hosted->powers().beta1, plain.powers.beta1);
    EXPECT_EQ(hosted->powers().beta2, plain.powers.beta2);
  }
}

TEST(HostedModel, GoesOnFromWhatWasReadOfAnother) {
  std::mt19937 random(1);
  const v1::RunSpec spec = OuterRunSpec(
      {"a"}, std::string("preset: 'diloco' outer { kind: OUTER_KIND_ADAMW } ") + kInt8);
  const auto grid = GridOf(spec.codec());
  const auto first = Hosted(spec, grid, Normals(grid->elements(), 0.1f, &random), 1);
  ASSERT_TRUE(first->Step(StepOf(spec, 1), Normals(grid->elements(), 0.1f, &random)).ok());
  const auto second = Hosted(spec, grid, std::vector<float>(grid->elements()), 2);
  for (uint32_t section = 0; section < first->sections(); ++section) {
    for (uint64_t begin = 0; begin < grid->elements(); begin += 1000) {
      const SectionRange range = {section, begin, std::min(grid->elements(), begin + 1000)};
      second->Load(range, first->Read(range));
    }
  }
  second->set_powers(first->powers());
  EXPECT_EQ(first->HashBehindX(first->sections() - 1, 7),
            second->HashBehindX(first->sections() - 1, 7));
  EXPECT_NE(first->HashBehindX(1, 7), first->HashBehindX(2, 7));
  EXPECT_NE(first->HashBehindX(1, 7), first->HashBehindX(1, 8));
  const std::vector<float> g = Normals(grid->elements(), 0.1f, &random);
  EXPECT_TRUE(first->Step(StepOf(spec, 2), g)->pieces == second->Step(StepOf(spec, 2), g)->pieces);
}

TEST(HostedModel, HashesAsNodesDo) {
  std::mt19937 random(2);
  const v1::RunSpec spec = OuterRunSpec({"a"}, "preset: 'diloco'");
  const auto grid = GridOf(spec.codec());
  const std::vector<float> x = Normals(grid->elements(), 0.1f, &random);
  v1::SnapshotFacts facts;
  facts.set_step(24);
  facts.set_sections(1);
  facts.set_elements(grid->elements());
  StateHasher hasher(*grid, facts);
  ASSERT_TRUE(hasher.Add(Bytes(x)).ok());
  EXPECT_EQ(Hosted(spec, grid, x, 3)->SectionHash(0, 24), *hasher.Finish());
}

TEST(HostedModel, SaysWhereItDiverges) {
  for (const std::string& run :
       {std::string("preset: 'diloco'"), std::string("preset: 'diloco' ") + kInt8,
        kSignMomentum + std::string("} ") + kTernary}) {
    for (float wrong : {3e38f, 2e30f}) {
      SCOPED_TRACE(run);
      const v1::RunSpec spec = OuterRunSpec({"a"}, run);
      const auto grid = GridOf(spec.codec());
      std::vector<float> start(grid->elements());
      start[grid->tensor_offset(1) + 4100] = wrong;
      start[grid->tensor_offset(3)] = -wrong;
      const auto hosted = Hosted(spec, grid, start, 2);
      for (const absl::Status& status :
           {hosted->Check(),
            hosted->Step(StepOf(spec, 1), std::vector<float>(start.size())).status()}) {
        EXPECT_TRUE(absl::IsDataLoss(status)) << status;
        EXPECT_EQ(ReasonOf(status), "MODEL_DIVERGED");
        EXPECT_THAT(std::string(status.message()), HasSubstr("bias, element 4100, is "));
      }
    }
  }
}

TEST(HostedModel, AStepThatIsNoneChangesNothing) {
  const v1::RunSpec spec = OuterRunSpec({"a"}, kSignMomentum + std::string("}"));
  const auto grid = GridOf(spec.codec());
  const std::vector<float> start(grid->elements(), 0.5f);
  const auto hosted = Hosted(spec, grid, start, 2);
  HostedStep step = StepOf(spec, 1);
  step.gamma = 0.0;
  const absl::Status refused = hosted->Step(step, start).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_TRUE(SameBits(Copy(hosted->Section(0)), start));
}

TEST(HostedModel, ItsScratchFileHasNoName) {
  const v1::RunSpec spec = OuterRunSpec({"a"}, "preset: 'diloco'");
  const auto grid = GridOf(spec.codec());
  std::string dir = ::testing::TempDir() + "/hosted_test_XXXXXX";
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  const auto hosted = Hosted(spec, grid, std::vector<float>(grid->elements(), 1.0f), 1, dir);
  EXPECT_TRUE(std::filesystem::is_empty(dir));
  EXPECT_EQ(hosted->Section(0)[77], 1.0f);
  EXPECT_EQ(hosted->Section(1)[77], 0.0f);
  std::filesystem::remove(dir);
  const absl::Status missing = HostedModel::Make(spec, grid, {dir, 1}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr(dir));
}

}  // namespace
}  // namespace isthmus
