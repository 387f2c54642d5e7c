#include "transport/update_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "spec/update_record.h"

namespace isthmus {
namespace {

absl::Status Broken(const std::string& text) {
  return absl::InternalError(absl::StrCat("the server does not keep to the protocol: ", text));
}

}  // namespace

UpdateReader::UpdateReader(RoundHash held) : delivered_(std::move(held)) {}

void UpdateReader::StartWatch(RoundHash after, bool from_coordinator) {
  read_ = std::move(after);
  from_coordinator_ = from_coordinator;
  started_ = false;
  partial_ = nullptr;
}

absl::StatusOr<UpdateReader::News> UpdateReader::Take(v1::WatchUpdatesResponse* event) {
  if (started_ == event->has_start()) {
    return Broken(started_ ? "a second WatchStart came" : "the first event is no WatchStart");
  }
  if (partial_ != nullptr && !event->has_piece()) {
    return Broken(absl::StrCat("update ", partial_->record.round(), " still lacks ",
                               missing_pieces_, " pieces when the next event came"));
  }
  News news;
  switch (event->event_case()) {
    case v1::WatchUpdatesResponse::kStart:
      return TakeStart(event->mutable_start());
    case v1::WatchUpdatesResponse::kOpened: {
      const uint64_t round = event->opened().round();
      // With overlap a node may be taken into a round after the one that follows it.
      if (round <= delivered_.round || !opened_.insert(round).second) return news;
      news.opened = std::move(*event->mutable_opened());
      return news;
    }
    case v1::WatchUpdatesResponse::kUpdate:
      return TakeRecord(event);
    case v1::WatchUpdatesResponse::kPiece:
      return TakePiece(event->mutable_piece());
    case v1::WatchUpdatesResponse::kRevised:
      if (event->revised().revision() <= revision_) return news;
      revision_ = event->revised().revision();
      news.revised = std::move(*event->mutable_revised());
      return news;
    case v1::WatchUpdatesResponse::kFinished:
      return Finished(event->finished().round());
    case v1::WatchUpdatesResponse::EVENT_NOT_SET:
      break;
  }
  return news;  // of a newer version; what matters would not be optional
}

absl::StatusOr<UpdateReader::News> UpdateReader::TakeStart(v1::WatchStart* start) {
  started_ = true;
  if (from_coordinator_ && start->committed_round() < delivered_.round) {
    return absl::DataLossError(absl::StrCat(
        "update ", delivered_.round, " was received, but the coordinator's last is ",
        start->committed_round(), " now: its state was lost; restore it, or start all nodes from ",
        "one checkpoint"));
  }
  News news;
  news.start = std::move(*start);
  return news;
}

absl::Status UpdateReader::CheckRecord(const v1::WatchUpdatesResponse& event) const {
  const v1::UpdateRecord& record = event.update();
  if (record.round() != read_.round + 1) {
    return absl::DataLossError(absl::StrCat("update ", record.round(), " came after update ",
                                            read_.round, "; every round comes once, in order"));
  }
  ISTHMUS_RETURN_IF_ERROR(CheckUpdateRecord(record, read_.sha256));
  if (record.round() == delivered_.round && record.sha256() != delivered_.sha256) {
    return absl::DataLossError(absl::StrCat(
        "the server has another update ", record.round(),
        " than it had before: its state was lost or exchanged; restore it, or start all nodes "
        "from one checkpoint"));
  }
  if (event.pieces_following() > record.pieces() ||
      (from_coordinator_ && event.pieces_following() != record.pieces())) {
    return Broken(absl::StrCat("update ", record.round(), " has ", record.pieces(), " pieces and ",
                               event.pieces_following(), " are announced"));
  }
  return absl::OkStatus();
}

absl::StatusOr<UpdateReader::News> UpdateReader::TakeRecord(v1::WatchUpdatesResponse* event) {
  ISTHMUS_RETURN_IF_ERROR(CheckRecord(*event));
  partial_ = std::make_shared<CommittedUpdate>();
  partial_->own_included = event->own_included();
  partial_->record = std::move(*event->mutable_update());
  missing_pieces_ = event->pieces_following();
  partial_bytes_ = 0;
  if (missing_pieces_ > 0) return News();
  return Complete();
}

absl::StatusOr<UpdateReader::News> UpdateReader::TakePiece(v1::UpdatePiece* piece) {
  if (partial_ == nullptr) return Broken("a piece came without its update");
  const v1::UpdateRecord& record = partial_->record;
  if (piece->round() != record.round()) {
    return Broken(
        absl::StrCat("a piece of update ", piece->round(), " came amid update ", record.round()));
  }
  if (piece->data().size() > kPieceBytesMax) {
    return Broken(absl::StrCat("a piece of update ", record.round(), " has ", piece->data().size(),
                               " bytes; the limit is ", kPieceBytesMax));
  }
  bytes_ += piece->data().size();
  partial_bytes_ += piece->data().size();
  if (partial_bytes_ > record.payload_bytes()) {
    return Broken(absl::StrCat("the pieces of update ", record.round(),
                               " are larger than its payload_bytes ", record.payload_bytes()));
  }
  partial_->pieces.push_back(std::move(*piece->mutable_data()));
  if (--missing_pieces_ > 0) return News();
  return Complete();
}

absl::StatusOr<UpdateReader::News> UpdateReader::Complete() {
  const v1::UpdateRecord& record = partial_->record;
  if (partial_->pieces.size() == record.pieces() && partial_bytes_ != record.payload_bytes()) {
    return Broken(absl::StrCat("all pieces of update ", record.round(), " have ", partial_bytes_,
                               " bytes, its payload_bytes are ", record.payload_bytes()));
  }
  read_.round = record.round();
  read_.sha256 = record.sha256();
  News news;
  if (record.round() > delivered_.round) {
    delivered_ = read_;
    opened_.erase(opened_.begin(), opened_.upper_bound(delivered_.round));
    news.update = std::move(partial_);
  }
  partial_ = nullptr;
  return news;
}

absl::StatusOr<UpdateReader::News> UpdateReader::Finished(uint64_t round) const {
  if (round != read_.round) {
    return absl::DataLossError(absl::StrCat("the run finished with round ", round,
                                            ", but the last update that came is ", read_.round));
  }
  News news;
  news.finished = round;
  return news;
}

}  // namespace isthmus
