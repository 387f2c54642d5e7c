// absl::Status <-> grpc::Status, codes 1:1. Payloads of the absl::Status whose type URL begins with
// "type.googleapis.com/" travel as details of google.rpc.Status. Only .cc files include this.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace isthmus {

// A message longer than kStatusMessageBytesMax is cut: it travels in the metadata, which is
// limited.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Never fails: details that do not parse are left out, an error without a text gets one.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace isthmus
