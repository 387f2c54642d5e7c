// The contributions to one open round, as they came: encoded pieces per node and attempt, kept
// until the round is committed. Merging them is server/fold.h.
//
//   aggregator.Begin("fra-1", attempt)           an older incomplete attempt goes
//   aggregator.Add("fra-1", attempt, piece)      checked before (server/contribution.h)
//   aggregator.Covers("fra-1")                   all of the model is there
//   aggregator.MarkComplete("fra-1", digest)     from now on it stands
//
// Thread-compatible: the coordinator holds its lock around every call, and no call here looks into
// a piece's chunks, so none takes long.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/aggregate.h"
#include "server/contribution.h"
#include "spec/grid.h"
#include "spec/piece.h"

namespace isthmus {

// What is held of one node's contribution.
struct Contribution {
  uint64_t attempt = 0;
  ChunkRanges ranges;
  std::map<uint64_t, HeldPiece> pieces;  // by first chunk
  uint64_t bytes = 0;                    // of them
  bool complete = false;
  std::string digest;  // when complete
  ContributionSize size;
};

class Aggregator {
 public:
  explicit Aggregator(std::shared_ptr<const Grid> grid);

  // Starts or resumes an attempt. A newer attempt discards an older incomplete one; a complete one
  // stands whatever comes. `size`: what went into it.
  //   FAILED_PRECONDITION  a newer attempt is held already
  //   ALREADY_EXISTS       the attempt said before that other numbers went into it
  absl::Status Begin(const std::string& node, uint64_t attempt, const ContributionSize& size = {});

  // Takes a piece of an attempt that was begun. The same piece again is fine, and so is any piece
  // after another attempt was completed (it is not needed).
  //   ALREADY_EXISTS       other bytes for chunks that are held
  //   INVALID_ARGUMENT     overlaps a held piece without being the same piece
  //   ABORTED              another attempt was begun meanwhile
  absl::Status Add(const std::string& node, uint64_t attempt, HeldPiece piece);

  // Whether Add would take the piece without keeping it: it is held, or not needed.
  bool Has(const std::string& node, uint64_t attempt, const HeldPiece& piece) const;

  // Null: nothing is held. Valid until the next call that changes something.
  const Contribution* Find(const std::string& node) const;
  bool Covers(const std::string& node) const;
  // The pieces held, ascending.
  std::vector<HeldPiece> Pieces(const std::string& node) const;

  // The attempt must be the one that is held, and cover the model.
  void MarkComplete(const std::string& node, const std::string& digest);
  // Drops what is held of a node unless it is complete.
  void Discard(const std::string& node);
  // Drops what is held of a node, complete or not: it was evicted.
  void Remove(const std::string& node);

  // Of all pieces held.
  size_t bytes() const { return bytes_; }

 private:
  absl::Status CheckOverlap(const std::string& node, const Contribution& held,
                            const HeldPiece& piece, bool* same) const;

  std::shared_ptr<const Grid> grid_;
  size_t bytes_ = 0;
  std::map<std::string, Contribution> contributions_;
};

}  // namespace isthmus
