#include "server/fold.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/limits.h"
#include "base/parallel.h"
#include "kernels/demo.h"
#include "spec/rows.h"

namespace isthmus {
namespace {

// Blocks are merged in parallel this many at a time, then written in order: it bounds what lies
// between the two, and is plenty for the threads.
constexpr size_t kBatchBlocks = 256;

// The chunks of a block of one contribution, decoded, appended to `out`.
void Decode(const Grid& grid, const std::vector<HeldPiece>& pieces, const Block& block,
            std::vector<Components>* out) {
  const v1::PayloadCodec layout = ContributionLayout(grid.codec());
  ForEachPart(grid, pieces, block, [&](uint64_t begin, uint64_t end, absl::string_view bytes) {
    const PieceView part = {layout, begin, end, bytes};
    for (ChunkReader reader(&grid, part); !reader.done();) {
      out->emplace_back();
      ISTHMUS_CHECK(reader.Next(&out->back()).ok());  // it was checked when it came
    }
  });
}

// Merged components of each chunk of one block.
std::vector<Components> MergeBlock(const Grid& grid,
                                   const std::vector<std::vector<HeldPiece>>& contributions,
                                   const Block& block) {
  std::vector<std::vector<Components>> decoded(contributions.size());
  for (size_t node = 0; node < contributions.size(); ++node) {
    decoded[node].reserve(block.chunks);
    Decode(grid, contributions[node], block, &decoded[node]);
  }
  std::vector<Components> merged(block.chunks);
  std::vector<const Components*> senders(contributions.size());
  for (uint64_t i = 0; i < block.chunks; ++i) {
    for (size_t node = 0; node < senders.size(); ++node) senders[node] = &decoded[node][i];
    MergeBySenders(senders, grid.Place(block.first_chunk + i).shape.elements(), &merged[i]);
  }
  return merged;
}

double SumOfSquares(const std::vector<Components>& chunks) {
  double sum = 0;
  for (const Components& components : chunks) {
    for (const float value : components.value) sum += static_cast<double>(value) * value;
  }
  return sum;
}

// Of the values that all nodes send of a chunk, their mean: (sum in node order, from the first on)
// / number of nodes, in float32. Of one block, in the order of its chunks.
std::vector<Components> MeanOfBlock(const Grid& grid,
                                    const std::vector<std::vector<HeldPiece>>& contributions,
                                    const Block& block) {
  std::vector<Components> mean, own;
  for (const std::vector<HeldPiece>& pieces : contributions) {
    own.clear();
    Decode(grid, pieces, block, mean.empty() ? &mean : &own);
    for (size_t c = 0; c < own.size(); ++c) {
      for (size_t i = 0; i < own[c].value.size(); ++i) mean[c].value[i] += own[c].value[i];
    }
  }
  const auto nodes = static_cast<float>(contributions.size());
  for (Components& chunk : mean) {
    for (float& value : chunk.value) value /= nodes;
  }
  return mean;
}

}  // namespace

FoldedUpdate FoldContributions(const Grid& grid,
                               const std::vector<std::vector<HeldPiece>>& contributions,
                               int threads) {
  ISTHMUS_CHECK(!contributions.empty());
  const bool sends_rows = SendsRows(grid.codec());
  const v1::PayloadCodec layout = UpdateLayout(grid.codec());
  PieceWriter writer(&grid, layout, kPieceBytesMax);
  const std::vector<Block>& blocks = grid.blocks();
  std::vector<std::vector<Components>> merged;
  double squares = 0;
  for (size_t first = 0; first < blocks.size(); first += kBatchBlocks) {
    const size_t count = std::min(kBatchBlocks, blocks.size() - first);
    merged.assign(count, {});
    ParallelFor(count, threads, [&](size_t i) {
      merged[i] = sends_rows ? MeanOfBlock(grid, contributions, blocks[first + i])
                             : MergeBlock(grid, contributions, blocks[first + i]);
    });
    for (size_t i = 0; i < count; ++i) {
      uint64_t chunk = blocks[first + i].first_chunk;
      squares += SumOfSquares(merged[i]);
      for (const Components& components : merged[i]) {
        if (sends_rows) {
          writer.AppendValues(chunk++, components.value);
        } else {
          writer.Append(chunk++, components);
        }
      }
    }
  }
  return {writer.Finish(), layout, static_cast<float>(std::sqrt(squares))};
}

}  // namespace isthmus
