#include "worker/methods/demo_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <random>

#include "base/limits.h"
#include "kernels/demo.h"
#include "spec/piece.h"
#include "tests/worker/method_fixture.h"

namespace isthmus {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

const std::vector<Shape> kShapes = {{130, 70}, {5000}, {}, {3, 3}};

// d <- d + scale * decode of the pieces, the obvious way over whole tensors.
void AddDecoded(const Grid& grid, const std::vector<std::string>& pieces, float scale,
                Tensors* residual) {
  for (const std::string& bytes : pieces) {
    const absl::StatusOr<PieceView> piece = OpenPiece(grid, bytes);
    ASSERT_TRUE(piece.ok());
    const absl::Status status =
        ForEachChunk(grid, *piece, [&](uint64_t chunk, const Components& components) {
          const ChunkPlace place = grid.Place(chunk);
          std::vector<float> x(place.shape.elements());
          DecodeComponents(place.shape, components, absl::MakeSpan(x));
          for (uint32_t i = 0; i < x.size(); ++i) {
            const uint64_t element =
                place.first_element + i / place.shape.cols * place.stride + i % place.shape.cols;
            const float product = scale * x[i];
            (*residual)[place.tensor][element] += product;
          }
          return absl::OkStatus();
        });
    ASSERT_TRUE(status.ok()) << status;
  }
}

void ExpectResidual(const DemoShard& shard, const Tensors& expected) {
  for (size_t t = 0; t < expected.size(); ++t) {
    const absl::Span<const float> residual = shard.residual(t);
    ASSERT_EQ(std::vector<float>(residual.begin(), residual.end()), expected[t]) << "tensor " << t;
  }
}

// Rounds settle late, in any order, included or left out; the residual is that of a plain model.
void ExpectPlainModel(v1::CodecSpec codec) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  codec.set_beta(0.75f);
  codec.set_alpha(0.625f);
  codec = CompleteCodec(codec);
  const Grid grid = MakeGrid(kShapes, codec);
  Tensors model = ZeroTensors(grid);
  DemoShard shard = MakeShard(grid, codec, WholeParts(model), 2, 3000);
  struct Taken {
    std::vector<std::string> pieces;
    float decay = 1.0f;
  };
  std::map<uint64_t, Taken> pending;
  for (uint64_t round = 1; round <= 12; ++round) {
    const Tensors gradients = RandomTensors(grid, seed + static_cast<uint32_t>(round));
    for (size_t t = 0; t < model.size(); ++t) {
      UpdateMomentum(0.75f, 0.5f, gradients[t], absl::MakeSpan(model[t]));
    }
    for (auto& [_, taken] : pending) taken.decay *= 0.75f;
    absl::StatusOr<std::vector<std::string>> pieces =
        shard.Encode(round, 0.5f, WholeParts(gradients));
    ASSERT_TRUE(pieces.ok()) << pieces.status();
    // Signs do not say what they took.
    const PendingContribution own = shard.State().pending.back();
    const bool are_signs = codec.numbers().format() == v1::NUMBER_FORMAT_SIGN1;
    ASSERT_EQ(own.taken.empty(), !are_signs);
    pending[round] = {are_signs ? own.taken : *pieces, 1.0f};
    AddDecoded(grid, pending[round].pieces, -0.625f, &model);
    ExpectResidual(shard, model);
    while (!pending.empty() && random() % 2 == 0) {
      const auto settled = std::next(pending.begin(), random() % pending.size());
      const bool included = random() % 2 == 0;
      if (!included) {
        AddDecoded(grid, settled->second.pieces, settled->second.decay * 0.625f, &model);
      }
      shard.Settle(settled->first, included);
      pending.erase(settled);
      ExpectResidual(shard, model);
    }
    EXPECT_EQ(shard.pending_rounds(), pending.size());
  }
  shard.Settle(99, false);  // never encoded: abstained
  ExpectResidual(shard, model);
}

TEST(DemoShardTest, ReserveAndSettleMatchAPlainModel) { ExpectPlainModel({}); }

// Rounded values leave the residual as others read them; of signs all that was selected does.
TEST(DemoShardTest, ReserveAndSettleMatchAPlainModelInEveryFormat) {
  for (const v1::NumberFormat format :
       {v1::NUMBER_FORMAT_BF16, v1::NUMBER_FORMAT_F16, v1::NUMBER_FORMAT_INT8,
        v1::NUMBER_FORMAT_INT4, v1::NUMBER_FORMAT_SIGN1}) {
    SCOPED_TRACE(v1::NumberFormat_Name(format));
    v1::CodecSpec codec;
    codec.mutable_numbers()->set_format(format);
    ExpectPlainModel(codec);
  }
}

