// Text as tokens: one or several files, end to end, a byte a token, mapped into memory. Which rows
// of it a rank reads at a step are pure functions of the RunSpec (spec/data_share.h). No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "isthmus/v1/run_spec.pb.h"
#include "spec/data_share.h"

namespace isthmus {

class TextData {
 public:
  // `paths`: comma-separated. NOT_FOUND or INVALID_ARGUMENT naming the file that is missing, empty
  // or not a regular file.
  static absl::StatusOr<std::unique_ptr<TextData>> Open(const std::string& paths);
  ~TextData();
  TextData(const TextData&) = delete;
  TextData& operator=(const TextData&) = delete;

  uint64_t tokens() const { return tokens_; }
  // Tokens [first, first + out.size()), which must exist.
  void Read(uint64_t first, absl::Span<uint8_t> out) const;
  // FAILED_PRECONDITION naming the file if one has become shorter: reading what is mapped beyond
  // its end would kill the process. Ask before each step.
  absl::Status CheckLengths() const;
  // SHA-256 over all of it, 32 bytes: reads everything once.
  std::string Digest() const;

 private:
  struct File {
    std::string path;
    int descriptor = -1;
    const uint8_t* data = nullptr;
    uint64_t bytes = 0;
    uint64_t first = 0;  // number of its first token
  };
  TextData() = default;

  std::vector<File> files_;
  uint64_t tokens_ = 0;
};

// Rows of tokens: `sequences` of `length` + 1, the last one being the target of the one before.
struct TextRows {
  int64_t sequences = 0;
  int64_t length = 0;
  std::vector<uint8_t> tokens;
};

// What one rank of a node reads.
class RankData {
 public:
  // INVALID_ARGUMENT: sequences_per_node does not divide by `ranks` (both are named), a vocabulary
  // below 256, a node the spec does not have, or data too short for its shares.
  static absl::StatusOr<RankData> Make(const v1::RunSpec& spec, const std::string& node, int rank,
                                       int ranks, std::unique_ptr<TextData> text);

  // This rank's rows of the node's batch of a global step.
  TextRows Step(uint64_t step) const;
  // Held-out sequences are the same on all nodes; evaluation takes them in batches that all ranks
  // walk through together. A rank's rows of batch `i`; none when the sequences do not go round.
  uint64_t EvaluationBatches() const;
  TextRows Evaluation(uint64_t i) const;

  int64_t sequences_per_rank() const { return spec_.data().sequences_per_node() / ranks_; }
  uint64_t tokens_per_step() const {
    return static_cast<uint64_t>(sequences_per_rank()) * spec_.model().context();
  }
  const TextData& text() const { return *text_; }

 private:
  RankData() = default;
  void AppendRow(uint64_t first, TextRows* rows) const;

  v1::RunSpec spec_;
  int node_index_ = 0;
  int rank_ = 0;
  int ranks_ = 1;
  std::unique_ptr<TextData> text_;
};

}  // namespace isthmus
