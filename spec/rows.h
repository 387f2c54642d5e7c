// Which rows of the momentum residual travel in a round: FlexDeMo's replicators random, striding
// and slicing (arXiv 2502.06728). Both sides of a message know the rows, so no index travels.
//
//   rules `isthmus`    rows of one block of the canonical grid (up to chunk_side rows of a matrix,
//                      elements of a run of a vector): always the same number, so that sizes do not
//                      depend on the round, and so many rounds visit every one:
//     slicing    q rows that follow each other, c * q further on in round c + 1   ceil(r / q)
//     striding   q rows r / q apart, one further on every round                   ceil(r / q)
//     random     the q rows with the smallest draws                               by chance
//   rules `published`  rows of the whole tensor, as the package `detonation` 0.5.2 chooses them:
//                      offsets that need not go through all rows, a count that may be 0
//
// with r the rows of the block, q = max(1, round(rate * r)).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "isthmus/v1/run_spec.pb.h"
#include "spec/grid.h"

namespace isthmus {

// codec.rate where it is left out, as published.
inline constexpr double kRowRateDefault = 0.1;
// Largest chunk_side of those codecs: nothing is transformed, so a block may have more rows than
// the DCT has a table for; a chunk of that many rows and columns still fits into a piece.
inline constexpr uint32_t kRowChunkSideMax = 256;

// RANDOM, STRIDING, SLICING.
bool SendsRows(const v1::CodecSpec& codec);
// Kinds that keep a momentum residual: those and DEMO.
bool HasMomentum(const v1::CodecSpec& codec);
// Whether the learning rate weighs the gradient in it: codec.lr_in_momentum.
bool LrInMomentum(const v1::CodecSpec& codec);
// Whether rows are those of whole tensors, which then are one block each.
bool RowsOfTensors(const v1::CodecSpec& codec);

// How many of `rows` rows (of a block, or with RowsOfTensors of a tensor) travel in every round.
uint32_t RowsSent(const v1::CodecSpec& codec, uint64_t rows);

// The rows of a round. A pure function of run, grid and round: nodes with any number of ranks, a
// second try and a replay choose alike. Thread-safe once it is made. `grid` outlives it.
class RowChoice {
 public:
  // Round 1 is the first. Published random rows take time that grows with the round: it draws what
  // all rounds before have drawn.
  RowChoice(const Grid* grid, uint64_t seed, uint64_t round);

  // Ascending rows of a chunk (of a vector: its elements), RowsSent of them. All chunks of a
  // matrix's block have the same.
  std::vector<uint32_t> Rows(const ChunkPlace& place) const;
  // The elements of a chunk that travel, row-major within the chunk, in the order of the values.
  std::vector<uint32_t> Elements(const ChunkPlace& place) const;

 private:
  std::vector<uint32_t> PublishedRows(const ChunkPlace& place) const;

  const Grid* grid_;
  uint64_t seed_;
  uint64_t round_;
  std::vector<float> published_draws_;  // rules `published`, random
};

}  // namespace isthmus
