// What tests of runs with an outer step share: codecs, grids and random contributions.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "isthmus/v1/run_spec.pb.h"
#include "kernels/outer.h"
#include "kernels/reference/reference.h"
#include "spec/rounds.h"
#include "spec/run_spec.h"
#include "spec/stages.h"
#include "tests/server/payloads.h"

namespace isthmus {

inline v1::CodecSpec NumbersCodec(v1::NumberFormat format, uint32_t hadamard = 0) {
  v1::CodecSpec codec;
  codec.set_kind(v1::CODEC_KIND_NUMBERS);
  codec.mutable_numbers()->set_format(format);
  codec.mutable_numbers()->set_hadamard(hadamard);
  return codec;
}

inline v1::CodecSpec TopkCodec(uint32_t chunk, uint32_t k) {
  v1::CodecSpec codec;
  codec.set_kind(v1::CODEC_KIND_TOPK);
  codec.set_topk_chunk(chunk);
  codec.set_topk_k(k);
  return codec;
}

inline v1::CodecSpec DctCodec() {
  v1::CodecSpec codec;
  codec.set_kind(v1::CODEC_KIND_DCT);
  return codec;
}

// Of TestManifest, with the codec's defaults filled in.
inline std::shared_ptr<const Grid> GridOf(v1::CodecSpec codec) {
  const absl::Status complete = CompleteCodecSpec(&codec);
  EXPECT_TRUE(complete.ok()) << complete;
  auto grid = Grid::Make(TestManifest(), codec);
  EXPECT_TRUE(grid.ok()) << grid.status();
  return std::make_shared<const Grid>(*std::move(grid));
}

// Pieces of a contribution of random values; the chunks depend on the seed alone.
inline std::vector<std::string> OuterPieces(const Grid& grid, uint32_t seed,
                                            size_t piece_bytes = 20000) {
  if (grid.codec().kind() != v1::CODEC_KIND_NUMBERS) {
    return RandomContribution(grid, seed, piece_bytes);
  }
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  PieceWriter writer(&grid, v1::PAYLOAD_CODEC_NUMBERS, piece_bytes);
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    std::vector<float> values(grid.Place(chunk).shape.elements());
    for (float& value : values) value = normal(random);
    writer.AppendValues(chunk, values);
  }
  return writer.Finish();
}

// What a contribution says of each chunk: all values, +0 where nothing was sent.
using Chunks = std::vector<std::vector<float>>;
inline Chunks ChunksOf(const Grid& grid, const std::vector<std::string>& pieces) {
  Chunks chunks(grid.chunks());
  for (const std::string& bytes : pieces) {
    const auto piece = OpenPiece(grid, bytes);
    EXPECT_TRUE(piece.ok()) << piece.status();
    EXPECT_TRUE(ForEachChunk(grid, *piece, [&](uint64_t chunk, const Components& components) {
                  std::vector<float>& values = chunks[chunk];
                  values = components.value;
                  if (components.index.empty()) return absl::OkStatus();
                  values.assign(grid.Place(chunk).shape.elements(), 0.0f);
                  for (size_t i = 0; i < components.size(); ++i) {
                    values[components.index[i]] = components.value[i];
                  }
                  return absl::OkStatus();
                }).ok());
  }
  return chunks;
}

// Chunks of values to the order of the model; those of a DCT are transformed back first.
inline std::vector<float> ModelOf(const Grid& grid, const Chunks& chunks, bool transform) {
  std::vector<float> model(grid.elements());
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    const ChunkPlace place = grid.Place(chunk);
    std::vector<float> values = chunks[chunk];
    if (transform) {
      Components all;
      for (uint32_t i = 0; i < values.size(); ++i) {
        all.index.push_back(i);
        all.value.push_back(values[i]);
      }
      reference::DecodeComponents(place.shape, all, absl::MakeSpan(values));
    }
    for (uint32_t i = 0; i < values.size(); ++i) {
      const uint64_t row = i / place.shape.cols, col = i % place.shape.cols;
      model[grid.tensor_offset(place.tensor) + place.first_element + row * place.stride + col] =
          values[i];
    }
  }
  return model;
}

// Complete spec of a run of these nodes with an outer step: `text` is laid over it.
inline v1::RunSpec OuterRunSpec(const std::vector<std::string>& nodes, const std::string& text) {
  v1::RunSpec spec;
  spec.set_run("test");
  spec.set_steps(40);
  for (const std::string& node : nodes) spec.add_nodes()->set_name(node);
  spec.mutable_schedule()->set_local_steps(2);
  spec.mutable_optimizer()->set_lr(0.01f);
  v1::RunSpec more;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &more)) << text;
  spec.MergeFrom(more);
  const absl::Status complete = CompleteRunSpec(&spec);
  EXPECT_TRUE(complete.ok()) << complete;
  return spec;
}

// What a node makes of its x with the update of a round of a hosted run.
inline void ApplyHosted(const v1::RunSpec& spec, const Grid& grid, uint64_t round,
                        const std::vector<std::string>& pieces, std::vector<float>* x) {
  const std::vector<float> values = ModelOf(grid, ChunksOf(grid, pieces), false);
  const float gamma = RoundLearningRate(spec, round);
  const OuterSettings direction = DirectionSettingsOf(spec.outer(), gamma);
  switch (UpdateFormOf(spec)) {
    case UpdateForm::kParameters:
      *x = values;
      break;
    case UpdateForm::kDifference:
      for (size_t i = 0; i < x->size(); ++i) (*x)[i] += values[i];
      break;
    default:
      OuterStep(*MakeOuterRound(direction, {static_cast<double>(gamma), {}, {}}), 0, values,
                {absl::MakeSpan(*x), {}, {}});
  }
}

}  // namespace isthmus
