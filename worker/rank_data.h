// What one rank of a node reads at which step: pure functions of the RunSpec and of how many tokens
// there are (spec/data_share.h), so that ranks, restarts and sites agree. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "isthmus/v1/run_spec.pb.h"
#include "worker/held_out.h"
#include "worker/token_data.h"

namespace isthmus {

struct RankDataOptions {
  v1::RunSpec spec;  // complete
  std::string node;
  int rank = 0;
  int ranks = 1;
  std::string files;  // as TokenDataOptions::files
  // Files of the held-out tokens; then all of `files` is trained on. Empty: the last
  // heldout_permille of `files` are held out.
  std::string heldout_files;
};

class RankData {
 public:
  // INVALID_ARGUMENT: sequences_per_node does not divide by `ranks` (both are named), a node the
  // spec does not have, or data too short for its shares. Else as TokenData::Open.
  static absl::StatusOr<RankData> Open(const RankDataOptions& options);

  // This rank's rows of the node's batch of a global step. Errors as TokenData::Read.
  absl::StatusOr<TokenRows> Step(uint64_t step) const;

  // What an evaluation reads; the same on all nodes.
  const HeldOut& held_out() const { return *held_out_; }

  int64_t sequences_per_rank() const { return spec_.data().sequences_per_node() / ranks_; }
  uint64_t tokens_per_step() const {
    return static_cast<uint64_t>(sequences_per_rank()) * spec_.model().context();
  }
  // Tokens in `files`, and what tells them from others.
  uint64_t tokens() const { return tokens_->tokens(); }
  absl::StatusOr<std::string> Fingerprint() const { return tokens_->Fingerprint(); }

 private:
  RankData() = default;
  absl::Status OpenHeldOut(const RankDataOptions& options);

  v1::RunSpec spec_;  // heldout_permille is 0 with held-out files
  int node_index_ = 0;
  int rank_ = 0;
  int ranks_ = 1;
  std::shared_ptr<const TokenData> tokens_;
  std::optional<HeldOut> held_out_;
};

}  // namespace isthmus
