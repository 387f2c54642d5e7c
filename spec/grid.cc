#include "spec/grid.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "kernels/component_code.h"
#include "spec/manifest.h"
#include "spec/rows.h"
#include "spec/run_spec.h"
#include "spec/stages.h"

namespace isthmus {
namespace {

// A block of a vector holds whole chunks of about this many elements: as many as a full 64 x 64
// tile has, so that cuts and hashes of vectors are not finer than those of matrices.
constexpr uint64_t kVectorBlockElements = 4096;

// Rows of a matrix's block where nothing is transformed (design: "64 rows").
constexpr uint64_t kFlatBlockRows = 64;

uint64_t CeilDivide(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

uint64_t Side(uint64_t n, const v1::CodecSpec& codec) {
  if (codec.chunk_rule() == v1::CHUNK_RULE_DIVISOR) return LargestDivisor(n, codec.chunk_side());
  return std::min<uint64_t>(n, codec.chunk_side());
}

// Elements of a flat chunk; 0 where chunks are tiles.
uint32_t FlatElements(const v1::CodecSpec& codec) {
  if (codec.kind() == v1::CODEC_KIND_NUMBERS) return kFlatChunkElements;
  return codec.kind() == v1::CODEC_KIND_TOPK ? codec.topk_chunk() : 0;
}

// Rows of a tensor whose rows travel by the published rules: one column of them fits into a piece.
constexpr uint64_t kPublishedRowsMax = uint64_t{1} << 17;

// Components sent of a chunk; all of them where that takes no more bytes, which with gap-coded
// indices fewer never do. The published selection, kept for parity, has exactly k.
uint32_t ComponentsOf(const v1::CodecSpec& codec, bool is_vector, const ChunkShape& shape) {
  const uint32_t elements = shape.elements();
  if (SendsRows(codec)) {
    return is_vector ? RowsSent(codec, elements) : RowsSent(codec, shape.rows) * shape.cols;
  }
  if (codec.kind() == v1::CODEC_KIND_DENSE) return elements;
  if (codec.kind() == v1::CODEC_KIND_NONE) return 0;
  if (codec.kind() == v1::CODEC_KIND_NUMBERS) return elements;
  if (codec.kind() == v1::CODEC_KIND_TOPK) return std::min(codec.topk_k(), elements);
  if (codec.chunk_rule() == v1::CHUNK_RULE_DIVISOR && codec.top_k() > 0) {
    return std::min(codec.top_k(), elements);
  }
  const double density = is_vector ? codec.vector_density() : codec.matrix_density();
  const double exact = density * elements;
  const uint32_t k =
      std::min(elements, std::max<uint32_t>(1, static_cast<uint32_t>(std::llround(exact))));
  return !SendsGapCoded(codec) && ContributionIsDense(elements, k) ? elements : k;
}

}  // namespace

uint64_t LargestDivisor(uint64_t n, uint64_t target) {
  ISTHMUS_CHECK(n >= 1 && target >= 1);
  uint64_t divisor = std::min(n, target);
  while (n % divisor != 0) --divisor;
  return divisor;
}

absl::StatusOr<Grid> Grid::Make(const v1::Manifest& manifest, const v1::CodecSpec& codec) {
  ISTHMUS_RETURN_IF_ERROR(ValidateManifest(manifest));
  ISTHMUS_RETURN_IF_ERROR(CheckCodecSpec(codec));
  Grid grid;
  grid.codec_ = codec;
  grid.tensor_first_block_.push_back(0);
  for (const v1::TensorSpec& tensor : manifest.tensors()) {
    TensorGrid cut;
    cut.is_vector = tensor.shape_size() <= 1;
    if (!cut.is_vector) cut.rows = tensor.shape(0);
    for (int i = cut.is_vector ? 0 : 1; i < tensor.shape_size(); ++i) cut.cols *= tensor.shape(i);
    if (RowsOfTensors(codec)) {
      ISTHMUS_RETURN_IF_ERROR(grid.AddStrips(tensor.name(), cut));
      continue;
    }
    cut.flat = FlatElements(codec);
    cut.side_rows = static_cast<uint32_t>(
        cut.flat > 0 ? std::min<uint64_t>(cut.rows, kFlatBlockRows) : Side(cut.rows, codec));
    cut.side_cols = cut.flat > 0 ? cut.flat : static_cast<uint32_t>(Side(cut.cols, codec));
    ISTHMUS_RETURN_IF_ERROR(grid.AddTensor(tensor.name(), cut));
  }
  return grid;
}

absl::Status Grid::AddStrips(const std::string& name, TensorGrid cut) {
  if (cut.is_vector) std::swap(cut.rows, cut.cols);
  cut.is_vector = false;
  if (cut.rows > kPublishedRowsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("tensor '", name, "' has ", cut.rows,
                     " rows; by METHOD_RULES_PUBLISHED at "
                     "most ",
                     kPublishedRowsMax, " can be chosen from, use METHOD_RULES_ISTHMUS"));
  }
  cut.side_rows = static_cast<uint32_t>(cut.rows);
  cut.side_cols = static_cast<uint32_t>(
      std::min(cut.cols, std::max<uint64_t>(1, kFlatChunkElements / cut.rows)));
  return AddTensor(name, cut);
}

absl::Status Grid::TakeCodec(const v1::CodecSpec& codec) {
  ISTHMUS_RETURN_IF_ERROR(CheckCodecSpec(codec));
  const bool cuts_alike =
      codec.kind() == codec_.kind() && codec.chunk_rule() == codec_.chunk_rule() &&
      codec.chunk_side() == codec_.chunk_side() && codec.topk_chunk() == codec_.topk_chunk() &&
      codec.rules() == codec_.rules();
  if (!cuts_alike) {
    return absl::InvalidArgumentError(
        "codec.kind, chunk_rule, chunk_side, topk_chunk and rules cut the model into chunks; they "
        "stay as they are");
  }
  codec_ = codec;
  return absl::OkStatus();
}

absl::Status Grid::AddTensor(const std::string& name, const TensorGrid& cut) {
  const uint64_t elements = cut.rows * cut.cols;
  // Along a vector the blocks are runs of chunks, down a matrix they are rows of tiles.
  const uint64_t block_elements =
      cut.is_vector ? std::max<uint64_t>(1, kVectorBlockElements / cut.side_cols) * cut.side_cols
                    : cut.side_rows * cut.cols;
  const uint64_t blocks = CeilDivide(elements, block_elements);
  // The last block has fewer only where it is shorter along the chunks.
  const bool along = cut.is_vector || cut.flat > 0;
  const uint64_t block_chunks = CeilDivide(along ? block_elements : cut.cols, cut.side_cols);
  const uint64_t last_elements = elements - (blocks - 1) * block_elements;
  const uint64_t last_chunks = along ? CeilDivide(last_elements, cut.side_cols) : block_chunks;
  const uint64_t chunks = (blocks - 1) * block_chunks + last_chunks;
  if (chunks > kChunksMax - chunks_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("tensor '", name, "' brings the model to ", chunks_ + chunks,
                     " chunks; the limit is ", kChunksMax, ", choose a larger codec.chunk_side"));
  }
  if (blocks > kBlocksMax - blocks_.size()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("tensor '", name, "' brings the model to ", blocks_.size() + blocks,
                     " blocks; the limit is ", kBlocksMax, ", choose a larger codec.chunk_side"));
  }
  const auto tensor = static_cast<uint32_t>(tensor_names_.size());
  for (uint64_t b = 0; b < blocks; ++b) {
    const uint64_t first = b * block_elements;
    const uint64_t first_chunk = b * block_chunks;
    blocks_.push_back({tensor, first, std::min(block_elements, elements - first),
                       chunks_ + first_chunk, std::min(block_chunks, chunks - first_chunk)});
  }
  tensor_offset_.push_back(elements_);
  chunks_ += chunks;
  elements_ += elements;
  tensor_grids_.push_back(cut);
  tensor_names_.push_back(name);
  tensor_elements_.push_back(elements);
  tensor_first_block_.push_back(static_cast<uint32_t>(blocks_.size()));
  return absl::OkStatus();
}

