#include "worker/methods/rows_shard.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "kernels/demo.h"
#include "kernels/number_format.h"
#include "spec/piece.h"
#include "spec/stages.h"
#include "worker/methods/contribution_writer.h"

namespace isthmus {

absl::StatusOr<RowsShard> RowsShard::Make(const MethodOptions& options,
                                          const std::vector<TensorPart<const float>>& parts) {
  ISTHMUS_ASSIGN_OR_RETURN(MethodParts made, MakeMethodParts(options, parts));
  ISTHMUS_CHECK(SendsRows(options.codec));
  RowsShard shard(std::move(made.options), std::move(made.held), std::move(made.step));
  shard.MakeResidual();
  return shard;
}

DemoShard::Pending RowsShard::EncodeBlocks(uint64_t round, float eta,
                                           const std::vector<absl::Span<const float>>& data) {
  const RowChoice rows(&grid(), options_.seed, round);
  const std::vector<HeldBlock>& blocks = held_->blocks();
  std::vector<std::vector<char>> coded(held_->slots());
  ParallelFor(blocks.size(), threads(),
              [&](size_t i) { EncodeRows(blocks[i], eta, data[blocks[i].part], rows, &coded); });
  PieceWriter writer(&grid(), ContributionLayout(options_.codec), options_.piece_bytes_max);
  for (const HeldBlock& held : blocks) {
    const Block& block = held_->BlockOf(held);
    for (uint64_t c = 0; c < block.chunks; ++c) {
      const std::vector<char>& bytes = coded[held.first_slot + c];
      writer.AppendCoded(block.first_chunk + c, {bytes.data(), bytes.size()});
    }
  }
  Pending sent;
  sent.pieces = writer.Finish();
  return sent;
}

void RowsShard::EncodeRows(const HeldBlock& held, float eta, absl::Span<const float> gradient,
                           const RowChoice& rows, std::vector<std::vector<char>>* coded) {
  const Block& block = held_->BlockOf(held);
  const absl::Span<float> d =
      absl::MakeSpan(residual_[held.part]).subspan(held.offset, block.elements);
  const std::vector<float> zeros(gradient.empty() ? block.elements
                                                  : 0);  // no gradient of this part
  UpdateMomentum(
      options_.codec.beta(), eta,
      gradient.empty() ? absl::MakeConstSpan(zeros) : gradient.subspan(held.offset, block.elements),
      d);
  const NumberSettings numbers = NumberSettingsOf(options_.codec.numbers());
  const float alpha = options_.codec.alpha();
  std::vector<float> values;
  for (uint64_t c = 0; c < block.chunks; ++c) {
    const ChunkPlace place = grid().Place(block.first_chunk + c);
    float* const first = d.data() + (place.first_element - block.first_element);
    const std::vector<uint32_t> elements = rows.Elements(place);
    const auto at = [&](uint32_t element) {
      return first + element / place.shape.cols * place.stride + element % place.shape.cols;
    };
    values.resize(elements.size());
    for (size_t i = 0; i < elements.size(); ++i) values[i] = *at(elements[i]);
    std::vector<char>* const out = &(*coded)[held.first_slot + c];
    AppendNumbers(numbers, values, {}, out);
    // What leaves the residual is what others read.
    absl::string_view bytes(out->data(), out->size());
    ISTHMUS_CHECK(ReadNumbers(numbers, &bytes, absl::MakeSpan(values)).ok());  // our own bytes
    for (size_t i = 0; i < elements.size(); ++i) {
      const float share = alpha * values[i];
      *at(elements[i]) -= share;
    }
  }
}

DemoShard::Decoder RowsShard::DecoderOf(uint64_t round) const {
  return [rows = RowChoice(&grid(), options_.seed, round)](
             const ChunkPlace& place, const Components& sent, absl::Span<float> x) {
    std::fill(x.begin(), x.end(), 0.0f);
    const std::vector<uint32_t> elements = rows.Elements(place);
    for (size_t i = 0; i < elements.size(); ++i) x[elements[i]] = sent.value[i];
  };
}

}  // namespace isthmus
