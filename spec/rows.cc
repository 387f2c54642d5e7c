#include "spec/rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/check.h"
#include "kernels/draws.h"

namespace isthmus {
namespace {

// Draws of rows are another use of the run's seed than those of random signs (kernels/draws.h).
constexpr uint64_t kRowSeed = 0x726f77206472617ULL;

// The published package's generator: its seed, and its way from 32 bits to a float.
constexpr uint32_t kPublishedSeed = 42;
constexpr uint32_t kPublishedDrawMask = 0xffffff;
constexpr float kPublishedDrawStep = 1.0f / 16777216.0f;

// The `count` rows with the smallest draws, ascending; of equal draws the lower row.
std::vector<uint32_t> SmallestDraws(absl::Span<const float> draws, uint32_t count) {
  std::vector<uint32_t> rows(draws.size());
  std::iota(rows.begin(), rows.end(), 0u);
  std::stable_sort(rows.begin(), rows.end(),
                   [&](uint32_t a, uint32_t b) { return draws[a] < draws[b]; });
  rows.resize(count);
  std::sort(rows.begin(), rows.end());
  return rows;
}

// Rows of a matrix, elements of a vector.
uint64_t RowsOf(const Grid& grid, uint32_t tensor) {
  const uint64_t elements = grid.tensor_elements(tensor);
  return elements / grid.tensor_row_elements(tensor);
}

// How the published package views a dimension of n: `groups` groups of n / groups rows, q of which
// travel, `stride` groups apart.
struct PublishedView {
  uint64_t groups = 1, rows_a_group = 1, q = 1, stride = 1;
};

PublishedView ViewOf(const v1::CodecSpec& codec, uint64_t n) {
  PublishedView view;
  view.groups = LargestDivisor(n, codec.chunk_side());
  view.rows_a_group = n / view.groups;
  view.q = std::max<uint64_t>(
      1, static_cast<uint64_t>(std::floor(codec.rate() * static_cast<double>(view.groups))));
  view.stride = (view.groups + view.q - 1) / view.q;
  return view;
}

// Groups of the package's striding and slicing at its counter of calls, ascending, each once.
std::vector<uint64_t> PublishedGroups(const v1::CodecSpec& codec, const PublishedView& view,
                                      uint64_t calls) {
  const bool strides = codec.kind() == v1::CODEC_KIND_STRIDING;
  const uint64_t step = strides ? view.stride : 1;
  const uint64_t offset = calls % view.groups * (view.q * step % view.groups) % view.groups;
  std::vector<uint64_t> groups;
  for (uint64_t j = 0; j < view.q; ++j) groups.push_back((offset + j * step) % view.groups);
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  return groups;
}

}  // namespace

bool SendsRows(const v1::CodecSpec& codec) {
  return codec.kind() == v1::CODEC_KIND_RANDOM || codec.kind() == v1::CODEC_KIND_STRIDING ||
         codec.kind() == v1::CODEC_KIND_SLICING;
}

bool HasMomentum(const v1::CodecSpec& codec) {
  return codec.kind() == v1::CODEC_KIND_DEMO || SendsRows(codec);
}

bool LrInMomentum(const v1::CodecSpec& codec) {
  return !codec.has_lr_in_momentum() || codec.lr_in_momentum();
}

bool RowsOfTensors(const v1::CodecSpec& codec) {
  return SendsRows(codec) && codec.rules() == v1::METHOD_RULES_PUBLISHED;
}

uint32_t RowsSent(const v1::CodecSpec& codec, uint64_t rows) {
  const double exact = codec.rate() * static_cast<double>(rows);
  if (!RowsOfTensors(codec)) {
    const auto count = static_cast<uint64_t>(std::llround(exact));
    return static_cast<uint32_t>(std::min(rows, std::max<uint64_t>(1, count)));
  }
  if (codec.kind() == v1::CODEC_KIND_RANDOM) return static_cast<uint32_t>(std::floor(exact));
  // However far the groups have moved on, as many of them are one and the same.
  const PublishedView view = ViewOf(codec, rows);
  return static_cast<uint32_t>(PublishedGroups(codec, view, 0).size() * view.rows_a_group);
}

RowChoice::RowChoice(const Grid* grid, uint64_t seed, uint64_t round)
    : grid_(grid), seed_(seed), round_(round) {
  ISTHMUS_CHECK(SendsRows(grid->codec()) && round >= 1);
  if (!RowsOfTensors(grid->codec()) || grid->codec().kind() != v1::CODEC_KIND_RANDOM) return;
  uint64_t most = 0;
  for (uint32_t t = 0; t < grid->tensors(); ++t) most = std::max(most, RowsOf(*grid, t));
  std::mt19937 random(kPublishedSeed);
  random.discard((round - 1) * most);
  for (uint64_t i = 0; i < most; ++i) {
    published_draws_.push_back(static_cast<float>(random() & kPublishedDrawMask) *
                               kPublishedDrawStep);
  }
}

std::vector<uint32_t> RowChoice::PublishedRows(const ChunkPlace& place) const {
  const v1::CodecSpec& codec = grid_->codec();
  const uint64_t n = RowsOf(*grid_, place.tensor);
  if (codec.kind() == v1::CODEC_KIND_RANDOM) {
    return SmallestDraws(absl::MakeConstSpan(published_draws_).subspan(0, n), RowsSent(codec, n));
  }
  // The package counts its calls, one for each tensor in every round.
  const PublishedView view = ViewOf(codec, n);
  std::vector<uint32_t> rows;
  for (const uint64_t group :
       PublishedGroups(codec, view, (round_ - 1) * grid_->tensors() + place.tensor)) {
    for (uint64_t i = 0; i < view.rows_a_group; ++i) {
      rows.push_back(static_cast<uint32_t>(group * view.rows_a_group + i));
    }
  }
  return rows;
}

std::vector<uint32_t> RowChoice::Rows(const ChunkPlace& place) const {
  const v1::CodecSpec& codec = grid_->codec();
  if (RowsOfTensors(codec)) return PublishedRows(place);
  const uint64_t row_elements = grid_->tensor_row_elements(place.tensor);
  const uint32_t r = row_elements == 1 ? place.shape.elements() : place.shape.rows;
  const uint32_t q = RowsSent(codec, r);
  if (codec.kind() == v1::CODEC_KIND_RANDOM) {
    // Rows count through the tensor, and tensors lie behind each other by their elements, so no two
    // rows of the model share a draw.
    std::vector<float> draws(r);
    const uint64_t first_row = grid_->blocks()[place.block].first_element / row_elements;
    const uint64_t row = row_elements == 1 ? place.first_element : first_row;
    UniformDraws({seed_ ^ kRowSeed, 0, static_cast<uint32_t>(round_)},
                 grid_->tensor_offset(place.tensor) + row, absl::MakeSpan(draws));
    return SmallestDraws(draws, q);
  }
  const uint64_t c = round_ - 1;
  std::vector<uint32_t> rows;
  for (uint64_t j = 0; j < q; ++j) {
    // Neighbours of a stride are at most ceil(r / q) apart, so that as many rounds fill the gaps.
    const uint64_t row = codec.kind() == v1::CODEC_KIND_SLICING ? (c % r) * q + j
                                                                : c % ((r + q - 1) / q) + j * r / q;
    rows.push_back(static_cast<uint32_t>(row % r));
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

std::vector<uint32_t> RowChoice::Elements(const ChunkPlace& place) const {
  const uint32_t cols = grid_->tensor_row_elements(place.tensor) == 1 ? 1 : place.shape.cols;
  std::vector<uint32_t> elements;
  elements.reserve(place.k);
  for (const uint32_t row : Rows(place)) {
    for (uint32_t col = 0; col < cols; ++col) elements.push_back(row * cols + col);
  }
  return elements;
}

}  // namespace isthmus