uint32_t Grid::BlockOfChunk(uint64_t chunk) const {
  ISTHMUS_CHECK(chunk < chunks_);
  const auto after =
      std::upper_bound(blocks_.begin(), blocks_.end(), chunk,
                       [](uint64_t c, const Block& block) { return c < block.first_chunk; });
  return static_cast<uint32_t>(after - blocks_.begin() - 1);
}

ChunkPlace Grid::Place(uint64_t chunk) const {
  ChunkPlace place;
  place.block = BlockOfChunk(chunk);
  const Block& block = blocks_[place.block];
  const TensorGrid& cut = tensor_grids_[block.tensor];
  const uint64_t across = (chunk - block.first_chunk) * cut.side_cols;  // elements to its left
  const bool along = cut.is_vector || cut.flat > 0;
  const uint64_t width = along ? block.elements : cut.cols;  // of the block's rows
  place.tensor = block.tensor;
  place.first_element = block.first_element + across;
  place.stride = width;
  place.shape.rows = static_cast<uint32_t>(block.elements / width);
  place.shape.cols = static_cast<uint32_t>(std::min<uint64_t>(cut.side_cols, width - across));
  place.k = ComponentsOf(codec_, cut.is_vector, place.shape);
  return place;
}

ByteRange Grid::ContributionBytes(uint64_t chunk) const {
  const ChunkPlace place = Place(chunk);
  const uint32_t elements = place.shape.elements();
  if (codec_.kind() == v1::CODEC_KIND_NUMBERS || SendsRows(codec_)) {
    const size_t bytes = NumberBytes(NumberSettingsOf(codec_.numbers()), place.k);
    return {bytes, bytes};
  }
  if (SendsGapCoded(codec_)) {
    const NumberFormat format = NumberSettingsOf(codec_.numbers()).format;
    return {ComponentChunkBytesMin(elements, place.k, format),
            ComponentChunkBytesMax(elements, place.k, format)};
  }
  const size_t bytes = ContributionChunkBytes(place.shape, place.k);
  return {bytes, bytes};
}

std::string Grid::Describe(uint64_t chunk) const {
  if (chunk >= chunks_) return absl::StrCat("chunk ", chunk, " (the model has ", chunks_, ")");
  const uint32_t tensor = blocks_[BlockOfChunk(chunk)].tensor;
  const uint64_t first = blocks_[tensor_first_block_[tensor]].first_chunk;
  const Block& last = blocks_[tensor_first_block_[tensor + 1] - 1];
  return absl::StrCat(tensor_names_[tensor], ", chunk ", chunk - first, " (of its ",
                      last.first_chunk + last.chunks - first, ")");
}

}  // namespace isthmus
