#include "worker/bundle.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "transport/errors.h"

namespace isthmus {

absl::StatusOr<PieceView> CheckRankPiece(const Grid& grid, absl::string_view bytes) {
  ISTHMUS_ASSIGN_OR_RETURN(PieceView view, OpenPiece(grid, bytes));
  const v1::PayloadCodec layout = ContributionLayout(grid.codec());
  if (view.codec != layout) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece has layout ", v1::PayloadCodec_Name(view.codec),
                     "; contributions have ", v1::PayloadCodec_Name(layout)));
  }
  ISTHMUS_RETURN_IF_ERROR(
      ForEachChunk(grid, view, [](uint64_t, const Components&) { return absl::OkStatus(); }));
  return view;
}

Bundle::Bundle(const BundleOptions& options)
    : options_(options), parts_(options.rank_ranges.size()) {}

absl::Status Bundle::Exists(uint32_t rank, absl::string_view what) const {
  return WithReason(absl::AlreadyExistsError(absl::StrCat("rank ", rank, " ", what, " round ",
                                                          options_.round, "; the first stands")),
                    "OTHER_BYTES");
}

absl::Status Bundle::Begin(uint32_t rank, const Work& work) {
  Part& part = parts_[rank];
  if (part.abstained) return Exists(rank, "has abstained from");
  if (part.begun && (part.work.tokens != work.tokens || part.work.steps != work.steps)) {
    return Exists(rank, "said other numbers of tokens or steps for");
  }
  for (const Part& other : parts_) {
    if (!other.begun || other.work.steps == work.steps) continue;
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " says ", work.steps,
                                                   " steps for round ", options_.round, ", rank ",
                                                   &other - parts_.data(), " ", other.work.steps,
                                                   "; all ranks of a node take the same steps"));
  }
  part.begun = true;
  part.work = work;
  return absl::OkStatus();
}

absl::Status Bundle::Add(uint32_t rank, const PieceView& view, std::string bytes) {
  Part& part = parts_[rank];
  if (part.abstained) return Exists(rank, "has abstained from");
  if (!options_.rank_ranges[rank].Contains(view.first_chunk, view.end_chunk)) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "rank ", rank, " sends chunks ", view.first_chunk, " to before ", view.end_chunk,
            ", which are not all its own; a piece stays within the "
            "ranges that its rank joined with")),
        "WRONG_RANGE");
  }
  if (abstains()) return absl::OkStatus();  // nobody will need it
  if (const auto before = part.pieces.find(view.first_chunk); before != part.pieces.end()) {
    if (before->second.end_chunk == view.end_chunk && before->second.sha256 == Sha256Of(bytes)) {
      return absl::OkStatus();
    }
    return Exists(rank,
                  absl::StrCat("has sent other bytes from chunk ", view.first_chunk, " on for"));
  }
  if (part.held.Overlaps(view.first_chunk, view.end_chunk)) {
    return Exists(rank, absl::StrCat("has sent some of chunks ", view.first_chunk, " to before ",
                                     view.end_chunk, " in another piece for"));
  }
  if (bytes.size() > options_.bytes_max - bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("the contribution to round ", options_.round,
                                                     " has more than ", options_.bytes_max,
                                                     " bytes; send fewer components"));
  }
  ISTHMUS_CHECK(part.held.Add(view.first_chunk, view.end_chunk));
  bytes_ += bytes.size();
  const uint64_t first_chunk = view.first_chunk;
  HeldPiece piece;
  piece.end_chunk = view.end_chunk;
  piece.sha256 = Sha256Of(bytes);
  piece.bytes = std::move(bytes);
  part.pieces.emplace(first_chunk, std::move(piece));
  return absl::OkStatus();
}

absl::Status Bundle::End(uint32_t rank) {
  Part& part = parts_[rank];
  if (abstains() || part.complete) return absl::OkStatus();
  for (const auto& [begin, end] : options_.rank_ranges[rank].list()) {
    if (part.held.Contains(begin, end)) continue;
    uint64_t lacking = begin;
    for (const auto& [held_begin, held_end] : part.held.list()) {
      if (held_begin <= lacking && lacking < held_end) lacking = held_end;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " ended its part of round ", options_.round, " without chunk ",
                     lacking, "; it holds chunks ", begin, " to before ", end));
  }
  part.complete = true;
  return absl::OkStatus();
}

absl::Status Bundle::Abstain(uint32_t rank, absl::string_view reason) {
  if (parts_[rank].complete) return Exists(rank, "has sent its part of");
  Refuse(rank, reason);
  return absl::OkStatus();
}

void Bundle::Refuse(uint32_t rank, absl::string_view reason) {
  if (parts_[rank].complete) return;
  parts_[rank].abstained = true;
  if (abstains()) return;  // the first reason is told
  abstain_reason_ = absl::StrCat("rank ", rank, ": ", reason.empty() ? "no reason given" : reason)
                        .substr(0, kReasonBytesMax);
  for (Part& part : parts_) {
    part.pieces.clear();
    part.held = ChunkRanges();
  }
  bytes_ = 0;
}

bool Bundle::Settled(uint32_t rank) const { return abstains() || parts_[rank].complete; }

bool Bundle::NoneSent() const {
  return !abstains() &&
         std::none_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.complete; });
}

std::string Bundle::Lacking() const {
  const auto lacks = [this](const Part& part) { return !part.complete && !abstains(); };
  const size_t count = std::count_if(parts_.begin(), parts_.end(), lacks);
  if (count == 0) return "";
  if (count > 1 && count == parts_.size()) {
    return absl::StrCat("no rank of ", count, " has sent its part");
  }
  const auto first = std::find_if(parts_.begin(), parts_.end(), lacks);
  return absl::StrCat("rank ", first - parts_.begin(), " of ", parts_.size(),
                      count > 1 ? absl::StrCat(" and ", count - 1, " more have") : " has",
                      " not sent ", count > 1 ? "their parts" : "its part");
}

std::shared_ptr<Submission> Bundle::Take() {
  const bool complete =
      std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.complete; });
  if (taken_ || (!complete && !abstains())) return nullptr;
  taken_ = true;
  auto submission = std::make_shared<Submission>();
  submission->round = options_.round;
  submission->base_round = options_.base_round;
  submission->attempt = options_.attempt;
  submission->abstain_reason = abstain_reason_;
  if (abstains()) return submission;
  submission->codec = options_.layout;
  submission->lr_bits = options_.lr_bits;
  ChunkRanges all;
  std::map<uint64_t, HeldPiece*> pieces;  // over all ranks, ascending
  for (Part& part : parts_) {
    submission->work.tokens += part.work.tokens;
    submission->work.steps = part.work.steps;  // of all of them
    for (const auto& [begin, end] : part.held.list()) ISTHMUS_CHECK(all.Add(begin, end));
    for (auto& [first_chunk, piece] : part.pieces) pieces.emplace(first_chunk, &piece);
  }
  for (const auto& [begin, end] : all.list()) {
    v1::ChunkRange& range = submission->ranges.emplace_back();
    range.set_begin(begin);
    range.set_end(end);
  }
  submission->pieces.reserve(pieces.size());
  for (auto& [first_chunk, piece] : pieces) {
    v1::ChunkRange& range = submission->piece_ranges.emplace_back();
    range.set_begin(first_chunk);
    range.set_end(piece->end_chunk);
    submission->pieces.push_back(std::move(piece->bytes));
  }
  return submission;
}

}  // namespace isthmus
