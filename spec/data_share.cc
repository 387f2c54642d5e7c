#include "spec/data_share.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace isthmus {
namespace {

// a * b / c without overflow; the result fits because b <= c.
uint64_t Portion(uint64_t a, uint64_t b, uint64_t c) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b / c);
}

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every input bit reaches every output
// bit. Absorbing one word at a time makes a hash of the tuple.
uint64_t Absorb(uint64_t state, uint64_t word) {
  uint64_t z = (state ^ word) + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

absl::Status CheckLength(const std::string& whose, TokenRange range, uint64_t needed) {
  if (range.tokens() >= needed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(whose, " has ", range.tokens(), " tokens of the data; ", needed,
                   " are needed (model.context + 1), give more data or a shorter context"));
}

}  // namespace

TokenRange HeldOutRange(const v1::RunSpec& spec, uint64_t total_tokens) {
  return {total_tokens - Portion(total_tokens, spec.data().heldout_permille(), 1000), total_tokens};
}

TokenRange NodeShare(const v1::RunSpec& spec, int node_index, uint64_t total_tokens) {
  ISTHMUS_CHECK(node_index >= 0 && node_index < spec.nodes_size());
  const uint64_t training = HeldOutRange(spec, total_tokens).begin;
  uint64_t before = 0;
  uint64_t parts = 0;
  for (int i = 0; i < spec.nodes_size(); ++i) {
    if (i == node_index) before = parts;
    parts += spec.nodes(i).data_parts();
  }
  const uint64_t through = before + spec.nodes(node_index).data_parts();
  return {Portion(training, before, parts), Portion(training, through, parts)};
}

absl::Status CheckDataShares(const v1::RunSpec& spec, uint64_t total_tokens) {
  const uint64_t needed = uint64_t{spec.model().context()} + 1;
  for (int i = 0; i < spec.nodes_size(); ++i) {
    absl::Status status =
        CheckLength(absl::StrCat("the share of node '", spec.nodes(i).name(), "'"),
                    NodeShare(spec, i, total_tokens), needed);
    if (!status.ok()) return status;
  }
  // Held-out tokens may lie elsewhere.
  if (spec.data().heldout_permille() == 0) return absl::OkStatus();
  return CheckLength(
      absl::StrCat("the held-out part (", spec.data().heldout_permille(), " thousandths)"),
      HeldOutRange(spec, total_tokens), needed);
}

uint64_t SampleOffset(const v1::RunSpec& spec, int node_index, uint64_t total_tokens, uint64_t step,
                      uint32_t i) {
  const TokenRange share = NodeShare(spec, node_index, total_tokens);
  ISTHMUS_CHECK(share.tokens() > spec.model().context());
  const uint64_t starts = share.tokens() - spec.model().context();
  uint64_t hash = Absorb(0, spec.seed());
  for (uint64_t word : {share.begin, share.end, step, uint64_t{i}}) hash = Absorb(hash, word);
  // The high half of the product: even up to starts / 2^64.
  return share.begin + static_cast<uint64_t>((static_cast<unsigned __int128>(hash) * starts) >> 64);
}

}  // namespace isthmus
