// Contributions to rounds with local steps, and their aggregate, beside a plain one.
#include "server/outer_fold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

#include "kernels/reference/outer.h"
#include "kernels/reference/reference.h"
#include "tests/server/outer_runs.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

std::vector<HeldPiece> Checked(const Grid& grid, const std::vector<std::string>& pieces) {
  std::vector<HeldPiece> checked;
  for (const std::string& piece : pieces) {
    auto held = CheckContributionPiece(grid, piece);
    EXPECT_TRUE(held.ok()) << held.status();
    checked.push_back(*std::move(held));
  }
  return checked;
}

// Each node's sum of squares over the model, block by block; of components before the transform.
std::vector<double> PlainSquares(const Grid& grid, const std::vector<Chunks>& nodes, bool is_dct) {
  std::vector<double> squares;
  for (const Chunks& chunks : nodes) {
    const std::vector<float> model = ModelOf(grid, chunks, false);
    const std::vector<uint64_t> offsets = BlockOffsets(grid);
    double sum = 0.0;
    for (size_t b = 0; b < grid.blocks().size(); ++b) {
      const Block& block = grid.blocks()[b];
      std::vector<float> values(model.begin() + offsets[b], model.begin() + offsets[b + 1]);
      if (is_dct) {
        values.clear();
        for (uint64_t i = 0; i < block.chunks; ++i) {
          const std::vector<float>& chunk = chunks[block.first_chunk + i];
          values.insert(values.end(), chunk.begin(), chunk.end());
        }
      }
      sum += reference::SquaresOf(values);
    }
    squares.push_back(sum);
  }
  return squares;
}

std::vector<float> PlainFactors(const OuterFoldSettings& settings, const Grid& grid,
                                const std::vector<Chunks>& nodes,
                                const std::vector<ContributionSize>& sizes) {
  if (settings.aggregate.kind == AggregateKind::kNormClippedMean) {
    return ClipFactors(PlainSquares(grid, nodes, grid.codec().kind() == v1::CODEC_KIND_DCT));
  }
  if (settings.aggregate.kind != AggregateKind::kWeightedMean) return {};
  std::vector<double> weights;
  for (const ContributionSize& size : sizes) {
    weights.push_back(*ContributionWeight(settings.weight, size, settings.limits));
  }
  return *MeanFactors(weights, settings.aggregate.weight_max_share);
}

// One position after the other.
std::vector<float> PlainFold(OuterFoldSettings settings, const Grid& grid,
                             const std::vector<Chunks>& nodes,
                             const std::vector<ContributionSize>& sizes) {
  AggregateSettings& rule = settings.aggregate;
  rule.trim = std::min<uint32_t>(rule.trim, static_cast<uint32_t>(nodes.size() - 1) / 2);
  const bool is_dct = grid.codec().kind() == v1::CODEC_KIND_DCT;
  const bool takes_sign =
      rule.kind == AggregateKind::kSignOfMean || rule.kind == AggregateKind::kMajority;
  const std::vector<float> factors = PlainFactors(settings, grid, nodes, sizes);
  const bool before = is_dct && FoldsOneAtATime(rule.kind);  // the transform back comes after
  if (before && takes_sign) rule.kind = AggregateKind::kMean;
  Chunks merged = nodes[0];
  std::vector<std::vector<float>> models;
  for (const Chunks& chunks : nodes) models.push_back(ModelOf(grid, chunks, is_dct && !before));
  std::vector<const float*> rows;
  for (const std::vector<float>& model : models) rows.push_back(model.data());
  std::vector<float> g(grid.elements());
  if (!before) {
    reference::AggregateBlock(rule, rows, factors, absl::MakeSpan(g));
    return g;
  }
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    std::vector<const float*> parts;
    for (const Chunks& chunks : nodes) parts.push_back(chunks[chunk].data());
    reference::AggregateBlock(rule, parts, factors, absl::MakeSpan(merged[chunk]));
  }
  g = ModelOf(grid, merged, true);
  if (takes_sign) reference::SignInPlace(absl::MakeSpan(g));
  return g;
}

struct Case {
  std::string name;
  v1::CodecSpec codec;
};

std::vector<Case> Codecs() {
  std::vector<Case> cases;
  for (const auto& [name, format] : std::vector<std::pair<std::string, v1::NumberFormat>>{
           {"f32", v1::NUMBER_FORMAT_F32},
           {"bf16", v1::NUMBER_FORMAT_BF16},
           {"int8", v1::NUMBER_FORMAT_INT8},
           {"int4", v1::NUMBER_FORMAT_INT4},
           {"sign1", v1::NUMBER_FORMAT_SIGN1},
           {"ternary", v1::NUMBER_FORMAT_TERNARY}}) {
    cases.push_back({name, NumbersCodec(format)});
  }
  cases.push_back({"int4_hadamard", NumbersCodec(v1::NUMBER_FORMAT_INT4, 32)});
  cases.push_back({"topk", TopkCodec(512, 20)});
  cases.push_back({"topk_4096", TopkCodec(4096, 64)});
  cases.push_back({"dct", DctCodec()});
  return cases;
}

