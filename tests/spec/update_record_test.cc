#include "spec/update_record.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/sha256.h"

namespace isthmus {
namespace {

v1::UpdateRecord Record() {
  v1::UpdateRecord record;
  record.set_run("r");
  record.set_round(2);
  record.set_base_round(1);
  record.set_step(2);
  record.set_spec_revision(1);
  record.set_lr_bits(0x3f800000);
  v1::IncludedContribution* included = record.add_included();
  included->set_node("a");
  included->set_digest("d");
  record.set_codec(v1::PAYLOAD_CODEC_MERGED_F32);
  record.set_pieces(3);
  record.set_payload_bytes(1000);
  record.set_payload_sha256("p");
  record.set_previous_sha256("before");
  record.set_sha256(UpdateRecordSha256(record));
  return record;
}

TEST(UpdateRecordTest, TheRecordOfTheRoundBeforeIsChecked) {
  EXPECT_TRUE(CheckUpdateRecord(Record(), "before").ok());
  EXPECT_EQ(CheckUpdateRecord(Record(), "").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(CheckUpdateRecord(Record(), "another").code(), absl::StatusCode::kDataLoss);
}

TEST(UpdateRecordTest, EveryFieldIsHashed) {
  const std::vector<std::function<void(v1::UpdateRecord*)>> changes = {
      [](v1::UpdateRecord* r) { r->set_run("s"); },
      [](v1::UpdateRecord* r) { r->set_round(3); },
      [](v1::UpdateRecord* r) { r->set_fragment(1); },
      [](v1::UpdateRecord* r) { r->set_base_round(0); },
      [](v1::UpdateRecord* r) { r->set_step(3); },
      [](v1::UpdateRecord* r) { r->set_spec_revision(2); },
      [](v1::UpdateRecord* r) { r->set_lr_bits(1); },
      [](v1::UpdateRecord* r) { r->set_weight_decay_bits(1); },
      [](v1::UpdateRecord* r) { r->set_is_void(true); },
      [](v1::UpdateRecord* r) { r->mutable_included(0)->set_node("b"); },
      [](v1::UpdateRecord* r) { r->mutable_included(0)->set_digest("e"); },
      [](v1::UpdateRecord* r) { *r->add_included() = r->included(0); },
      [](v1::UpdateRecord* r) { r->set_codec(v1::PAYLOAD_CODEC_TOPK_F32); },
      [](v1::UpdateRecord* r) { r->set_pieces(4); },
      [](v1::UpdateRecord* r) { r->set_payload_bytes(1001); },
      [](v1::UpdateRecord* r) { r->set_payload_sha256("q"); },
      [](v1::UpdateRecord* r) { r->set_previous_sha256("other"); },
      [](v1::UpdateRecord* r) { r->set_norm_bits(1); },
      [](v1::UpdateRecord* r) { r->set_sha256("x"); },
  };
  // A field that is added to the record must be added to the hash and to this list.
  EXPECT_EQ(v1::UpdateRecord::descriptor()->field_count(), 17);
  for (const auto& change : changes) {
    v1::UpdateRecord record = Record();
    change(&record);
    EXPECT_EQ(CheckUpdateRecord(record, record.previous_sha256()).code(),
              absl::StatusCode::kDataLoss)
        << record.ShortDebugString();
  }
}

TEST(UpdateRecordTest, HashIsTheStatedForm) {
  v1::UpdateRecord record;
  record.set_run("r");
  record.set_round(1);
  Sha256 hash;
  hash.UpdateSized("r");
  for (uint64_t word : {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}) hash.UpdateU64(word);
  hash.UpdateSized("");
  hash.UpdateSized("");
  hash.UpdateU64(0);
  EXPECT_EQ(UpdateRecordSha256(record), hash.Finish());
}

}  // namespace
}  // namespace isthmus
