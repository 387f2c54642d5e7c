#include "worker/round_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "spec/update_record.h"

namespace isthmus {
namespace {

absl::Status Damaged(const v1::UpdateRecord& record, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the update of round ", record.round(), ": ", what,
                                          "; the coordinator or the way to it damages data"));
}

}  // namespace

absl::Status CheckUpdate(const Grid& grid, const CommittedUpdate& update,
                         const std::string& previous) {
  const v1::UpdateRecord& record = update.record;
  ISTHMUS_RETURN_IF_ERROR(CheckUpdateRecord(record, previous));
  uint64_t bytes = 0;
  std::vector<const std::string*> pieces;
  for (const std::string& piece : update.pieces) {
    bytes += piece.size();
    pieces.push_back(&piece);
  }
  if (pieces.size() != record.pieces() || bytes != record.payload_bytes()) {
    return Damaged(record,
                   absl::StrCat("it says ", record.pieces(), " pieces of ", record.payload_bytes(),
                                " bytes, there came ", pieces.size(), " of ", bytes));
  }
  if (record.is_void()) return absl::OkStatus();
  const absl::StatusOr<std::string> digest = PayloadDigest(grid, pieces);
  if (!digest.ok()) return Damaged(record, digest.status().message());
  if (*digest != record.payload_sha256()) {
    return Damaged(record, absl::StrCat("it says digest ", HexPrefix(record.payload_sha256()),
                                        ", its pieces give ", HexPrefix(*digest)));
  }
  return absl::OkStatus();
}

RoundLog::RoundLog(uint64_t last_round, size_t bytes_max)
    : forgotten_round_(last_round), committed_round_(last_round), bytes_max_(bytes_max) {}

void RoundLog::Opened(const v1::RoundOpened& opened) {
  if (opened.round() <= committed_round_ || rounds_.count(opened.round()) > 0) return;
  auto event = std::make_shared<v1::WatchUpdatesResponse>();
  *event->mutable_opened() = opened;
  rounds_[opened.round()].opened = std::move(event);
}

void RoundLog::Committed(std::shared_ptr<const Grid> grid, const CommittedUpdate& update,
                         bool own_included) {
  const uint64_t number = update.record.round();
  if (number <= committed_round_) return;
  Round& round = rounds_[number];
  round.committed = true;
  *round.update.mutable_update() = update.record;
  round.update.set_own_included(own_included);
  for (const std::string& bytes : update.pieces) {
    const absl::StatusOr<PieceView> view = OpenPiece(*grid, bytes);
    ISTHMUS_CHECK(view.ok());  // CheckUpdate has opened it before
    auto event = std::make_shared<v1::WatchUpdatesResponse>();
    event->mutable_piece()->set_round(number);
    event->mutable_piece()->set_data(bytes);
    round.pieces.push_back({view->first_chunk, view->end_chunk, std::move(event)});
    round.bytes += bytes.size();
  }
  bytes_ += round.bytes;
  committed_round_ = number;
  while (bytes_ > bytes_max_ && rounds_.begin()->first < number) Forget(rounds_.begin()->first);
}

void RoundLog::Finished(uint64_t last_round) {
  auto event = std::make_shared<v1::WatchUpdatesResponse>();
  event->mutable_finished()->set_round(last_round);
  finished_ = std::move(event);
}

std::string RoundLog::RecordSha256(uint64_t round) const {
  const auto kept = rounds_.find(round);
  return kept == rounds_.end() ? "" : kept->second.update.update().sha256();
}

absl::StatusOr<std::vector<WatchEvent>> RoundLog::After(uint64_t last_round,
                                                        const ChunkRanges& ranges) const {
  if (last_round < forgotten_round_) {
    return absl::OutOfRangeError(absl::StrCat(
        "the update of round ", last_round + 1, " is no longer kept by the agent, whose oldest is ",
        "that of round ", forgotten_round_ + 1, "; start the trainers of this node again"));
  }
  std::vector<WatchEvent> events;
  for (auto it = rounds_.upper_bound(last_round); it != rounds_.end(); ++it) {
    if (it->second.opened != nullptr) events.push_back(it->second.opened);
    if (!it->second.committed) continue;
    for (WatchEvent& event : UpdateFor(it->first, ranges)) events.push_back(std::move(event));
  }
  if (finished_ != nullptr) events.push_back(finished_);
  return events;
}

std::vector<WatchEvent> RoundLog::UpdateFor(uint64_t round, const ChunkRanges& ranges) const {
  const auto kept = rounds_.find(round);
  if (kept == rounds_.end()) return {};
  std::vector<WatchEvent> events(1);  // the record, once its number of pieces is known
  for (const KeptPiece& piece : kept->second.pieces) {
    if (ranges.Overlaps(piece.first_chunk, piece.end_chunk)) events.push_back(piece.event);
  }
  auto record = std::make_shared<v1::WatchUpdatesResponse>(kept->second.update);
  record->set_pieces_following(static_cast<uint32_t>(events.size() - 1));
  events[0] = std::move(record);
  return events;
}

WatchEvent RoundLog::OpenedEvent(uint64_t round) const {
  const auto kept = rounds_.find(round);
  return kept == rounds_.end() ? nullptr : kept->second.opened;
}

void RoundLog::Forget(uint64_t through_round) {
  if (through_round > committed_round_) through_round = committed_round_;
  while (!rounds_.empty() && rounds_.begin()->first <= through_round) {
    bytes_ -= rounds_.begin()->second.bytes;
    rounds_.erase(rounds_.begin());
  }
  if (through_round > forgotten_round_) forgotten_round_ = through_round;
}

}  // namespace isthmus