// As in runs that are older than codec.numbers.
TEST(DemoShardTest, ReserveAndSettleMatchAPlainModelInTheOlderLayout) {
  v1::CodecSpec codec = CompleteCodec({});
  codec.clear_numbers();
  ExpectPlainModel(codec);
}

// Chunks whose form is dense although not all components are sent (32 of 50, for one).
TEST(DemoShardTest, ReserveAndSettleMatchAPlainModelWithThePublishedRule) {
  for (uint32_t top_k : {1u, 32u, 60u}) {
    v1::CodecSpec codec;
    codec.set_chunk_rule(v1::CHUNK_RULE_DIVISOR);
    codec.set_top_k(top_k);
    ExpectPlainModel(codec);
  }
}

// With sign off and next to no decay, what went in is what went out plus what is left.
TEST(DemoShardTest, NothingIsLostAndNothingCountsTwice) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  v1::CodecSpec codec;
  codec.set_beta(std::nextafter(1.0f, 0.0f));
  codec.set_sign(false);
  codec = CompleteCodec(codec);
  const Grid grid = MakeGrid(kShapes, codec);
  Tensors p = ZeroTensors(grid);
  DemoShard shard = MakeShard(grid, codec, WholeParts(p));
  std::vector<std::vector<double>> inputs;
  for (const auto& tensor : p) inputs.emplace_back(tensor.size(), 0.0);
  for (uint64_t round = 1; round <= 20; ++round) {
    const Tensors gradients = RandomTensors(grid, seed + static_cast<uint32_t>(round));
    for (size_t t = 0; t < p.size(); ++t) {
      for (size_t e = 0; e < p[t].size(); ++e) inputs[t][e] += gradients[t][e];
    }
    const auto pieces = shard.Encode(round, 1.0f, WholeParts(gradients));
    ASSERT_TRUE(pieces.ok());
    const bool included = round % 3 != 0;
    if (included) {
      ASSERT_TRUE(
          shard.Apply({1.0f, 0.0f}, Pointers(Merge(grid, {*pieces}, 5000)), WholeParts(&p)).ok());
    }
    shard.Settle(round, included);
  }
  for (size_t t = 0; t < p.size(); ++t) {
    for (size_t e = 0; e < p[t].size(); ++e) {
      ASSERT_NEAR(inputs[t][e], -p[t][e] + shard.residual(t)[e], 2e-4) << t << " " << e;
    }
  }
}

TEST(DemoShardTest, ThreadsAndPieceSizesChangeNothing) {
  const v1::CodecSpec codec = CompleteCodec();
  const Grid grid = MakeGrid(kShapes, codec);
  const Tensors gradients = RandomTensors(grid, 4);
  DemoShard one = MakeShard(grid, codec, WholeParts(gradients), 1, 1000);
  const auto pieces = one.Encode(1, 0.5f, WholeParts(gradients));
  ASSERT_TRUE(pieces.ok());
  EXPECT_GT(pieces->size(), 2u);
  for (int threads : {2, 7}) {
    DemoShard many = MakeShard(grid, codec, WholeParts(gradients), threads, 1000);
    EXPECT_EQ(*many.Encode(1, 0.5f, WholeParts(gradients)), *pieces);
  }
  DemoShard large = MakeShard(grid, codec, WholeParts(gradients), 2);
  EXPECT_EQ(*PayloadDigest(grid, Pointers(*large.Encode(1, 0.5f, WholeParts(gradients)))),
            *PayloadDigest(grid, Pointers(*pieces)));
}

TEST(DemoShardTest, NonFiniteGradientsAreRefusedBeforeAnythingChanges) {
  const v1::CodecSpec codec = CompleteCodec();
  const Grid grid = MakeGrid(kShapes, codec);
  Tensors gradients = RandomTensors(grid, 4);
  DemoShard shard = MakeShard(grid, codec, WholeParts(gradients), 2);
  ASSERT_TRUE(shard.Encode(1, 0.5f, WholeParts(gradients)).ok());
  Tensors before;
  for (size_t t = 0; t < 4; ++t) {
    before.emplace_back(shard.residual(t).begin(), shard.residual(t).end());
  }
  const float inf = std::numeric_limits<float>::infinity();
  for (const float eta : {0.5f, 0.0f}) {
    for (const float bad : {inf, -inf, std::nanf("")}) {
      Tensors damaged = gradients;
      damaged[1][4321] = bad;
      const absl::Status status = shard.Encode(2, eta, WholeParts(damaged)).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr("'t1' is "));
      EXPECT_THAT(std::string(status.message()), HasSubstr("at element 4321"));
    }
  }
  gradients[3][0] = 3e38f;  // finite, but a transform of it would not be
  EXPECT_THAT(std::string(shard.Encode(2, 1.0f, WholeParts(gradients)).status().message()),
              HasSubstr("momentum above the limit"));
  gradients[3][0] = 0.0f;
  EXPECT_FALSE(shard.Encode(2, inf, WholeParts(gradients)).ok());
  EXPECT_FALSE(shard.Encode(2, -1.0f, WholeParts(gradients)).ok());
  ExpectResidual(shard, before);
  EXPECT_EQ(shard.pending_rounds(), 1u);
}

