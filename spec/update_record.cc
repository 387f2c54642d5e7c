#include "spec/update_record.h"

#include "absl/strings/str_cat.h"
#include "base/sha256.h"

namespace isthmus {

std::string UpdateRecordSha256(const v1::UpdateRecord& record) {
  Sha256 hash;
  hash.UpdateSized(record.run());
  hash.UpdateU64(record.round());
  hash.UpdateU64(record.fragment());
  hash.UpdateU64(record.base_round());
  hash.UpdateU64(record.step());
  hash.UpdateU64(record.spec_revision());
  hash.UpdateU64(record.lr_bits());
  hash.UpdateU64(record.weight_decay_bits());
  hash.UpdateU64(record.is_void() ? 1 : 0);
  hash.UpdateU64(static_cast<uint64_t>(record.included_size()));
  for (const v1::IncludedContribution& included : record.included()) {
    hash.UpdateSized(included.node());
    hash.UpdateSized(included.digest());
  }
  hash.UpdateU64(static_cast<uint64_t>(record.codec()));
  hash.UpdateU64(record.pieces());
  hash.UpdateU64(record.payload_bytes());
  hash.UpdateSized(record.payload_sha256());
  hash.UpdateSized(record.previous_sha256());
  hash.UpdateU64(record.norm_bits());
  return hash.Finish();
}

absl::Status CheckUpdateRecord(const v1::UpdateRecord& record, const std::string& previous) {
  const std::string computed = UpdateRecordSha256(record);
  if (record.sha256() != computed) {
    return absl::DataLossError(absl::StrCat(
        "the record of round ", record.round(), " says sha256 ", HexPrefix(record.sha256()),
        ", its fields give ", HexPrefix(computed), "; it is damaged, fetch it again"));
  }
  if (record.previous_sha256() != previous) {
    return absl::DataLossError(absl::StrCat(
        "the record of round ", record.round(), " continues ",
        record.previous_sha256().empty() ? "the start state" : HexPrefix(record.previous_sha256()),
        ", this node holds ", previous.empty() ? "the start state" : HexPrefix(previous),
        "; the histories differ, start this node from the run's state"));
  }
  return absl::OkStatus();
}

}  // namespace isthmus
