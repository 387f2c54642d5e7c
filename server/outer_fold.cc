#include "server/outer_fold.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "base/check.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "kernels/demo.h"
#include "spec/stages.h"

namespace isthmus {
namespace {

// Aggregates one block after the other, each by itself. The values of a contribution stand in the
// order of the tensor, except for DCT components: chunk after chunk of the block.
class Folder {
 public:
  Folder(const OuterFoldSettings& settings, const Grid& grid,
         const std::vector<OuterContribution>& contributions)
      : settings_(settings),
        grid_(grid),
        contributions_(contributions),
        is_dct_(grid.codec().kind() == v1::CODEC_KIND_DCT),
        in_numbers_(grid.codec().kind() == v1::CODEC_KIND_NUMBERS) {
    const auto count = static_cast<uint32_t>(contributions.size());
    settings_.aggregate.trim = std::min(settings_.aggregate.trim, (count - 1) / 2);
  }

  absl::Status SetFactors(int threads);
  // out: the block's elements.
  void FoldBlock(const Block& block, absl::Span<float> out) const;

 private:
  // Calls visit(offset, count, chunk's bytes) for the chunks of a block of one contribution, in
  // order; the bytes begin with the chunk's. Offsets are into the block, chunk after chunk.
  template <typename Visit>
  void ForEachChunkOf(const Block& block, const OuterContribution& contribution,
                      const Visit& visit) const;
  // All values of the block; of what was not sent +0.
  void ReadDense(const Block& block, const OuterContribution& contribution,
                 absl::Span<float> values) const;
  void Add(const Block& block, size_t node, absl::Span<float> scratch, absl::Span<float> sum) const;
  void FoldInOrder(const Block& block, absl::Span<float> sum) const;
  void AggregateAllAtOnce(const Block& block, absl::Span<float> out) const;
  // From components, chunk after chunk, to values in the order of the tensor.
  void Transform(const Block& block, absl::Span<const float> components,
                 absl::Span<float> values) const;
  float FactorOf(size_t node) const { return factors_.empty() ? 1.0f : factors_[node]; }

