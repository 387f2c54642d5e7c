#include "worker/snapshot_fetch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

constexpr uint64_t kTellEveryBytes = uint64_t{16} << 20;

}  // namespace

SnapshotFetch::SnapshotFetch(Client* client, std::optional<uint64_t> round,
                             std::vector<SectionRange> ranges, OnPiece on_piece)
    : client_(client), round_(round), ranges_(std::move(ranges)), on_piece_(std::move(on_piece)) {
  for (const SectionRange& range : ranges_) wanted_elements_ += range.end - range.begin;
}

absl::Status SnapshotFetch::Try(const std::function<void(const std::string&)>& tell) {
  do {
    const auto left = Missing(ranges_, held_, kSnapshotRangesMax);
    if (left.empty() && knows_facts_) break;
    ISTHMUS_RETURN_IF_ERROR(Call(left, tell));
    if (!left.empty() && Missing(ranges_, held_, 1) == Missing(left, {}, 1)) {
      return absl::DataLossError(absl::StrCat("the snapshot of round ", facts_.round(),
                                              " lacks elements from ", left.front().begin, " on"));
    }
  } while (true);
  return absl::OkStatus();
}

absl::Status SnapshotFetch::Call(const std::vector<SectionRange>& ranges,
                                 const std::function<void(const std::string&)>& tell) {
  v1::FetchSnapshotRequest request;
  if (round_.has_value()) request.set_round(*round_);
  WriteRanges(ranges, request.mutable_ranges());
  const std::unique_ptr<SnapshotDownload> download = client_->FetchSnapshot(request);
  v1::FetchSnapshotResponse message;
  uint64_t told_bytes = 0;
  while (download->Next(&message)) {
    ISTHMUS_RETURN_IF_ERROR(Take(message));
    const uint64_t bytes = held_elements_ * sizeof(float);
    if (bytes < told_bytes + kTellEveryBytes) continue;
    told_bytes = bytes;
    tell(absl::StrCat("fetching the snapshot of round ", facts_.round(), ": ", bytes >> 20, " of ",
                      (wanted_elements_ * sizeof(float)) >> 20, " MiB"));
  }
  ISTHMUS_RETURN_IF_ERROR(download->Finish());
  if (knows_facts_) return absl::OkStatus();
  return absl::DataLossError("the server sent no facts of the snapshot");
}

absl::Status SnapshotFetch::Take(const v1::FetchSnapshotResponse& message) {
  if (message.has_facts()) {
    if (knows_facts_ && message.facts().SerializeAsString() != facts_.SerializeAsString()) {
      return absl::DataLossError("the server sent two snapshots of one round");
    }
    if (round_.has_value() && message.facts().round() != *round_) {
      return absl::DataLossError(absl::StrCat("the server sent the snapshot of round ",
                                              message.facts().round(), ", not of round ", *round_));
    }
    facts_ = message.facts();
    knows_facts_ = true;
    round_ = facts_.round();  // whatever becomes the newest meanwhile
    return absl::OkStatus();
  }
  const v1::SnapshotPiece& piece = message.piece();
  const SectionRange range = {piece.section(), piece.begin(),
                              piece.begin() + piece.data().size() / sizeof(float)};
  const bool in_order = held_.empty() || held_.back().section < range.section ||
                        (held_.back().section == range.section && held_.back().end <= range.begin);
  if (!knows_facts_ || !message.has_piece() || range.begin >= range.end ||
      piece.data().size() % sizeof(float) != 0 || !in_order ||
      !Missing({range}, ranges_, 1).empty()) {
    return absl::DataLossError(absl::StrCat("the server sent elements [", range.begin, ", ",
                                            range.end, ") of section ", range.section,
                                            ", which were not asked for"));
  }
  ISTHMUS_RETURN_IF_ERROR(on_piece_(piece));
  held_elements_ += range.end - range.begin;
  if (!held_.empty() && held_.back().section == range.section && held_.back().end == range.begin) {
    held_.back().end = range.end;
  } else {
    held_.push_back(range);
  }
  return absl::OkStatus();
}

}  // namespace isthmus
