#include "transport/submit_reactor.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "transport/grpc_status.h"

namespace isthmus {

SubmitReactor::SubmitReactor(RoundHost* host, grpc::CallbackServerContext* context,
                             v1::SubmitResponse* response)
    : host_(host), context_(context), response_(response) {
  StartRead(&request_);
}

void SubmitReactor::OnReadDone(bool ok) {
  const absl::Status status = ok ? Take(&request_) : Complete();
  if (ok && status.ok()) {
    StartRead(&request_);
    return;
  }
  Finish(ToGrpcStatus(status));
}

absl::Status SubmitReactor::Take(v1::SubmitRequest* request) {
  if (ended_) {
    return absl::InvalidArgumentError("a message came after the end of the submission");
  }
  switch (request->part_case()) {
    case v1::SubmitRequest::kHeader:
      return TakeHeader(request->header());
    case v1::SubmitRequest::kPiece:
      return TakePiece(std::move(*request->mutable_piece()->mutable_data()));
    case v1::SubmitRequest::kEnd:
      return TakeEnd(request->end());
    case v1::SubmitRequest::PART_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "a message of the submission is neither header, piece nor end; perhaps the sender is of a "
      "newer version");
}

absl::Status SubmitReactor::TakeHeader(const v1::SubmitHeader& header) {
  if (sink_ != nullptr) {
    return absl::InvalidArgumentError(
        "a second header came; a submission has one, as its first "
        "message");
  }
  payload_bytes_ = header.payload_bytes();
  abstains_ = !header.abstain_reason().empty();
  if (abstains_ && payload_bytes_ != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header abstains and announces payload_bytes ", payload_bytes_,
                     "; an abstention has none"));
  }
  ISTHMUS_ASSIGN_OR_RETURN(sink_, host_->BeginSubmit(header));
  return absl::OkStatus();
}

absl::Status SubmitReactor::TakePiece(std::string piece) {
  if (sink_ == nullptr) return absl::InvalidArgumentError("a piece came before the header");
  if (abstains_) return absl::InvalidArgumentError("a piece came after a header that abstains");
  if (piece.size() > kPieceBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece has ", piece.size(), " bytes; the limit is ", kPieceBytesMax));
  }
  received_bytes_ += piece.size();
  if (received_bytes_ > payload_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat("the pieces have ", received_bytes_,
                                                   " bytes so far; the header announced "
                                                   "payload_bytes ",
                                                   payload_bytes_));
  }
  return sink_->AddPiece(std::move(piece));
}

absl::Status SubmitReactor::TakeEnd(const v1::SubmitEnd& end) {
  if (sink_ == nullptr) return absl::InvalidArgumentError("the end came before the header");
  if (received_bytes_ != payload_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat("the submission ended after ", received_bytes_,
                                                   " bytes of pieces; the header announced "
                                                   "payload_bytes ",
                                                   payload_bytes_));
  }
  ended_ = true;
  end_ = end;
  return absl::OkStatus();
}

absl::Status SubmitReactor::Complete() {
  if (context_->IsCancelled()) return absl::CancelledError("the sender went away");
  if (!ended_) {
    return absl::InvalidArgumentError(
        sink_ == nullptr ? "the submission has no header, or one that does not decode"
                         : "the submission has no end: it was cut off, or a message of it does "
                           "not decode; send it again");
  }
  ISTHMUS_ASSIGN_OR_RETURN(*response_, sink_->End(end_));
  return absl::OkStatus();
}

}  // namespace isthmus
