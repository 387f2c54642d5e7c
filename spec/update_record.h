// The record of a committed round: its canonical hash and the chain.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "isthmus/v1/coordinator.pb.h"

namespace isthmus {

// SHA-256 of every field but `sha256`, in field order, each sized or as 8 bytes little endian
// (lists preceded by their length). Chained through previous_sha256. 32 bytes.
std::string UpdateRecordSha256(const v1::UpdateRecord& record);

// DATA_LOSS if the record's own hash is wrong, or previous_sha256 is not `previous`.
absl::Status CheckUpdateRecord(const v1::UpdateRecord& record, const std::string& previous);

}  // namespace isthmus
