// absl::Status <-> grpc::Status, with google.rpc.ErrorInfo (domain "isthmus", a stable reason in
// UPPER_SNAKE) and, where it helps, RetryInfo. The reason and the retry delay ride on the
// absl::Status as payloads, so that code without gRPC can set and read them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace isthmus {

// status with a reason, for instance WithReason(absl::NotFoundError("…"), "UNKNOWN_NODE").
absl::Status WithReason(absl::Status status, absl::string_view reason);
absl::Status WithRetryAfterMs(absl::Status status, int64_t retry_ms);

// "" / -1 when there is none.
std::string ReasonOf(const absl::Status& status);
int64_t RetryAfterMsOf(const absl::Status& status);

// UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED: the caller may try again.
bool IsRetryable(const absl::Status& status);

}  // namespace isthmus
