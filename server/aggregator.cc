#include "server/aggregator.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

absl::Status CheckSameSize(const std::string& node, const Contribution& held,
                           const ContributionSize& size) {
  if (held.size.tokens == size.tokens && held.size.steps == size.steps) return absl::OkStatus();
  return WithReason(
      absl::AlreadyExistsError(absl::StrCat(
          "node '", node, "' says ", size.tokens, " tokens and ", size.steps, " steps for attempt ",
          held.attempt, ", before it said ", held.size.tokens, " and ", held.size.steps,
          "; one attempt is one computation, a new one takes a new attempt")),
      "OTHER_SIZE");
}

}  // namespace

Aggregator::Aggregator(std::shared_ptr<const Grid> grid) : grid_(std::move(grid)) {}

absl::Status Aggregator::Begin(const std::string& node, uint64_t attempt,
                               const ContributionSize& size) {
  const auto found = contributions_.find(node);
  if (found != contributions_.end()) {
    const Contribution& held = found->second;
    if (held.complete) return absl::OkStatus();
    if (held.attempt == attempt) return CheckSameSize(node, held, size);
    if (held.attempt > attempt) {
      return WithReason(
          absl::FailedPreconditionError(absl::StrCat(
              "attempt ", attempt, " of node '", node, "' comes after attempt ", held.attempt,
              ", which replaced it; send what attempt ", held.attempt, " computed")),
          "STALE_ATTEMPT");
    }
    Discard(node);
  }
  contributions_[node].attempt = attempt;
  contributions_[node].size = size;
  return absl::OkStatus();
}

absl::Status Aggregator::Add(const std::string& node, uint64_t attempt, HeldPiece piece) {
  const auto found = contributions_.find(node);
  if (found == contributions_.end() || found->second.attempt != attempt) {
    if (found != contributions_.end() && found->second.complete) return absl::OkStatus();
    return WithReason(absl::AbortedError(absl::StrCat("attempt ", attempt, " of node '", node,
                                                      "' was discarded while it was being sent; "
                                                      "begin the submission again")),
                      "ATTEMPT_DISCARDED");
  }
  Contribution& held = found->second;
  bool same = false;
  ISTHMUS_RETURN_IF_ERROR(CheckOverlap(node, held, piece, &same));
  if (same) return absl::OkStatus();
  bytes_ += piece.bytes->size();
  held.bytes += piece.bytes->size();
  ISTHMUS_CHECK(held.ranges.Add(piece.first_chunk, piece.end_chunk));
  const uint64_t first_chunk = piece.first_chunk;
  held.pieces.emplace(first_chunk, std::move(piece));
  return absl::OkStatus();
}

absl::Status Aggregator::CheckOverlap(const std::string& node, const Contribution& held,
                                      const HeldPiece& piece, bool* same) const {
  if (!held.ranges.Overlaps(piece.first_chunk, piece.end_chunk)) return absl::OkStatus();
  const auto at = held.pieces.find(piece.first_chunk);
  if (at != held.pieces.end() && at->second.end_chunk == piece.end_chunk) {
    *same = *at->second.bytes == *piece.bytes;
    if (*same) return absl::OkStatus();
    return WithReason(absl::AlreadyExistsError(absl::StrCat(
                          "node '", node, "' sent other bytes before for attempt ", held.attempt,
                          ", from ", grid_->Describe(piece.first_chunk),
                          " on; one attempt is one computation, a new one takes a new attempt")),
                      "OTHER_BYTES");
  }
  return WithReason(absl::InvalidArgumentError(absl::StrCat(
                        "a piece of node '", node, "' from ", grid_->Describe(piece.first_chunk),
                        " on, ", piece.end_chunk - piece.first_chunk,
                        " chunks, overlaps another piece that is held; send pieces again as they "
                        "were cut the first time")),
                    "PIECES_OVERLAP");
}

bool Aggregator::Has(const std::string& node, uint64_t attempt, const HeldPiece& piece) const {
  const Contribution* const held = Find(node);
  if (held == nullptr) return false;
  if (held->attempt != attempt) return held->complete;
  bool same = false;
  return CheckOverlap(node, *held, piece, &same).ok() && same;
}

const Contribution* Aggregator::Find(const std::string& node) const {
  const auto found = contributions_.find(node);
  return found == contributions_.end() ? nullptr : &found->second;
}

bool Aggregator::Covers(const std::string& node) const {
  const Contribution* held = Find(node);
  return held != nullptr && held->ranges.Contains(0, grid_->chunks());
}

std::vector<HeldPiece> Aggregator::Pieces(const std::string& node) const {
  std::vector<HeldPiece> pieces;
  const Contribution* held = Find(node);
  if (held == nullptr) return pieces;
  pieces.reserve(held->pieces.size());
  for (const auto& [first, piece] : held->pieces) pieces.push_back(piece);
  return pieces;
}

void Aggregator::MarkComplete(const std::string& node, const std::string& digest) {
  ISTHMUS_CHECK(Covers(node));
  Contribution& held = contributions_[node];
  held.complete = true;
  held.digest = digest;
}

void Aggregator::Discard(const std::string& node) {
  const auto found = contributions_.find(node);
  if (found != contributions_.end() && !found->second.complete) Remove(node);
}

void Aggregator::Remove(const std::string& node) {
  const auto found = contributions_.find(node);
  if (found == contributions_.end()) return;
  for (const auto& [first, piece] : found->second.pieces) bytes_ -= piece.bytes->size();
  contributions_.erase(found);
}

}  // namespace isthmus
