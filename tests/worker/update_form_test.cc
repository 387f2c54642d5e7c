// Whichever form an update has, nodes end with the same bits, and the record says the same norm.
#include "server/update_form.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <limits>
#include <memory>
#include <random>
#include <utility>

#include "base/limits.h"
#include "server/contribution.h"
#include "spec/piece.h"
#include "tests/worker/method_fixture.h"

namespace isthmus {
namespace {

// Odd sides have elements that components with odd frequencies leave at 0.
const std::vector<Shape> kShapes = {{130, 70}, {35, 9}, {5000}, {}, {3, 3}};

std::unique_ptr<Method> MethodOf(const Grid& grid, const v1::CodecSpec& codec,
                                 v1::BaseOptimizer base, const Tensors& tensors) {
  MethodOptions options;
  options.grid = &grid;
  options.codec = codec;
  options.optimizer.set_base(base);
  options.optimizer.set_beta1(0.9f);
  options.optimizer.set_beta2(0.95f);
  options.optimizer.set_eps(1e-8f);
  options.threads = 2;
  auto method = MakeMethod(options, WholeParts(tensors));
  EXPECT_TRUE(method.ok()) << method.status();
  return *std::move(method);
}

// One round of `nodes` nodes with random gradients.
struct Sent {
  std::vector<std::vector<HeldPiece>> contributions;
  FoldedUpdate folded;
};
Sent Round(const Grid& grid, const v1::CodecSpec& codec, size_t nodes, uint32_t seed) {
  Sent sent;
  sent.contributions.resize(nodes);
  for (size_t node = 0; node < nodes; ++node) {
    const Tensors gradients = RandomTensors(grid, seed + static_cast<uint32_t>(node));
    DemoShard shard = MakeShard(grid, codec, WholeParts(gradients), 1, 3000);
    const auto pieces = shard.Encode(1, 0.01f, WholeParts(gradients));
    EXPECT_TRUE(pieces.ok()) << pieces.status();
    for (const std::string& piece : *pieces) {
      auto held = CheckContributionPiece(grid, piece);
      EXPECT_TRUE(held.ok()) << held.status();
      sent.contributions[node].push_back(*std::move(held));
    }
  }
  sent.folded = FoldContributions(grid, sent.contributions, 2);
  return sent;
}

Grid WithForm(const Grid& grid, v1::UpdateForm form) {
  v1::CodecSpec codec = grid.codec();
  codec.set_update_form(form);
  Grid other = grid;
  EXPECT_TRUE(other.TakeCodec(codec).ok());
  return other;
}

v1::PayloadCodec LayoutOf(const v1::CodecSpec& codec, v1::UpdateForm form) {
  if (form == v1::UPDATE_FORM_SIGN_PLANE) return v1::PAYLOAD_CODEC_SIGN_PLANE;
  if (form == v1::UPDATE_FORM_CONTRIBUTIONS) return v1::PAYLOAD_CODEC_CONTRIBUTIONS;
  return form == v1::UPDATE_FORM_DENSE ? v1::PAYLOAD_CODEC_MERGED_DENSE : UpdateLayout(codec);
}

void ExpectSameBits(v1::NumberFormat format, v1::BaseOptimizer base, size_t nodes, uint32_t seed) {
  v1::CodecSpec codec;
  codec.mutable_numbers()->set_format(format);
  codec = CompleteCodec(codec);
  const Grid grid = MakeGrid(kShapes, codec);
  const Sent sent = Round(grid, codec, nodes, seed);
  const FoldedUpdate& folded = sent.folded;
  EXPECT_EQ(folded.layout, UpdateLayout(codec));
  const Tensors start = RandomTensors(grid, seed);
  std::vector<Tensors> ends;
  for (const v1::UpdateForm form :
       {v1::UPDATE_FORM_UNSPECIFIED, v1::UPDATE_FORM_COMPONENTS, v1::UPDATE_FORM_CONTRIBUTIONS,
        v1::UPDATE_FORM_SIGN_PLANE, v1::UPDATE_FORM_DENSE}) {
    const Grid own = WithForm(grid, form);
    const FoldedUpdate update = InForm(own, folded, sent.contributions, 2);
    EXPECT_EQ(update.norm, folded.norm);
    EXPECT_TRUE(InForm(own, folded, sent.contributions, 1).pieces == update.pieces);
    if (form != v1::UPDATE_FORM_UNSPECIFIED) {
      EXPECT_EQ(update.layout, LayoutOf(codec, form));
    }
    Tensors parameters = start;
    const auto method = MethodOf(own, own.codec(), base, parameters);
    const std::vector<const std::string*> pieces = Pointers(update.pieces);
    EXPECT_TRUE(PayloadDigest(own, pieces).ok());
    for (int step = 0; step < 2; ++step) {
      const absl::Status applied =
          method->Apply({0.01f, 0.1f, update.norm, 1}, pieces, WholeParts(&parameters));
      ASSERT_TRUE(applied.ok()) << applied;
    }
    ends.push_back(std::move(parameters));
    ASSERT_TRUE(ends.back() == ends.front()) << v1::UpdateForm_Name(form);
    ASSERT_FALSE(ends.back() == start);
  }
}

TEST(UpdateForm, NodesEndWithTheSameBits) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  for (const v1::NumberFormat format :
       {v1::NUMBER_FORMAT_F32, v1::NUMBER_FORMAT_BF16, v1::NUMBER_FORMAT_F16,
        v1::NUMBER_FORMAT_INT8, v1::NUMBER_FORMAT_INT4, v1::NUMBER_FORMAT_SIGN1}) {
    SCOPED_TRACE(v1::NumberFormat_Name(format));
    ExpectSameBits(format, v1::BASE_OPTIMIZER_SGD, 3, seed);
    ExpectSameBits(format, v1::BASE_OPTIMIZER_ADAMW, 2, seed);
  }
}

// Components near the end of float32, whose transform is infinite here and no number there.
TEST(UpdateForm, NodesEndWithTheSameBitsWhereDecodingOverflows) {
  v1::CodecSpec codec = CompleteCodec();
  codec.set_update_form(v1::UPDATE_FORM_SIGN_PLANE);
  const Grid grid = MakeGrid({{64, 64}, {300}}, codec);
  PieceWriter writer(&grid, v1::PAYLOAD_CODEC_MERGED, kPieceBytesMax);
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    Components huge;
    for (uint32_t i = 0; i < grid.Place(chunk).shape.elements(); ++i) {
      huge.index.push_back(i);
      huge.value.push_back(i % 3 == 0 ? -std::numeric_limits<float>::max()
                                      : std::numeric_limits<float>::max());
    }
    writer.Append(chunk, huge);
  }
  const FoldedUpdate folded = {writer.Finish(), v1::PAYLOAD_CODEC_MERGED, 1.0f};
  const FoldedUpdate plane = InForm(grid, folded, {}, 2);
  ASSERT_EQ(plane.layout, v1::PAYLOAD_CODEC_SIGN_PLANE);
  const Tensors start = RandomTensors(grid, 1);
  std::vector<Tensors> ends;
  for (const FoldedUpdate* update : {&folded, &plane}) {
    ends.push_back(start);
    const auto method = MethodOf(grid, codec, v1::BASE_OPTIMIZER_SGD, start);
    const absl::Status applied =
        method->Apply({0.01f, 0.1f, 1.0f, 1}, Pointers(update->pieces), WholeParts(&ends.back()));
    ASSERT_TRUE(applied.ok()) << applied;
  }
  EXPECT_TRUE(ends[0] == ends[1]);
}

