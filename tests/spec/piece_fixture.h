// Pieces with random components, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "spec/piece.h"
#include "spec/run_spec.h"

namespace isthmus {

// With a format, the layouts of gap-coded components.
inline Grid TestGrid(v1::NumberFormat format = v1::NUMBER_FORMAT_UNSPECIFIED) {
  v1::Manifest manifest;
  const std::vector<std::vector<uint64_t>> shapes = {{130, 70}, {5000}, {}, {3, 3}};
  for (size_t i = 0; i < shapes.size(); ++i) {
    v1::TensorSpec* tensor = manifest.add_tensors();
    tensor->set_name("t" + std::to_string(i));
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    for (uint64_t size : shapes[i]) tensor->add_shape(size);
  }
  v1::CodecSpec codec;
  EXPECT_TRUE(CompleteCodecSpec(&codec).ok());
  codec.mutable_numbers()->set_format(format);
  if (format == v1::NUMBER_FORMAT_UNSPECIFIED) codec.clear_numbers();
  absl::StatusOr<Grid> grid = Grid::Make(manifest, codec);
  EXPECT_TRUE(grid.ok()) << grid.status();
  return *std::move(grid);
}

// `count` components at random places.
inline Components RandomComponents(uint32_t elements, uint32_t count, std::mt19937* random) {
  std::vector<uint32_t> all(elements);
  std::iota(all.begin(), all.end(), 0u);
  std::shuffle(all.begin(), all.end(), *random);
  Components components;
  components.index.assign(all.begin(), all.begin() + count);
  std::sort(components.index.begin(), components.index.end());
  for (uint32_t i = 0; i < count; ++i) {
    components.value.push_back(static_cast<float>((*random)() % 1000) - 500.5f);
  }
  return components;
}

// Components of every chunk: k of them, or any number from 0 on for a merged payload.
inline std::vector<Components> RandomPayload(const Grid& grid, v1::PayloadCodec codec,
                                             uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Components> payload;
  for (uint64_t chunk = 0; chunk < grid.chunks(); ++chunk) {
    const ChunkPlace place = grid.Place(chunk);
    const bool is_contribution = codec == ContributionLayout(grid.codec());
    const uint32_t count =
        is_contribution ? place.k : static_cast<uint32_t>(random() % (place.shape.elements() + 1));
    payload.push_back(RandomComponents(place.shape.elements(), count, &random));
  }
  return payload;
}

inline std::vector<std::string> Write(const Grid& grid, v1::PayloadCodec codec,
                                      const std::vector<Components>& payload,
                                      size_t piece_bytes_max, uint64_t begin = 0) {
  PieceWriter writer(&grid, codec, piece_bytes_max);
  for (uint64_t chunk = begin; chunk < grid.chunks(); ++chunk) {
    writer.Append(chunk, payload[chunk]);
  }
  return writer.Finish();
}

inline absl::StatusOr<std::string> Digest(const Grid& grid,
                                          const std::vector<std::string>& pieces) {
  std::vector<const std::string*> pointers;
  for (const std::string& piece : pieces) pointers.push_back(&piece);
  return PayloadDigest(grid, pointers);
}

}  // namespace isthmus
