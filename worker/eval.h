// `trainer --eval_only`: the loss of a checkpoint on tokens, without a run. No torch in this
// header.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "isthmus/v1/run_spec.pb.h"

namespace isthmus {

struct EvalOptions {
  std::string checkpoint;  // folder or file (worker/checkpoint.h)
  std::string data;        // as TokenDataOptions::files
  std::string flag = "--data";
  v1::TokenFormat format = v1::TOKEN_FORMAT_BYTES;
  // The last thousandths of the data that are read, 1 to 1000: all of it by default, and with a
  // run's heldout_permille what its trainers hold out.
  uint32_t heldout_permille = 1000;
  // Sequences, at equal distances. 0: as many as fit side by side, so that all tokens but those of
  // an incomplete sequence are predicted once.
  uint32_t eval_sequences = 0;
};

struct EvalResult {
  double loss = 0;         // mean, nats a token
  uint64_t sequences = 0;  // of model.context tokens each
  uint64_t tokens = 0;     // that were predicted
  double seconds = 0;
};

// Errors as Checkpoint, TokenData and RankData; INVALID_ARGUMENT: fewer tokens than one sequence
// needs.
absl::StatusOr<EvalResult> Evaluate(const EvalOptions& options);

// {"loss": ..., "perplexity": ..., "tokens": ..., "sequences": ..., "seconds": ...} on one line.
std::string EvalJson(const EvalResult& result);

}  // namespace isthmus