std::vector<OuterFoldSettings> Rules(const v1::CodecSpec& codec) {
  std::vector<OuterFoldSettings> rules;
  for (AggregateKind kind :
       {AggregateKind::kMean, AggregateKind::kWeightedMean, AggregateKind::kSignOfMean,
        AggregateKind::kMajority, AggregateKind::kTrimmedMean, AggregateKind::kMedian,
        AggregateKind::kNormClippedMean}) {
    OuterFoldSettings settings;
    settings.aggregate.kind = kind;
    settings.aggregate.trim = 1;
    settings.aggregate.weight_max_share = 0.5;
    settings.weight = WeightKind::kTokensTimesTokensPerStep;
    settings.limits = {1000000, 1000};
    settings.numbers = NumberSettingsOf(codec.numbers());
    rules.push_back(settings);
  }
  return rules;
}

TEST(FoldOuter, IsThePlainAggregateForEveryCutAndThreadCount) {
  const uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (const Case& test : Codecs()) {
    const auto grid = GridOf(test.codec);
    for (size_t count : {1, 2, 3, 5}) {
      std::vector<uint32_t> seeds;
      std::vector<ContributionSize> weights;
      std::vector<Chunks> nodes;
      for (size_t node = 0; node < count; ++node) {
        seeds.push_back(static_cast<uint32_t>(random()));
        weights.push_back({1 + random() % 1000000, 1 + random() % 1000});
        nodes.push_back(ChunksOf(*grid, OuterPieces(*grid, seeds[node])));
      }
      for (const OuterFoldSettings& rule : Rules(test.codec)) {
        SCOPED_TRACE(test.name + ", " + std::string(AggregateName(rule.aggregate.kind)) + " of " +
                     std::to_string(count));
        const std::vector<float> expected = PlainFold(rule, *grid, nodes, weights);
        for (int threads : {1, 3}) {
          std::vector<OuterContribution> contributions;
          for (size_t node = 0; node < count; ++node) {
            const auto pieces = OuterPieces(*grid, seeds[node], 20000 + random() % 30000);
            contributions.push_back({Checked(*grid, pieces), weights[node]});
            EXPECT_EQ(ContributionDigest(*grid, contributions.back().pieces),
                      DigestOf(*grid, pieces));
          }
          const auto folded = FoldOuter(rule, *grid, contributions, threads);
          ASSERT_TRUE(folded.ok()) << folded.status();
          ASSERT_TRUE(SameBits(folded->g, expected));
          double squares = 0.0;
          const std::vector<uint64_t> offsets = BlockOffsets(*grid);
          for (size_t b = 0; b + 1 < offsets.size(); ++b) {
            squares += reference::SquaresOf(
                absl::MakeSpan(expected).subspan(offsets[b], offsets[b + 1] - offsets[b]));
          }
          EXPECT_EQ(folded->norm, static_cast<float>(std::sqrt(squares)));
        }
      }
    }
  }
}

TEST(FoldOuter, RefusesAWeightOutOfItsLimits) {
  const auto grid = GridOf(NumbersCodec(v1::NUMBER_FORMAT_F32));
  OuterFoldSettings settings;
  settings.aggregate.kind = AggregateKind::kWeightedMean;
  settings.weight = WeightKind::kTokens;
  settings.limits = {100, 10};
  const std::vector<HeldPiece> pieces = Checked(*grid, OuterPieces(*grid, 1));
  for (uint64_t tokens : {0, 101}) {
    const absl::Status refused = FoldOuter(settings, *grid, {{pieces, {tokens, 1}}}, 1).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(std::to_string(tokens) + " tokens"));
  }
}

// What would spoil a sum is named and never gets as far as one.
TEST(ContributionPiece, ValuesThatAreNotFiniteOrTooLargeAreRefused) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Case& test : Codecs()) {
    if (test.name != "f32" && test.name != "topk" && test.name != "dct") continue;
    const auto grid = GridOf(test.codec);
    for (float wrong : {infinity, -infinity, std::nanf(""), 1.01e30f, -3e38f}) {
      std::string piece = OuterPieces(*grid, 7, 20000)[0];
      std::memcpy(&piece[piece.size() - sizeof(float)], &wrong, sizeof(float));  // its last value
      const absl::Status refused = CheckContributionPiece(*grid, Resealed(piece)).status();
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << test.name << ": " << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr(", chunk ")) << test.name;
    }
    std::string piece = OuterPieces(*grid, 7, 20000)[0];
    const float most = -1e30f;
    std::memcpy(&piece[piece.size() - sizeof(float)], &most, sizeof(float));
    EXPECT_TRUE(CheckContributionPiece(*grid, Resealed(piece)).ok()) << test.name;
  }
}

}  // namespace
}  // namespace isthmus
