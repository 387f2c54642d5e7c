#include "server/reply.h"

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "base/parallel.h"
#include "base/sha256.h"
#include "kernels/trits.h"
#include "spec/piece.h"

namespace isthmus {
namespace {

// Blocks are coded in parallel this many elements at a time (or one block, if it has more), then
// written in order: it bounds what lies between the two, and is plenty for the threads.
constexpr uint64_t kBatchElements = uint64_t{4} << 20;

// Calls visit(chunk, its place, its first element in the block) for the chunks of a block.
template <typename Visit>
void ForEachChunkOf(const Grid& grid, const Block& block, const Visit& visit) {
  for (uint64_t i = 0; i < block.chunks; ++i) {
    const ChunkPlace place = grid.Place(block.first_chunk + i);
    visit(block.first_chunk + i, place, place.first_element - block.first_element);
  }
}

// Whether the chunk's values follow each other in the tensor.
bool IsContiguous(const ChunkPlace& place) {
  return place.shape.rows == 1 || place.shape.cols == place.stride;
}

}  // namespace

void CodeReplyBlock(const Grid& grid, const Block& block, const NumberSettings& reply,
                    absl::Span<const float> values, CodedBlock* coded) {
  std::vector<float> tile;
  if (reply.format != NumberFormat::kTernary) {
    coded->bytes.reserve(coded->bytes.size() + NumberBytes(reply, block.elements));
  }
  ForEachChunkOf(grid, block, [&](uint64_t, const ChunkPlace& place, uint64_t first) {
    absl::Span<const float> own = values.subspan(first);
    if (IsContiguous(place)) {
      own = own.first(place.shape.elements());
    } else {
      tile.clear();
      for (uint32_t row = 0; row < place.shape.rows; ++row) {
        const float* from = own.data() + row * place.stride;
        tile.insert(tile.end(), from, from + place.shape.cols);
      }
      own = tile;
    }
    if (reply.format == NumberFormat::kTernary) {
      AppendTrits(own, &coded->bytes);
    } else {
      AppendNumbers(reply, own, {}, &coded->bytes);
    }
    coded->chunk_ends.push_back(coded->bytes.size());
  });
}

void DecodeReplyBlock(const Grid& grid, const Block& block, const NumberSettings& reply,
                      const CodedBlock& coded, absl::Span<float> values) {
  absl::string_view bytes(coded.bytes.data(), coded.bytes.size());
  std::vector<float> tile;
  ForEachChunkOf(grid, block, [&](uint64_t, const ChunkPlace& place, uint64_t first) {
    const uint32_t count = place.shape.elements();
    if (IsContiguous(place)) {
      ISTHMUS_CHECK(ReadNumbers(reply, &bytes, values.subspan(first, count)).ok());
      return;
    }
    tile.resize(count);
    ISTHMUS_CHECK(ReadNumbers(reply, &bytes, absl::MakeSpan(tile)).ok());
    for (uint32_t row = 0; row < place.shape.rows; ++row) {
      std::copy_n(tile.data() + size_t{row} * place.shape.cols, place.shape.cols,
                  values.data() + first + row * place.stride);
    }
  });
}

CodedUpdate WriteReply(const Grid& grid, int threads,
                       const std::function<void(size_t, CodedBlock*)>& code) {
  const std::vector<Block>& blocks = grid.blocks();
  PieceWriter writer(&grid, v1::PAYLOAD_CODEC_REPLY, kPieceBytesMax);
  Sha256 root;
  std::vector<CodedBlock> coded;
  std::vector<std::string> hashes;
  for (size_t first = 0, end = 0; first < blocks.size(); first = end) {
    for (uint64_t elements = 0; end < blocks.size() && elements < kBatchElements; ++end) {
      elements += blocks[end].elements;
    }
    coded.resize(std::max(coded.size(), end - first));
    hashes.resize(coded.size());
    ParallelFor(end - first, threads, [&](size_t i) {
      coded[i].bytes.clear();
      coded[i].chunk_ends.clear();
      code(first + i, &coded[i]);
      hashes[i] = Sha256Of({coded[i].bytes.data(), coded[i].bytes.size()});
    });
    for (size_t i = 0; i < end - first; ++i) {
      const CodedBlock& block = coded[i];
      ISTHMUS_CHECK(block.chunk_ends.size() == blocks[first + i].chunks);
      for (size_t chunk = 0, begin = 0; chunk < block.chunk_ends.size(); ++chunk) {
        const size_t chunk_end = block.chunk_ends[chunk];
        writer.AppendCoded(blocks[first + i].first_chunk + chunk,
                           {block.bytes.data() + begin, chunk_end - begin});
        begin = chunk_end;
      }
      root.Update(hashes[i]);
    }
  }
  return {writer.Finish(), root.Finish()};
}

}  // namespace isthmus
