// The canonical grid: how a model is cut into blocks and chunks. A function of (manifest, codec)
// alone, so that nodes with any number of ranks agree on every number in it.
//
//   tensor   rank 0 is a vector of 1; rank 1 a vector; rank >= 2 a matrix [d0, d1*d2*...]
//   block    one row of tiles of a matrix; about 4,096 elements (whole chunks) of a vector.
//            Contiguous in the row-major tensor. Unit of shard cuts, hashes and ordered sums.
//   chunk    a DCT tile of a matrix, a run of a vector. Numbered through the model.
//
// Codecs that transform nothing (NUMBERS, TOPK) have flat chunks: a block of a matrix is 64 rows, a
// chunk up to 4,096 (TOPK: topk_chunk) consecutive elements of a block, 1 x n.
// Codecs that send rows (RANDOM, STRIDING, SLICING) have tiles; by the published rules, which
// choose among all rows of a tensor, a tensor is one block, and its chunks are strips of columns.
// Rule `tiles`: sides of T with true edges. Rule `divisor`: the largest divisor of each dimension
// not above T. See algorithms in docs/method.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "isthmus/v1/coordinator.pb.h"
#include "isthmus/v1/run_spec.pb.h"
#include "kernels/chunk.h"

namespace isthmus {

// The largest divisor of n that is <= target (n itself if n <= target). n >= 1, target >= 1.
uint64_t LargestDivisor(uint64_t n, uint64_t target);

// One block: `chunks` chunks from `first_chunk` on, `elements` elements of tensor `tensor` from
// `first_element` on.
struct Block {
  uint32_t tensor = 0;
  uint64_t first_element = 0;
  uint64_t elements = 0;
  uint64_t first_chunk = 0;
  uint64_t chunks = 0;
};

// Where one chunk lies.
struct ChunkPlace {
  uint32_t tensor = 0;
  uint32_t block = 0;
  ChunkShape shape;
  uint32_t k = 1;              // components a contribution sends of it; 0 where nothing travels
  uint64_t first_element = 0;  // of its first row, in the row-major tensor
  uint64_t stride = 0;         // elements between its rows
};

// Bytes of something whose size follows from its values within these limits.
struct ByteRange {
  uint64_t least = 0;
  uint64_t most = 0;

  bool operator==(const ByteRange& other) const {
    return least == other.least && most == other.most;
  }
};

// Whether components travel with gap-coded indices (kernels/component_code.h). Specs without
// codec.numbers are of runs that were made before there were any: they have kernels/chunk.h.
inline bool SendsGapCoded(const v1::CodecSpec& codec) {
  return codec.kind() == v1::CODEC_KIND_DEMO && codec.has_numbers();
}

class Grid {
 public:
  // INVALID_ARGUMENT: see ValidateManifest, or a codec that is not complete (CompleteRunSpec,
  // CompleteCodecSpec); RESOURCE_EXHAUSTED: more than kChunksMax chunks or kBlocksMax blocks.
  static absl::StatusOr<Grid> Make(const v1::Manifest& manifest, const v1::CodecSpec& codec);

  const v1::CodecSpec& codec() const { return codec_; }
  // Another codec that cuts the model in the same way: what of a chunk travels, and in what form,
  // may differ. INVALID_ARGUMENT: it does not hold, or cuts in another way; then nothing changes.
  absl::Status TakeCodec(const v1::CodecSpec& codec);
  const std::vector<Block>& blocks() const { return blocks_; }
  uint64_t chunks() const { return chunks_; }
  uint64_t elements() const { return elements_; }  // of the whole model
  uint32_t tensors() const { return static_cast<uint32_t>(tensor_names_.size()); }
  const std::string& tensor_name(uint32_t tensor) const { return tensor_names_[tensor]; }
  uint64_t tensor_elements(uint32_t tensor) const { return tensor_elements_[tensor]; }
  // Of its first element, counting through the tensors.
  uint64_t tensor_offset(uint32_t tensor) const { return tensor_offset_[tensor]; }
  // Elements of a row: of the first dimension, so 1 in a vector.
  uint64_t tensor_row_elements(uint32_t tensor) const {
    return tensor_grids_[tensor].is_vector ? 1 : tensor_grids_[tensor].cols;
  }
  // Blocks of one tensor: [first, end).
  uint32_t tensor_first_block(uint32_t tensor) const { return tensor_first_block_[tensor]; }
  uint32_t tensor_end_block(uint32_t tensor) const { return tensor_first_block_[tensor + 1]; }

  // 0 <= chunk < chunks(). O(log blocks).
  ChunkPlace Place(uint64_t chunk) const;
  uint32_t BlockOfChunk(uint64_t chunk) const;
  // Coded bytes of a contribution's chunk, in the layout of the codec (ContributionLayout).
  ByteRange ContributionBytes(uint64_t chunk) const;
  // "transformer.wte.weight, chunk 17 (of its 32)": for error messages.
  std::string Describe(uint64_t chunk) const;

 private:
  struct TensorGrid {  // enough to compute a chunk's place from its number in the block
    uint64_t rows = 1, cols = 1;
    uint32_t side_rows = 1, side_cols = 1;
    bool is_vector = true;
    uint32_t flat = 0;  // elements of a flat chunk; 0: chunks are tiles or runs
  };
  Grid() = default;
  absl::Status AddTensor(const std::string& name, const TensorGrid& cut);
  // The cut of a tensor with RowsOfTensors (spec/rows.h).
  absl::Status AddStrips(const std::string& name, TensorGrid cut);

  std::vector<Block> blocks_;
  std::vector<TensorGrid> tensor_grids_;
  std::vector<std::string> tensor_names_;
  std::vector<uint64_t> tensor_elements_, tensor_offset_;
  std::vector<uint32_t> tensor_first_block_;
  v1::CodecSpec codec_;
  uint64_t chunks_ = 0;
  uint64_t elements_ = 0;
};

}  // namespace isthmus
