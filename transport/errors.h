// Errors between processes. A reason (a stable word in UPPER_SNAKE) and, where it helps, a retry
// delay ride on the absl::Status as payloads: google.rpc.ErrorInfo (domain "isthmus") and RetryInfo
// under their type URLs, as they travel. So code without gRPC can set and read them;
// transport/grpc_status.h puts them on the wire.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace isthmus {

// Reasons that a caller acts on, so both ends must spell them alike.
//
// FAILED_PRECONDITION: the incarnation sent is not the current one, or its lease has ended; or the
// server does not know the caller (any more). The caller joins again and sends again. Any other
// FAILED_PRECONDITION refuses the submission itself.
inline constexpr char kReasonIncarnationFenced[] = "INCARNATION_FENCED";
inline constexpr char kReasonNotJoined[] = "NOT_JOINED";
// ALREADY_EXISTS of JoinRun: the node lives under another secret.
inline constexpr char kReasonNodeAlive[] = "NODE_ALIVE";
// OUT_OF_RANGE: the caller's state is too old to catch up by updates, which are no longer kept, or
// more than a snapshot. It fetches one and joins with that.
inline constexpr char kReasonUpdatesNotKept[] = "UPDATES_NOT_KEPT";
inline constexpr char kReasonFetchSnapshot[] = "FETCH_SNAPSHOT";
// UNAVAILABLE: this process is stopping.
inline constexpr char kReasonShuttingDown[] = "SHUTTING_DOWN";

// status with a reason, for instance WithReason(absl::NotFoundError("…"), "UNKNOWN_NODE").
absl::Status WithReason(absl::Status status, absl::string_view reason);
absl::Status WithRetryAfterMs(absl::Status status, int64_t retry_ms);

// "" / -1 when there is none.
std::string ReasonOf(const absl::Status& status);
int64_t RetryAfterMsOf(const absl::Status& status);

// The server does not know the caller's incarnation (any more).
bool AsksToJoinAgain(const absl::Status& status);

// The caller needs a snapshot to go on.
bool AsksForSnapshot(const absl::Status& status);

// UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED: the caller may try again.
bool IsRetryable(const absl::Status& status);

}  // namespace isthmus
