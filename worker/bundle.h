// The pieces that the ranks of a node sent for one round, until they are one contribution. Pure,
// not thread-safe; holds each piece once.
//
// Rules: the same bytes again change nothing, other bytes for the same chunks are ALREADY_EXISTS.
// One rank that has nothing for the round, or whose part is refused, makes the whole node abstain:
// a contribution without that part would be another one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "isthmus/v1/coordinator.pb.h"
#include "spec/piece.h"
#include "transport/session.h"

namespace isthmus {

// Opens the piece and reads each of its chunks. INVALID_ARGUMENT: damaged, not of the
// contribution layout, a value that is not finite (naming tensor and chunk).
absl::StatusOr<PieceView> CheckRankPiece(const Grid& grid, absl::string_view bytes);

struct BundleOptions {
  uint64_t round = 0;
  uint64_t base_round = 0;
  uint64_t attempt = 0;
  uint32_t lr_bits = 0;                                  // as the round was opened
  v1::PayloadCodec layout = v1::PAYLOAD_CODEC_TOPK_F32;  // of the pieces
  std::vector<ChunkRanges> rank_ranges;  // what each rank holds; together the model once
  size_t bytes_max = 0;
};

class Bundle {
 public:
  explicit Bundle(const BundleOptions& options);

  uint64_t round() const { return options_.round; }

  // A rank begins (again) to send its part. ALREADY_EXISTS: it abstained from the round, or says
  // other numbers of tokens or steps than before. INVALID_ARGUMENT: other steps than another
  // rank's.
  absl::Status Begin(uint32_t rank, const Work& work);
  // A piece that CheckRankPiece has let through. FAILED_PRECONDITION: chunks of another
  // rank. ALREADY_EXISTS. RESOURCE_EXHAUSTED: more than bytes_max in the round.
  absl::Status Add(uint32_t rank, const PieceView& view, std::string bytes);
  // The rank has sent everything. INVALID_ARGUMENT naming the first chunk that lacks.
  absl::Status End(uint32_t rank);
  // The rank has nothing. ALREADY_EXISTS: its part is here already.
  absl::Status Abstain(uint32_t rank, absl::string_view reason);
  // The rank's part was refused for good: as if it had abstained, but never an error.
  void Refuse(uint32_t rank, absl::string_view reason);

  // Whether the rank owes nothing any more: its part is complete, or the node abstains.
  bool Settled(uint32_t rank) const;
  // The rank's chunks that are here.
  const ChunkRanges& held(uint32_t rank) const { return parts_[rank].held; }
  // "rank 1 of 2 has not sent its part", "no rank of 2 has sent its part"; empty when nothing
  // lacks.
  std::string Lacking() const;
  // Nobody's part is complete and the node does not abstain.
  bool NoneSent() const;
  bool abstains() const { return !abstain_reason_.empty(); }

  // What to send upstream, once: all parts are complete, or the node abstains. Null before, and
  // after it was taken. The digest is left to the caller, who sets it with set_digest.
  std::shared_ptr<Submission> Take();
  void set_digest(const std::string& digest) { digest_ = digest; }
  // Empty before the contribution was complete, and when the node abstains.
  const std::string& digest() const { return digest_; }

 private:
  struct HeldPiece {
    uint64_t end_chunk = 0;
    std::string sha256;  // stays when the bytes have gone upstream, to know them again
    std::string bytes;
  };
  struct Part {
    ChunkRanges held;
    std::map<uint64_t, HeldPiece> pieces;  // by first chunk
    Work work;
    bool begun = false;
    bool complete = false;
    bool abstained = false;
  };

  absl::Status Exists(uint32_t rank, absl::string_view what) const;

  BundleOptions options_;
  std::vector<Part> parts_;
  size_t bytes_ = 0;
  std::string abstain_reason_;
  std::string digest_;
  bool taken_ = false;
};

}  // namespace isthmus
