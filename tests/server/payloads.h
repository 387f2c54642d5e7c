// What the server's tests share about payloads: a small model, random contributions to it, and the
// slow obvious merge that updates are compared with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/v1/coordinator.pb.h"
#include "isthmus/v1/run_spec.pb.h"
#include "spec/grid.h"
#include "spec/piece.h"
#include "spec/run_spec.h"
#include "tests/spec/forgery.h"

namespace isthmus {

// A ragged matrix, a vector, a scalar and a small matrix: all shapes of chunks.
inline v1::Manifest TestManifest() {
  v1::Manifest manifest;
  const std::vector<std::pair<std::string, std::vector<uint64_t>>> tensors = {
      {"wte", {130, 70}}, {"bias", {5000}}, {"scale", {}}, {"head", {3, 3}}};
  for (const auto& [name, shape] : tensors) {
    v1::TensorSpec* tensor = manifest.add_tensors();
    tensor->set_name(name);
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    for (uint64_t size : shape) tensor->add_shape(size);
  }
  return manifest;
}

// Complete spec of a run of these nodes.
inline v1::RunSpec TestSpec(const std::vector<std::string>& nodes, uint32_t quorum = 0,
                            uint64_t steps = 3) {
  v1::RunSpec spec;
  spec.set_run("test");
  spec.set_steps(steps);
  for (const std::string& node : nodes) spec.add_nodes()->set_name(node);
  spec.set_quorum(quorum);
  spec.mutable_model()->set_layers(1);
  spec.mutable_model()->set_heads(1);
  spec.mutable_model()->set_width(8);
  spec.mutable_model()->set_context(8);
  spec.mutable_data()->set_sequences_per_node(8);
  spec.mutable_optimizer()->set_lr(0.01f);
  spec.mutable_optimizer()->set_warmup_steps(2);
  // Tests look at what was merged, whatever form would be smaller.
  spec.mutable_codec()->set_update_form(v1::UPDATE_FORM_COMPONENTS);
  const absl::Status complete = CompleteRunSpec(&spec);
  EXPECT_TRUE(complete.ok()) << complete;
  return spec;
}

inline std::shared_ptr<const Grid> TestGrid() {
  auto grid = Grid::Make(TestManifest(), TestSpec({"a"}).codec());
  EXPECT_TRUE(grid.ok()) << grid.status();
  return std::make_shared<const Grid>(*std::move(grid));
}

// Pieces of a contribution with random components; the chunks depend on the seed alone.
inline std::vector<std::string> RandomContribution(const Grid& grid, uint32_t seed,
                                                   size_t piece_bytes = 500) {
  std::mt19937 random(seed);
  PieceWriter writer(&grid, ContributionLayout(grid.codec()), piece_bytes);
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    const ChunkPlace place = grid.Place(chunk);
    std::vector<uint32_t> all(place.shape.elements());
    std::iota(all.begin(), all.end(), 0u);
    std::shuffle(all.begin(), all.end(), random);
    Components components;
    components.index.assign(all.begin(), all.begin() + place.k);
    std::sort(components.index.begin(), components.index.end());
    for (uint32_t i = 0; i < place.k; ++i) {
      components.value.push_back((static_cast<float>(random() % 100000) - 50000.0f) / 777.0f);
    }
    writer.Append(chunk, components);
  }
  return writer.Finish();
}

inline std::string DigestOf(const Grid& grid, const std::vector<std::string>& pieces) {
  std::vector<const std::string*> pointers;
  for (const std::string& piece : pieces) pointers.push_back(&piece);
  const auto digest = PayloadDigest(grid, pointers);
  EXPECT_TRUE(digest.ok()) << digest.status();
  return *digest;
}

inline uint64_t BytesOf(const std::vector<std::string>& pieces) {
  uint64_t bytes = 0;
  for (const std::string& piece : pieces) bytes += piece.size();
  return bytes;
}

// Dense chunks of a payload, +0 where nothing was sent.
inline std::vector<std::vector<float>> Dense(const Grid& grid,
                                             const std::vector<std::string>& pieces) {
  std::vector<std::vector<float>> chunks(grid.chunks());
  for (const std::string& bytes : pieces) {
    const auto piece = OpenPiece(grid, bytes);
    EXPECT_TRUE(piece.ok()) << piece.status();
    const absl::Status status =
        ForEachChunk(grid, *piece, [&](uint64_t chunk, const Components& components) {
          chunks[chunk].assign(grid.Place(chunk).shape.elements(), 0.0f);
          for (size_t i = 0; i < components.size(); ++i) {
            chunks[chunk][components.index[i]] = components.value[i];
          }
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
  }
  return chunks;
}

// The mean over those who sent a position, the slow way.
inline std::vector<std::vector<float>> NaiveMerge(
    const Grid& grid, const std::vector<std::vector<std::string>>& nodes) {
  std::vector<std::map<uint32_t, std::pair<float, uint32_t>>> sums(grid.chunks());
  for (const auto& pieces : nodes) {
    for (const std::string& bytes : pieces) {
      const auto piece = OpenPiece(grid, bytes);
      EXPECT_TRUE(ForEachChunk(grid, *piece, [&](uint64_t chunk, const Components& components) {
                    for (size_t i = 0; i < components.size(); ++i) {
                      auto [at, first] =
                          sums[chunk].try_emplace(components.index[i], components.value[i], 1u);
                      if (first) continue;
                      at->second.first += components.value[i];
                      ++at->second.second;
                    }
                    return absl::OkStatus();
                  }).ok());
    }
  }
  std::vector<std::vector<float>> chunks(grid.chunks());
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    chunks[chunk].assign(grid.Place(chunk).shape.elements(), 0.0f);
    for (const auto& [index, sum] : sums[chunk]) {
      chunks[chunk][index] = sum.first / static_cast<float>(sum.second);
    }
  }
  return chunks;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// `piece` with its checksum made right again.
inline std::string Resealed(std::string piece) {
  Reseal(&piece);
  return piece;
}

}  // namespace isthmus
