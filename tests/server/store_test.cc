#include "server/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isthmus {
namespace {

using ::testing::HasSubstr;

StoredUpdatePtr Update(uint64_t round, uint64_t bytes) {
  auto update = std::make_shared<StoredUpdate>();
  update->record.set_round(round);
  update->record.set_payload_bytes(bytes);
  update->record.set_sha256("sha " + std::to_string(round));
  if (round > 1) update->record.set_previous_sha256("sha " + std::to_string(round - 1));
  return update;
}

TEST(MemoryStore, GivesWhatCameAfterARound) {
  const auto store = MakeMemoryStore(size_t{1} << 30);
  EXPECT_EQ(store->last_round(), 0u);
  EXPECT_TRUE(store->ReadAfter(0)->empty());
  EXPECT_EQ(*store->RecordSha256(0), "");
  for (uint64_t round = 1; round <= 4; ++round) {
    ASSERT_TRUE(store->Commit(Update(round, 100)).ok());
  }
  EXPECT_EQ(store->last_round(), 4u);
  const auto after = store->ReadAfter(2);
  ASSERT_EQ(after->size(), 2u);
  EXPECT_EQ((*after)[0]->record.round(), 3u);
  EXPECT_TRUE(store->ReadAfter(4)->empty());
  EXPECT_TRUE(absl::IsOutOfRange(store->ReadAfter(5).status()));
  EXPECT_EQ(*store->RecordSha256(3), "sha 3");
  EXPECT_TRUE(absl::IsOutOfRange(store->RecordSha256(5).status()));
}

TEST(MemoryStore, KeepsTheNewestUpToItsLimit) {
  const auto store = MakeMemoryStore(30000);
  for (uint64_t round = 1; round <= 5; ++round) {
    ASSERT_TRUE(store->Commit(Update(round, 10000)).ok());
  }
  // Two updates with what they cost beside their bytes fit.
  const absl::Status status = store->ReadAfter(2).status();
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rounds 4 to 5"));
  EXPECT_EQ(store->ReadAfter(3)->size(), 2u);
  // The hash of the one before the first kept is known from the chain.
  EXPECT_EQ(*store->RecordSha256(3), "sha 3");
  EXPECT_TRUE(absl::IsOutOfRange(store->RecordSha256(2).status()));
  // The last one stays, however large.
  ASSERT_TRUE(store->Commit(Update(6, 1000000)).ok());
  EXPECT_EQ(store->ReadAfter(5)->size(), 1u);
}

}  // namespace
}  // namespace isthmus
