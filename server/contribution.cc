#include "server/contribution.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "kernels/aggregate.h"
#include "kernels/number_format.h"
#include "transport/errors.h"

namespace isthmus {

namespace {

ByteRange Plus(ByteRange sum, uint64_t times, ByteRange each) {
  return {sum.least + times * each.least, sum.most + times * each.most};
}

// A value that kernels of runs with an outer step do not take.
absl::Status CheckMagnitudes(const Grid& grid, uint64_t chunk, const Components& components) {
  size_t at = 0;
  if (AllWithin(kNumberMax, components.value, &at)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(grid.Describe(chunk), ": value ", at, " is ",
                                                 components.value[at], "; magnitudes up to ",
                                                 kNumberMax, " are taken"));
}

}  // namespace

std::shared_ptr<const absl::string_view> InMemory(std::string bytes) {
  struct Held {
    std::string bytes;
    absl::string_view view;
  };
  const auto held = std::make_shared<Held>();
  held->bytes = std::move(bytes);
  held->view = held->bytes;
  return {held, &held->view};
}

ContributionSizes::ContributionSizes(std::shared_ptr<const Grid> grid) : grid_(std::move(grid)) {
  before_block_.emplace_back();
  for (const Block& block : grid_->blocks()) {
    // All chunks of a block but its last have one shape.
    const uint64_t last = block.first_chunk + block.chunks - 1;
    const ByteRange whole =
        Plus(before_block_.back(), block.chunks - 1, grid_->ContributionBytes(block.first_chunk));
    before_block_.push_back(Plus(whole, 1, grid_->ContributionBytes(last)));
  }
}

ByteRange ContributionSizes::Before(uint64_t chunk) const {
  ISTHMUS_CHECK(chunk <= grid_->chunks());
  if (chunk == grid_->chunks()) return before_block_.back();
  const uint32_t at = grid_->BlockOfChunk(chunk);
  const uint64_t first = grid_->blocks()[at].first_chunk;
  return Plus(before_block_[at], chunk - first, grid_->ContributionBytes(first));
}

ByteRange ContributionSizes::Bytes(uint64_t begin, uint64_t end) const {
  const ByteRange before = Before(begin), all = Before(end);
  return {all.least - before.least, all.most - before.most};
}

absl::StatusOr<HeldPiece> CheckContributionPiece(const Grid& grid, std::string bytes) {
  HeldPiece held;
  held.bytes = InMemory(std::move(bytes));
  ISTHMUS_ASSIGN_OR_RETURN(const PieceView piece, OpenPiece(grid, *held.bytes));
  const v1::PayloadCodec layout = ContributionLayout(grid.codec());
  if (piece.codec != layout) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat(
                          "a piece from ", grid.Describe(piece.first_chunk), " on has layout ",
                          v1::PayloadCodec_Name(piece.codec), "; this run takes ",
                          v1::PayloadCodec_Name(layout), ", as its header must say")),
                      "WRONG_CODEC");
  }
  // Numbers are checked as they are read. Components of every-step methods may be as large as a
  // transform of what a momentum holds.
  const bool checks =
      layout == v1::PAYLOAD_CODEC_TOPK_F32 && UpdateLayout(grid.codec()) == v1::PAYLOAD_CODEC_REPLY;
  held.first_chunk = piece.first_chunk;
  held.end_chunk = piece.end_chunk;
  held.first_block = grid.BlockOfChunk(piece.first_chunk);
  Components components;
  for (ChunkReader reader(&grid, piece); !reader.done();) {
    const uint64_t chunk = reader.next_chunk();
    ISTHMUS_ASSIGN_OR_RETURN(const absl::string_view coded, reader.Next(&components));
    if (checks) ISTHMUS_RETURN_IF_ERROR(CheckMagnitudes(grid, chunk, components));
    const uint64_t next = held.first_block + held.block_at.size();
    if (held.block_at.empty() ||
        (next < grid.blocks().size() && chunk == grid.blocks()[next].first_chunk)) {
      held.block_at.push_back(static_cast<uint32_t>(coded.data() - held.bytes->data()));
    }
  }
  held.block_at.push_back(static_cast<uint32_t>(held.bytes->size()));
  return held;
}

std::string ContributionDigest(const Grid& grid, const std::vector<HeldPiece>& pieces) {
  Sha256 root;
  for (const Block& block : grid.blocks()) {
    Sha256 own;
    ForEachPart(grid, pieces, block,
                [&](uint64_t, uint64_t, absl::string_view bytes) { own.Update(bytes); });
    root.Update(own.Finish());
  }
  return root.Finish();
}

}  // namespace isthmus
