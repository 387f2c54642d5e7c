// Updates and snapshots for tests of stores: made of their round alone, so that what was read is
// compared with what must have been written. Hashes of updates chain as real ones do.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "server/store.h"
#include "spec/grid.h"
#include "spec/piece.h"
#include "spec/update_record.h"
#include "tests/server/payloads.h"

namespace isthmus {

inline std::string TestSha256(uint64_t round) {
  return round == 0 ? "" : Sha256Of("record " + std::to_string(round));
}

// Of `bytes` in pieces of at most 5,000, so that whole ones lie in blob files; no piece is so short
// that it has no chunk range.
inline std::shared_ptr<StoredUpdate> TestUpdate(uint64_t round, uint64_t bytes) {
  auto update = std::make_shared<StoredUpdate>();
  v1::UpdateRecord& record = update->record;
  record.set_run("test");
  record.set_round(round);
  record.set_base_round(round - 1);
  record.set_step(round);
  record.set_previous_sha256(TestSha256(round - 1));
  record.set_sha256(TestSha256(round));
  v1::IncludedContribution* included = record.add_included();
  included->set_node("a");
  included->set_digest(Sha256Of("contribution " + std::to_string(round)));
  std::mt19937 random(static_cast<uint32_t>(round));
  for (uint64_t made = 0; made < bytes;) {
    std::string data(std::min<uint64_t>(bytes - made, 5000), '\0');
    for (char& byte : data) byte = static_cast<char>(random());
    made += data.size();
    const size_t chunk = update->pieces.size();
    // As in spec/piece.h: the first chunk, and how many.
    if (data.size() >= 16) {
      data.replace(8, 8, std::string{static_cast<char>(chunk), 0, 0, 0, 1, 0, 0, 0});
    }
    auto event = std::make_shared<v1::WatchUpdatesResponse>();
    event->mutable_piece()->set_round(round);
    event->mutable_piece()->set_data(std::move(data));
    update->pieces.push_back(std::move(event));
    update->ranges.emplace_back(chunk, chunk + 1);
  }
  record.set_pieces(static_cast<uint32_t>(update->pieces.size()));
  record.set_payload_bytes(bytes);
  return update;
}

inline StoreBatch TestCommit(uint64_t round, uint64_t bytes) {
  StoreBatch batch;
  batch.update = TestUpdate(round, bytes);
  batch.open.emplace();
  batch.open->set_round(round + 1);
  batch.open->add_members("a");
  batch.open->add_members("b");
  return batch;
}

// An aggregate, the round's own.
inline std::shared_ptr<const std::vector<float>> TestAggregate(uint64_t round, size_t elements) {
  std::vector<float> values(elements);
  for (size_t i = 0; i < elements; ++i) values[i] = static_cast<float>(round * 1000 + i);
  return std::make_shared<const std::vector<float>>(std::move(values));
}

// Commits so many rounds after the store's last one.
inline void CommitTestRounds(Store* store, uint64_t rounds, uint64_t bytes) {
  for (uint64_t i = 0; i < rounds; ++i) {
    const absl::Status status = store->Write(TestCommit(store->last_round() + 1, bytes));
    ASSERT_TRUE(status.ok()) << status;
  }
}

inline std::vector<uint64_t> RoundsAfter(const Store& store, uint64_t round,
                                         uint64_t bytes_max = uint64_t{1} << 30) {
  std::vector<uint64_t> rounds;
  const auto updates = store.ReadAfter(round, bytes_max);
  EXPECT_TRUE(updates.ok()) << updates.status();
  if (!updates.ok()) return rounds;
  for (const StoredUpdatePtr& update : *updates) rounds.push_back(update->record.round());
  return rounds;
}

inline void ExpectSameUpdate(const StoredUpdate& a, const StoredUpdate& b) {
  EXPECT_EQ(a.record.SerializeAsString(), b.record.SerializeAsString());
  EXPECT_EQ(a.ranges, b.ranges);
  ASSERT_EQ(a.pieces.size(), b.pieces.size());
  for (size_t i = 0; i < a.pieces.size(); ++i) {
    EXPECT_EQ(a.pieces[i]->SerializeAsString(), b.pieces[i]->SerializeAsString());
  }
}

// A piece of the state after that round; however it is cut, an element is the same.
inline std::string TestPiece(uint64_t round, const SectionRange& range) {
  std::string data(PieceBytes(range), '\0');
  for (uint64_t i = range.begin; i < range.end; ++i) {
    const uint64_t mixed = (round * 1000003 + range.section * 8191 + i) * 0x9e3779b97f4a7c15u;
    std::memcpy(&data[(i - range.begin) * sizeof(float)], &mixed, sizeof(float));
  }
  return data;
}

// So many pieces of section 0 in order, all of that length.
inline std::vector<SectionRange> TestRanges(uint64_t pieces, uint64_t elements) {
  std::vector<SectionRange> ranges;
  for (uint64_t i = 0; i < pieces; ++i) {
    ranges.push_back({0, i * elements, (i + 1) * elements});
  }
  return ranges;
}

inline StoreBatch TestPlan(uint64_t round) {
  StoreBatch batch;
  batch.plan.emplace();
  batch.plan->set_round(round);
  batch.plan->set_node("a");
  batch.plan->add_members("a");
  batch.plan->add_members("b");
  return batch;
}

inline StoreBatch TestSnapshot(uint64_t round, uint64_t payload_bytes) {
  StoreBatch batch;
  batch.snapshot.emplace();
  batch.snapshot->mutable_facts()->set_run("test");
  batch.snapshot->mutable_facts()->set_round(round);
  batch.snapshot->set_node("a");
  batch.snapshot->set_payload_bytes(payload_bytes);
  return batch;
}

inline void WriteTestPieces(Store* store, uint64_t round, const std::vector<SectionRange>& ranges) {
  for (const SectionRange& range : ranges) {
    const absl::Status status = store->WritePiece(round, range, TestPiece(round, range));
    ASSERT_TRUE(status.ok()) << status;
  }
}

// All of a snapshot, from its plan to the record that makes it count.
inline void WriteTestSnapshot(Store* store, uint64_t round,
                              const std::vector<SectionRange>& ranges) {
  ASSERT_TRUE(store->Write(TestPlan(round)).ok());
  WriteTestPieces(store, round, ranges);
  uint64_t bytes = 0;
  for (const SectionRange& range : ranges) bytes += PieceBytes(range);
  ASSERT_TRUE(store->Write(TestSnapshot(round, bytes)).ok());
}

// These pieces are there, as they were written, and no others.
inline void ExpectPieces(const Store& store, uint64_t round,
                         const std::vector<SectionRange>& ranges) {
  EXPECT_EQ(store.Pieces(round), ranges);
  for (const SectionRange& range : ranges) {
    const auto read = store.ReadPiece(round, range);
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(*read, TestPiece(round, range)) << "round " << round << " from " << range.begin;
  }
}

// Rounds of the snapshots that count.
inline std::vector<uint64_t> SnapshotsOf(const Store& store) {
  std::vector<uint64_t> rounds;
  for (const v1::StoredSnapshot& snapshot : store.State().snapshots) {
    rounds.push_back(snapshot.facts().round());
  }
  return rounds;
}

}  // namespace isthmus