TEST(UpdateForm, TheSmallestIsSent) {
  const auto layout = [](double density, bool sign, v1::NumberFormat format, size_t nodes) {
    v1::CodecSpec codec;
    codec.mutable_numbers()->set_format(format);
    codec.set_sign(sign);
    codec.set_matrix_density(density);
    codec.set_vector_density(density);
    codec = CompleteCodec(codec);
    const Grid grid = MakeGrid({{128, 128}, {640}}, codec);
    const Sent sent = Round(grid, codec, nodes, 1);
    return InForm(grid, sent.folded, sent.contributions, 1).layout;
  };
  const v1::NumberFormat f32 = v1::NUMBER_FORMAT_F32;
  EXPECT_EQ(layout(32.0 / 4096, true, f32, 2), v1::PAYLOAD_CODEC_MERGED);
  for (const v1::NumberFormat few :
       {v1::NUMBER_FORMAT_F16, v1::NUMBER_FORMAT_INT8, v1::NUMBER_FORMAT_INT4}) {
    EXPECT_EQ(layout(32.0 / 4096, true, few, 2), v1::PAYLOAD_CODEC_CONTRIBUTIONS);
  }
  EXPECT_EQ(layout(0.25, true, f32, 2), v1::PAYLOAD_CODEC_SIGN_PLANE);
  EXPECT_EQ(layout(0.25, false, f32, 2), v1::PAYLOAD_CODEC_MERGED);
  EXPECT_EQ(layout(1.0, false, f32, 2), v1::PAYLOAD_CODEC_MERGED_DENSE);
  EXPECT_EQ(layout(32.0 / 4096, true, v1::NUMBER_FORMAT_SIGN1, 4), v1::PAYLOAD_CODEC_CONTRIBUTIONS);
  EXPECT_EQ(layout(0.1, false, v1::NUMBER_FORMAT_SIGN1, 8), v1::PAYLOAD_CODEC_MERGED_VOTES);
}

// A chunk cannot be cut, and a piece has an end.
TEST(UpdateForm, WhatSoManySentOfAChunkMayBeLargerThanAPiece) {
  v1::CodecSpec codec;
  codec.set_matrix_density(1);
  codec.set_update_form(v1::UPDATE_FORM_CONTRIBUTIONS);
  codec = CompleteCodec(codec);
  const Grid grid = MakeGrid({{64, 64}, {3}}, codec);
  for (const auto& [nodes, layout] :
       {std::pair<size_t, v1::PayloadCodec>{60, v1::PAYLOAD_CODEC_CONTRIBUTIONS},
        std::pair<size_t, v1::PayloadCodec>{70, v1::PAYLOAD_CODEC_MERGED}}) {
    const Sent sent = Round(grid, codec, nodes, 1);
    const FoldedUpdate update = InForm(grid, sent.folded, sent.contributions, 1);
    EXPECT_EQ(update.layout, layout);
    EXPECT_TRUE(PayloadDigest(grid, Pointers(update.pieces)).ok());
  }
}

TEST(UpdateForm, OlderRunsHaveTheirs) {
  v1::CodecSpec codec = CompleteCodec({});
  codec.clear_numbers();
  const Grid grid = MakeGrid(kShapes, codec);
  const Sent sent = Round(grid, codec, 2, 1);
  EXPECT_EQ(InForm(grid, sent.folded, sent.contributions, 1).layout, v1::PAYLOAD_CODEC_MERGED_F32);
}

}  // namespace
}  // namespace isthmus
