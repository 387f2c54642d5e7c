#include "worker/rank_data.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "spec/data_share.h"
#include "spec/run_spec.h"

namespace isthmus {
namespace {

absl::StatusOr<std::shared_ptr<const TokenData>> OpenTokens(const RankDataOptions& options,
                                                            const std::string& files,
                                                            const std::string& flag) {
  TokenDataOptions data;
  data.files = files;
  data.flag = flag;
  data.format = options.spec.data().format();
  data.vocab = options.spec.model().vocab();
  ISTHMUS_ASSIGN_OR_RETURN(std::unique_ptr<TokenData> opened, TokenData::Open(data));
  return std::shared_ptr<const TokenData>(std::move(opened));
}

}  // namespace

absl::StatusOr<RankData> RankData::Open(const RankDataOptions& options) {
  const uint32_t sequences = options.spec.data().sequences_per_node();
  if (sequences == 0 || sequences % static_cast<uint32_t>(options.ranks) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.sequences_per_node of the run is ", sequences, "; the ", options.ranks,
                     " ranks of this node need a multiple of ", options.ranks,
                     " so that each has an equal part"));
  }
  RankData data;
  data.spec_ = options.spec;
  data.rank_ = options.rank;
  data.ranks_ = options.ranks;
  data.node_index_ = NodeIndex(options.spec, options.node);
  if (data.node_index_ < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "node '", options.node, "' is not among the nodes of run '", options.spec.run(), "'"));
  }
  ISTHMUS_ASSIGN_OR_RETURN(data.tokens_, OpenTokens(options, options.files, "--data"));
  ISTHMUS_RETURN_IF_ERROR(data.OpenHeldOut(options));
  ISTHMUS_RETURN_IF_ERROR(CheckDataShares(data.spec_, data.tokens()));
  return data;
}

absl::Status RankData::OpenHeldOut(const RankDataOptions& options) {
  HeldOutOptions held_out;
  held_out.context = spec_.model().context();
  held_out.vocab = spec_.model().vocab();
  held_out.sequences = spec_.data().eval_sequences();
  held_out.rank = rank_;
  held_out.ranks = ranks_;
  std::shared_ptr<const TokenData> data = tokens_;
  if (options.heldout_files.empty()) {
    held_out.range = HeldOutRange(spec_, tokens());
  } else {
    ISTHMUS_ASSIGN_OR_RETURN(data, OpenTokens(options, options.heldout_files, "--heldout_data"));
    held_out.range = {0, data->tokens()};
    spec_.mutable_data()->set_heldout_permille(0);
  }
  ISTHMUS_ASSIGN_OR_RETURN(HeldOut made, HeldOut::Make(std::move(data), held_out));
  held_out_ = std::move(made);
  return absl::OkStatus();
}

absl::StatusOr<TokenRows> RankData::Step(uint64_t step) const {
  TokenRows rows;
  const uint32_t each = static_cast<uint32_t>(sequences_per_rank());
  for (uint32_t i = 0; i < each; ++i) {
    const uint64_t first =
        SampleOffset(spec_, node_index_, tokens(), step, static_cast<uint32_t>(rank_) * each + i);
    ISTHMUS_RETURN_IF_ERROR(AppendRow(*tokens_, first, spec_.model().context(), &rows));
  }
  return rows;
}

}  // namespace isthmus
