#include "transport/errors.h"

#include "absl/strings/cord.h"
#include "absl/types/optional.h"
#include "google/rpc/error_details.pb.h"

namespace isthmus {
namespace {

constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr char kDomain[] = "isthmus";
constexpr int64_t kNanosPerMs = 1000000;

// False when there is none, or when it does not parse: it may come from another program.
template <typename Message>
bool GetPayload(const absl::Status& status, const char* url, Message* message) {
  const absl::optional<absl::Cord> payload = status.GetPayload(url);
  return payload.has_value() && message->ParseFromString(std::string(*payload));
}

}  // namespace

absl::Status WithReason(absl::Status status, absl::string_view reason) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain(kDomain);
  status.SetPayload(kErrorInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

absl::Status WithRetryAfterMs(absl::Status status, int64_t retry_ms) {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(retry_ms / 1000);
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(retry_ms % 1000 * kNanosPerMs));
  status.SetPayload(kRetryInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  if (!GetPayload(status, kErrorInfoUrl, &info) || info.domain() != kDomain) return "";
  return info.reason();
}

int64_t RetryAfterMsOf(const absl::Status& status) {
  // A delay beyond a day is no advice; it also keeps the product below in range.
  constexpr int64_t kSecondsMax = 24 * 60 * 60;
  google::rpc::RetryInfo info;
  if (!GetPayload(status, kRetryInfoUrl, &info)) return -1;
  const auto& delay = info.retry_delay();
  if (delay.seconds() < 0 || delay.seconds() > kSecondsMax || delay.nanos() < 0) return -1;
  return delay.seconds() * 1000 + delay.nanos() / kNanosPerMs;
}

bool AsksToJoinAgain(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return status.code() == absl::StatusCode::kNotFound || reason == kReasonIncarnationFenced ||
         reason == kReasonNotJoined;
}

bool AsksForSnapshot(const absl::Status& status) {
  if (!absl::IsOutOfRange(status)) return false;
  const std::string reason = ReasonOf(status);
  return reason == kReasonUpdatesNotKept || reason == kReasonFetchSnapshot;
}

bool IsRetryable(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAborted:
      return true;
    default:
      return false;
  }
}

}  // namespace isthmus