  OuterFoldSettings settings_;
  const Grid& grid_;
  const std::vector<OuterContribution>& contributions_;
  const bool is_dct_, in_numbers_;
  std::vector<float> factors_;
};

template <typename Visit>
void Folder::ForEachChunkOf(const Block& block, const OuterContribution& contribution,
                            const Visit& visit) const {
  // All chunks of a block but its last have one shape.
  const uint64_t each = grid_.Place(block.first_chunk).shape.elements();
  ForEachPart(grid_, contribution.pieces, block,
              [&](uint64_t begin, uint64_t end, absl::string_view bytes) {
                for (uint64_t chunk = begin; chunk < end; ++chunk) {
                  const uint64_t offset = (chunk - block.first_chunk) * each;
                  const uint64_t count = std::min(each, block.elements - offset);
                  visit(chunk, static_cast<size_t>(offset), static_cast<size_t>(count), &bytes);
                }
              });
}

void Folder::ReadDense(const Block& block, const OuterContribution& contribution,
                       absl::Span<float> values) const {
  if (!in_numbers_) std::fill(values.begin(), values.end(), 0.0f);
  Components components;
  ForEachChunkOf(
      block, contribution,
      [&](uint64_t chunk, size_t offset, size_t count, absl::string_view* bytes) {
        const absl::Span<float> own = values.subspan(offset, count);
        if (in_numbers_) {
          ISTHMUS_CHECK(ReadNumbers(settings_.numbers, bytes, own).ok());
          return;
        }
        const ChunkPlace place = grid_.Place(chunk);
        ISTHMUS_CHECK(ReadContributionChunk(place.shape, place.k, bytes, &components).ok());
        for (size_t i = 0; i < components.size(); ++i) {
          own[components.index[i]] = components.value[i];
        }
      });
}

void Folder::Add(const Block& block, size_t node, absl::Span<float> scratch,
                 absl::Span<float> sum) const {
  if (in_numbers_) {
    ReadDense(block, contributions_[node], scratch);
    return Fold(node == 0, FactorOf(node), scratch, sum);
  }
  Components components;
  ForEachChunkOf(
      block, contributions_[node],
      [&](uint64_t chunk, size_t offset, size_t count, absl::string_view* bytes) {
        const ChunkPlace place = grid_.Place(chunk);
        ISTHMUS_CHECK(ReadContributionChunk(place.shape, place.k, bytes, &components).ok());
        FoldComponents(FactorOf(node), components, sum.subspan(offset, count));
      });
}

void Folder::FoldInOrder(const Block& block, absl::Span<float> sum) const {
  std::vector<float> scratch(in_numbers_ ? block.elements : 0);
  if (!in_numbers_) std::fill(sum.begin(), sum.end(), 0.0f);
  for (size_t node = 0; node < contributions_.size(); ++node) {
    Add(block, node, absl::MakeSpan(scratch), sum);
  }
  AggregateSettings rule = settings_.aggregate;
  const bool takes_sign =
      rule.kind == AggregateKind::kSignOfMean || rule.kind == AggregateKind::kMajority;
  // A sign is taken of values, which components are not yet.
  if (is_dct_ && takes_sign) rule.kind = AggregateKind::kMean;
  FinishFold(rule, static_cast<uint32_t>(contributions_.size()), sum);
}

void Folder::AggregateAllAtOnce(const Block& block, absl::Span<float> out) const {
  const size_t size = out.size();
  std::vector<float> values(size * contributions_.size()), components(is_dct_ ? size : 0);
  std::vector<const float*> rows;
  for (size_t node = 0; node < contributions_.size(); ++node) {
    const absl::Span<float> row = absl::MakeSpan(values).subspan(node * size, size);
    const absl::Span<float> read = is_dct_ ? absl::MakeSpan(components) : row;
    ReadDense(block, contributions_[node], read);
    if (is_dct_) Transform(block, read, row);
    rows.push_back(row.data());
  }
  AggregateBlock(settings_.aggregate, rows, {}, out);
}

void Folder::Transform(const Block& block, absl::Span<const float> components,
                       absl::Span<float> values) const {
  std::vector<float> tile;
  Components sent;
  size_t offset = 0;
  for (uint64_t i = 0; i < block.chunks; ++i) {
    const ChunkPlace place = grid_.Place(block.first_chunk + i);
    const uint32_t count = place.shape.elements();
    sent.clear();
    for (uint32_t k = 0; k < count; ++k) {
      if (components[offset + k] == 0.0f) continue;
      sent.index.push_back(k);
      sent.value.push_back(components[offset + k]);
    }
    offset += count;
    tile.resize(count);
    DecodeComponents(place.shape, sent, absl::MakeSpan(tile));
    float* to = values.data() + (place.first_element - block.first_element);
    for (uint32_t row = 0; row < place.shape.rows; ++row, to += place.stride) {
      std::copy_n(tile.data() + size_t{row} * place.shape.cols, place.shape.cols, to);
    }
  }
}

void Folder::FoldBlock(const Block& block, absl::Span<float> out) const {
  if (!FoldsOneAtATime(settings_.aggregate.kind)) return AggregateAllAtOnce(block, out);
  if (!is_dct_) return FoldInOrder(block, out);
  std::vector<float> components(block.elements);
  FoldInOrder(block, absl::MakeSpan(components));
  Transform(block, components, out);
  if (settings_.aggregate.kind == AggregateKind::kSignOfMean ||
      settings_.aggregate.kind == AggregateKind::kMajority) {
    SignInPlace(out);
  }
}

absl::Status Folder::SetFactors(int threads) {
  if (settings_.aggregate.kind == AggregateKind::kWeightedMean) {
    std::vector<double> weights;
    for (const OuterContribution& contribution : contributions_) {
      ISTHMUS_ASSIGN_OR_RETURN(
          const double weight,
          ContributionWeight(settings_.weight, contribution.size, settings_.limits));
      weights.push_back(weight);
    }
    ISTHMUS_ASSIGN_OR_RETURN(factors_, MeanFactors(weights, settings_.aggregate.weight_max_share));
  }
  if (settings_.aggregate.kind != AggregateKind::kNormClippedMean) return absl::OkStatus();
  // The transform is orthonormal: the norm of components is that of their values.
  const std::vector<Block>& blocks = grid_.blocks();
  const size_t nodes = contributions_.size();
  std::vector<double> squares(blocks.size() * nodes);
  ParallelFor(blocks.size(), threads, [&](size_t b) {
    std::vector<float> values(blocks[b].elements);
    for (size_t node = 0; node < nodes; ++node) {
      ReadDense(blocks[b], contributions_[node], absl::MakeSpan(values));
      squares[b * nodes + node] = SquaresOf(values);
    }
  });
  std::vector<double> sums(nodes, 0.0);
  for (size_t i = 0; i < squares.size(); ++i) sums[i % nodes] += squares[i];
  factors_ = ClipFactors(sums);
  return absl::OkStatus();
}

}  // namespace

std::vector<uint64_t> BlockOffsets(const Grid& grid) {
  std::vector<uint64_t> offsets = {0};
  offsets.reserve(grid.blocks().size() + 1);
  for (const Block& block : grid.blocks()) offsets.push_back(offsets.back() + block.elements);
  return offsets;
}

OuterFoldSettings OuterFoldSettingsOf(const v1::RunSpec& spec) {
  OuterFoldSettings settings;
  settings.aggregate = AggregateSettingsOf(spec.aggregate());
  settings.weight = WeightKindOf(spec.aggregate());
  settings.limits = {spec.aggregate().tokens_max(), spec.aggregate().steps_max()};
  settings.numbers = NumberSettingsOf(spec.codec().numbers());
  return settings;
}

absl::StatusOr<BlockFold> MakeBlockFold(const OuterFoldSettings& settings, const Grid& grid,
                                        const std::vector<OuterContribution>& contributions,
                                        int threads) {
  ISTHMUS_CHECK(!contributions.empty());
  const auto folder = std::make_shared<Folder>(settings, grid, contributions);
  ISTHMUS_RETURN_IF_ERROR(folder->SetFactors(threads));
  return BlockFold([folder, &grid](size_t block, absl::Span<float> g) {
    folder->FoldBlock(grid.blocks()[block], g);
  });
}

float NormOf(const std::vector<double>& squares) {
  double sum = 0.0;
  for (const double square : squares) sum += square;
  return static_cast<float>(std::sqrt(sum));
}

absl::StatusOr<OuterAggregate> FoldOuter(const OuterFoldSettings& settings, const Grid& grid,
                                         const std::vector<OuterContribution>& contributions,
                                         int threads) {
  ISTHMUS_ASSIGN_OR_RETURN(const BlockFold fold,
                           MakeBlockFold(settings, grid, contributions, threads));
  const std::vector<uint64_t> offsets = BlockOffsets(grid);
  OuterAggregate aggregate;
  aggregate.g.resize(grid.elements());
  std::vector<double> squares(grid.blocks().size());
  ParallelFor(squares.size(), threads, [&](size_t b) {
    const absl::Span<float> out =
        absl::MakeSpan(aggregate.g).subspan(offsets[b], grid.blocks()[b].elements);
    fold(b, out);
    squares[b] = SquaresOf(out);
  });
  aggregate.norm = NormOf(squares);
  return aggregate;
}

}  // namespace isthmus
