#include "tests/vectors/chunked.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "spec/run_spec.h"

namespace isthmus {

v1::CodecSpec PublishedCodec(uint32_t chunk_side, uint32_t top_k) {
  v1::CodecSpec codec;
  codec.set_chunk_rule(v1::CHUNK_RULE_DIVISOR);
  codec.set_chunk_side(chunk_side);
  codec.set_top_k(top_k);
  return codec;
}

absl::StatusOr<Grid> MakeGrid(const std::vector<NamedShape>& tensors, const v1::CodecSpec& codec) {
  v1::CodecSpec complete = codec;
  ISTHMUS_RETURN_IF_ERROR(CompleteCodecSpec(&complete));
  v1::Manifest manifest;
  for (const NamedShape& tensor : tensors) {
    v1::TensorSpec* spec = manifest.add_tensors();
    spec->set_name(tensor.name);
    spec->set_dtype(v1::DTYPE_FLOAT32);
    for (const uint64_t size : tensor.shape) spec->add_shape(size);
  }
  return Grid::Make(manifest, complete);
}

std::vector<ChunkPlace> PlacesOf(const Grid& grid, uint32_t tensor) {
  std::vector<ChunkPlace> places;
  for (uint32_t b = grid.tensor_first_block(tensor); b < grid.tensor_end_block(tensor); ++b) {
    const Block& block = grid.blocks()[b];
    for (uint64_t c = 0; c < block.chunks; ++c) places.push_back(grid.Place(block.first_chunk + c));
  }
  return places;
}

absl::StatusOr<std::vector<Components>> RecordedComponents(const VectorFile& file,
                                                           const std::string& index_name,
                                                           const std::string& value_name,
                                                           const std::vector<ChunkPlace>& places) {
  ISTHMUS_ASSIGN_OR_RETURN(const auto index, file.Integers(index_name));
  ISTHMUS_ASSIGN_OR_RETURN(const auto value, file.Floats(value_name));
  size_t expected = 0;
  for (const ChunkPlace& place : places) expected += place.k;
  if (index.size() != expected || value.size() != expected) {
    return absl::InvalidArgumentError(absl::StrCat(index_name, " has ", index.size(),
                                                   " indices and ", value.size(),
                                                   " values; its chunks have ", expected));
  }
  std::vector<Components> chunks(places.size());
  size_t first = 0;
  for (size_t c = 0; c < places.size(); ++c) {
    std::vector<size_t> order(places[c].k);
    std::iota(order.begin(), order.end(), first);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return index[a] < index[b]; });
    int64_t next = 0;
    for (const size_t at : order) {
      if (index[at] < next || index[at] >= places[c].shape.elements()) {
        return absl::InvalidArgumentError(
            absl::StrCat(index_name, " has index ", index[at], " twice or out of range"));
      }
      next = index[at] + 1;
      chunks[c].index.push_back(static_cast<uint32_t>(index[at]));
      chunks[c].value.push_back(value[at]);
    }
    first += places[c].k;
  }
  return chunks;
}

absl::StatusOr<nlohmann::json> RecordedJson(const VectorFile& file, const std::string& name) {
  if (file.Find(name) == nullptr) return nlohmann::json::array();
  nlohmann::json document = nlohmann::json::parse(file.Text(name), nullptr, false);
  if (!document.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is not a JSON array"));
  }
  for (const nlohmann::json& entry : document) {
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(name, " holds an entry without a name"));
    }
  }
  return document;
}

absl::StatusOr<std::vector<uint64_t>> ShapeOf(const nlohmann::json& value) {
  std::vector<uint64_t> shape;
  for (const nlohmann::json& size : value) {
    if (!size.is_number_unsigned()) {
      return absl::InvalidArgumentError(absl::StrCat("a shape is ", value.dump()));
    }
    shape.push_back(size.get<uint64_t>());
  }
  return shape;
}

}  // namespace isthmus
