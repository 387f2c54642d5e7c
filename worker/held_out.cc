#include "worker/held_out.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/sha256.h"
#include "base/status_macros.h"

namespace isthmus {
namespace {

// One sequence of evaluation at a time would waste the processor, all at once its memory.
constexpr uint64_t kSequencesPerBatch = 8;
// A batch has a logit for each of its tokens and each token of the vocabulary: 512 MiB in float32.
constexpr uint64_t kBatchLogitsMax = uint64_t{1} << 27;

}  // namespace

absl::StatusOr<HeldOut> HeldOut::Make(std::shared_ptr<const TokenData> data,
                                      const HeldOutOptions& options) {
  ISTHMUS_CHECK(options.range.begin <= options.range.end && options.range.end <= data->tokens());
  const uint64_t needed = uint64_t{options.context} + 1;
  if (options.range.tokens() < needed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the held-out part of the data has ", options.range.tokens(), " tokens; ", needed,
        " are needed (model.context + 1), give more data or a shorter context"));
  }
  return HeldOut(std::move(data), options);
}

uint64_t HeldOut::SequencesPerBatch() const {
  const uint64_t logits = std::max<uint64_t>(uint64_t{options_.context} * options_.vocab, 1);
  return std::clamp<uint64_t>(kBatchLogitsMax / logits, 1, kSequencesPerBatch);
}

uint64_t HeldOut::Batches() const {
  const uint64_t together = static_cast<uint64_t>(options_.ranks) * SequencesPerBatch();
  return (options_.sequences + together - 1) / together;
}

absl::Status HeldOut::Append(uint64_t sequence, TokenRows* rows) const {
  const uint64_t count = options_.sequences;
  const uint64_t room = options_.range.tokens() - (uint64_t{options_.context} + 1);
  const auto product = static_cast<unsigned __int128>(room) * sequence;
  const uint64_t offset = count > 1 ? static_cast<uint64_t>(product / (count - 1)) : 0;
  return AppendRow(*data_, options_.range.begin + offset, options_.context, rows);
}

absl::StatusOr<TokenRows> HeldOut::Rows(uint64_t i) const {
  const uint64_t each = SequencesPerBatch();
  const uint64_t first = (i * options_.ranks + options_.rank) * each;
  TokenRows rows;
  for (uint64_t s = first; s < std::min(first + each, options_.sequences); ++s) {
    ISTHMUS_RETURN_IF_ERROR(Append(s, &rows));
  }
  return rows;
}

absl::StatusOr<std::string> HeldOut::Sha256() const {
  isthmus::Sha256 hash;
  for (uint64_t s = 0; s < options_.sequences; ++s) {
    TokenRows rows;
    ISTHMUS_RETURN_IF_ERROR(Append(s, &rows));
    hash.Update(rows.tokens.data(), rows.tokens.size() * sizeof(uint32_t));
  }
  return hash.Finish();
}

}  // namespace isthmus