TEST(DemoShardTest, LargestMomentumStaysFinite) {
  v1::CodecSpec codec;
  codec.set_chunk_side(128);
  codec.set_sign(false);
  codec = CompleteCodec(codec);
  const Grid grid = MakeGrid({{128, 128}}, codec);
  Tensors p = ZeroTensors(grid);
  const Tensors gradients = {std::vector<float>(128 * 128, kMomentumMax)};
  DemoShard shard = MakeShard(grid, codec, WholeParts(p));
  const auto pieces = shard.Encode(1, 1.0f, WholeParts(gradients));
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  ASSERT_TRUE(shard.Apply({1.0f, 0.0f}, Pointers(*pieces), WholeParts(&p)).ok());
  for (float value : p[0]) ASSERT_TRUE(std::isfinite(value));
  for (float value : shard.residual(0)) ASSERT_TRUE(std::isfinite(value));
}

TEST(DemoShardTest, RoundsMustBeSettled) {
  const v1::CodecSpec codec = CompleteCodec();
  const Grid grid = MakeGrid({{5}}, codec);
  const Tensors gradients = RandomTensors(grid, 4);
  DemoShard shard = MakeShard(grid, codec, WholeParts(gradients));
  for (uint64_t round = 1; round <= kPendingRoundsMax; ++round) {
    ASSERT_TRUE(shard.Encode(round, 0.5f, WholeParts(gradients)).ok());
  }
  EXPECT_EQ(shard.Encode(3, 0.5f, WholeParts(gradients)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(shard.Encode(100, 0.5f, WholeParts(gradients)).status().code(),
            absl::StatusCode::kResourceExhausted);
  shard.Settle(3, true);
  EXPECT_TRUE(shard.Encode(100, 0.5f, WholeParts(gradients)).ok());
}

// C13: a rank that holds nothing, a part without elements, fewer elements than components.
TEST(DemoShardTest, EmptyShardsWork) {
  const v1::CodecSpec codec = CompleteCodec();
  const Grid grid = MakeGrid(kShapes, codec);
  DemoShard nothing = MakeShard(grid, codec, {});
  EXPECT_TRUE(nothing.ranges().empty());
  EXPECT_TRUE(nothing.Encode(1, 0.5f, {})->empty());
  nothing.Settle(1, false);
  const Tensors gradients = RandomTensors(grid, 4);
  DemoShard all = MakeShard(grid, codec, WholeParts(gradients));
  const auto update = all.Encode(1, 0.5f, WholeParts(gradients));
  EXPECT_TRUE(nothing.Apply({0.5f, 0.0f}, Pointers(*update), {}).ok());

  DemoShard empty_part = MakeShard(grid, codec, {{0, 0, {}}, {2, 0, gradients[2]}});
  EXPECT_EQ(empty_part.ranges().size(), 1u);
  EXPECT_EQ(empty_part.Encode(1, 0.5f, {{0, 0, {}}, {2, 0, gradients[2]}})->size(), 1u);
}

TEST(DemoShardTest, MoreComponentsThanElements) {
  v1::CodecSpec codec;
  codec.set_chunk_rule(v1::CHUNK_RULE_DIVISOR);
  codec.set_top_k(1000);
  codec.set_sign(false);
  codec.set_beta(0);
  codec = CompleteCodec(codec);
  const Grid grid = MakeGrid(kShapes, codec);
  const Tensors gradients = RandomTensors(grid, 4);
  Tensors p = ZeroTensors(grid);
  DemoShard shard = MakeShard(grid, codec, WholeParts(p));
  const auto pieces = shard.Encode(1, 1.0f, WholeParts(gradients));
  ASSERT_TRUE(pieces.ok());
  ASSERT_TRUE(shard.Apply({1.0f, 0.0f}, Pointers(*pieces), WholeParts(&p)).ok());
  // Vectors and small matrices are sent whole.
  for (size_t t = 1; t < 4; ++t) {
    for (size_t e = 0; e < p[t].size(); ++e) ASSERT_NEAR(p[t][e], -gradients[t][e], 1e-5);
  }
}

TEST(DemoShardTest, SignAndDecayReachTheParameters) {
  const v1::CodecSpec codec = CompleteCodec();
  const Grid grid = MakeGrid(kShapes, codec);
  const Tensors start = RandomTensors(grid, 9);
  DemoShard shard = MakeShard(grid, codec, WholeParts(start));
  const auto pieces = shard.Encode(1, 0.5f, WholeParts(RandomTensors(grid, 4)));
  Tensors decoded = ZeroTensors(grid);
  AddDecoded(grid, *pieces, 1.0f, &decoded);
  Tensors p = start;
  ASSERT_TRUE(shard.Apply({0.25f, 0.5f}, Pointers(*pieces), WholeParts(&p)).ok());
  for (size_t t = 0; t < p.size(); ++t) {
    for (size_t e = 0; e < p[t].size(); ++e) {
      const float u = decoded[t][e] > 0 ? 1.0f : decoded[t][e] < 0 ? -1.0f : 0.0f;
      const float kept = start[t][e] * (1.0f - 0.25f * 0.5f);
      ASSERT_EQ(p[t][e], kept - 0.25f * u);
    }
  }
  p = start;
  ASSERT_TRUE(shard.Apply({0.25f, 0.5f}, {}, WholeParts(&p)).ok());  // void
  EXPECT_EQ(p, start);
}

TEST(DemoShardTest, UpdatesAreCheckedBeforeParametersChange) {
  const v1::CodecSpec codec = CompleteCodec();
  const Grid grid = MakeGrid(kShapes, codec);
  const Tensors start = RandomTensors(grid, 9);
  DemoShard shard = MakeShard(grid, codec, WholeParts(start), 2, 1000);
  const auto update = *shard.Encode(1, 0.5f, WholeParts(RandomTensors(grid, 4)));
  ASSERT_GT(update.size(), 3u);
  Tensors p = start;
  const auto message = [&](const std::vector<std::string>& pieces) {
    const absl::Status status = shard.Apply({0.5f, 0.1f}, Pointers(pieces), WholeParts(&p));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(p, start);
    return std::string(status.message());
  };
  auto changed = update;
  changed.pop_back();
  EXPECT_THAT(message(changed),
              HasSubstr("does not cover chunks 0 to before 87 (from t0, chunk 0"));
  changed = update;
  changed.push_back(update[1]);
  EXPECT_THAT(message(changed), HasSubstr("the update has twice a chunk of"));
  changed = update;
  changed[2][40] = static_cast<char>(changed[2][40] ^ 1);
  EXPECT_THAT(message(changed), HasSubstr("CRC-32C"));

  auto parts = WholeParts(&p);
  parts.pop_back();
  EXPECT_THAT(std::string(shard.Apply({0.5f, 0}, Pointers(update), parts).message()),
              HasSubstr("the part of 't3' from element 0 on is missing"));
  parts = WholeParts(&p);
  parts[1].data.remove_suffix(1);
  EXPECT_THAT(std::string(shard.Apply({0.5f, 0}, Pointers(update), parts).message()),
              HasSubstr("a part of tensor 't1' has 4999 elements from 0 on"));
  EXPECT_FALSE(shard.Apply({std::nanf(""), 0}, Pointers(update), WholeParts(&p)).ok());
  EXPECT_EQ(p, start);
}

TEST(DemoShardTest, PartsAreChecked) {
  const v1::CodecSpec codec = CompleteCodec();
  const Grid grid = MakeGrid(kShapes, codec);
  const Tensors tensors = RandomTensors(grid, 9);
  MethodOptions options;
  options.optimizer.set_base(v1::BASE_OPTIMIZER_SGD);
  options.grid = &grid;
  options.codec = codec;
  const auto message = [&](const std::vector<TensorPart<const float>>& parts) {
    return std::string(DemoShard::Make(options, parts).status().message());
  };
  const absl::Span<const float> t0(tensors[0]);
  EXPECT_THAT(message({{0, 0, t0.subspan(0, 70)}}), HasSubstr("inside the block"));
  EXPECT_THAT(message({{0, 0, t0}, {0, 64 * 70, t0.subspan(64 * 70)}}),
              HasSubstr("two parts hold t0, chunk 2"));
  options.piece_bytes_max = kPieceBytesMax + 1;
  EXPECT_THAT(message({}), HasSubstr("piece_bytes_max is 1048577"));

  DemoShard shard = MakeShard(grid, codec, WholeParts(tensors));
  auto twice = WholeParts(tensors);
  twice.push_back(twice[0]);
  EXPECT_THAT(std::string(shard.Encode(1, 0.5f, twice).status().message()),
              HasSubstr("give each part as it was named at Make, once"));
  for (size_t t = 0; t < tensors.size(); ++t) EXPECT_THAT(shard.residual(t), Each(0.0f));
}

}  // namespace
}  // namespace isthmus
