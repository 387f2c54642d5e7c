// Recorded arrays of chunks as the kernels take them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"
#include "spec/grid.h"
#include "tests/vectors/vector_file.h"

namespace isthmus {

// One tensor of a model: its name and sizes.
struct NamedShape {
  std::string name;
  std::vector<uint64_t> shape;
};

// The published cut and selection: the largest divisors up to `chunk_side`, `top_k` a chunk.
v1::CodecSpec PublishedCodec(uint32_t chunk_side, uint32_t top_k);

absl::StatusOr<Grid> MakeGrid(const std::vector<NamedShape>& tensors, const v1::CodecSpec& codec);

// The chunks of one tensor, in the order in which the recordings have them.
std::vector<ChunkPlace> PlacesOf(const Grid& grid, uint32_t tensor);

// Components of each chunk from arrays of indices and values in any order within a chunk.
// INVALID_ARGUMENT: other sizes than the chunks ask for, an index out of range or there twice.
absl::StatusOr<std::vector<Components>> RecordedComponents(const VectorFile& file,
                                                           const std::string& index_name,
                                                           const std::string& value_name,
                                                           const std::vector<ChunkPlace>& places);

// The JSON document of that name, or INVALID_ARGUMENT. An empty array if the file has none.
absl::StatusOr<nlohmann::json> RecordedJson(const VectorFile& file, const std::string& name);

// Sizes from a JSON array of numbers.
absl::StatusOr<std::vector<uint64_t>> ShapeOf(const nlohmann::json& value);

}  // namespace isthmus
