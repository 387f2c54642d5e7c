// The held-out tokens that an evaluation reads: sequences at equal distances, the same for all
// nodes and any number of ranks. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "spec/data_share.h"
#include "worker/token_data.h"

namespace isthmus {

struct HeldOutOptions {
  TokenRange range;  // of the data
  uint32_t context = 0;
  uint32_t vocab = 0;
  uint64_t sequences = 0;  // they overlap when there are more than fit side by side
  // Who reads: an evaluation walks through batches that all ranks of a node take together.
  int rank = 0;
  int ranks = 1;
};

// Thread-safe.
class HeldOut {
 public:
  // INVALID_ARGUMENT: the range is shorter than one sequence with its last target.
  static absl::StatusOr<HeldOut> Make(std::shared_ptr<const TokenData> data,
                                      const HeldOutOptions& options);

  uint64_t Batches() const;
  // This rank's rows of batch `i`; none when the sequences do not go round. Errors as
  // TokenData::Read.
  absl::StatusOr<TokenRows> Rows(uint64_t i) const;
  // SHA-256, 32 bytes, of exactly the tokens of all sequences, one after the other, 32 bits little
  // endian each: equal where losses can be compared, however the tokens lie in files.
  absl::StatusOr<std::string> Sha256() const;

 private:
  HeldOut(std::shared_ptr<const TokenData> data, const HeldOutOptions& options)
      : data_(std::move(data)), options_(options) {}
  uint64_t SequencesPerBatch() const;
  absl::Status Append(uint64_t sequence, TokenRows* rows) const;

  std::shared_ptr<const TokenData> data_;
  HeldOutOptions options_;
};

}  // namespace isthmus
