#include "worker/round_log.h"

#include "base/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spec/update_record.h"
#include "tests/worker/agent_fixture.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

class RoundLogTest : public ::testing::Test {
 protected:
  RoundLogTest() : spec_(SmallSpec({"a"}, 9)), grid_(std::make_shared<Grid>(SmallGrid(spec_))) {}

  CommittedUpdate Update(uint64_t round, const std::string& previous) {
    CommittedUpdate update;
    PieceWriter writer(grid_.get(), v1::PAYLOAD_CODEC_MERGED, 64);
    Components components;
    components.index = {0};
    components.value = {static_cast<float>(round)};
    for (uint64_t chunk = 0; chunk < grid_->chunks(); ++chunk) writer.Append(chunk, components);
    update.pieces = writer.Finish();
    v1::UpdateRecord& record = update.record;
    record.set_run("small");
    record.set_round(round);
    record.set_base_round(round - 1);
    record.set_step(round);
    record.set_codec(v1::PAYLOAD_CODEC_MERGED);
    record.set_pieces(static_cast<uint32_t>(update.pieces.size()));
    std::vector<const std::string*> pieces;
    uint64_t bytes = 0;
    for (const std::string& piece : update.pieces) {
      pieces.push_back(&piece);
      bytes += piece.size();
    }
    record.set_payload_bytes(bytes);
    record.set_payload_sha256(PayloadDigest(*grid_, pieces).value());
    record.set_previous_sha256(previous);
    record.set_sha256(UpdateRecordSha256(record));
    return update;
  }
  v1::RoundOpened Opened(uint64_t round) {
    v1::RoundOpened opened;
    opened.set_round(round);
    opened.set_base_round(round - 1);
    return opened;
  }
  // "s" start, "o5" opened, "u5" update with its pieces counted, "f9" finished.
  std::string Text(const std::vector<WatchEvent>& events) {
    std::string text;
    uint32_t pieces = 0, announced = 0;
    for (const WatchEvent& event : events) {
      if (event->has_piece()) {
        ++pieces;
        continue;
      }
      EXPECT_EQ(pieces, announced);
      pieces = 0;
      announced = event->pieces_following();
      if (event->has_opened()) text += "o" + std::to_string(event->opened().round());
      if (event->has_update()) text += "u" + std::to_string(event->update().round());
      if (event->has_finished()) text += "f" + std::to_string(event->finished().round());
    }
    EXPECT_EQ(pieces, announced);
    return text;
  }
  size_t Bytes(const CommittedUpdate& update) { return update.record.payload_bytes(); }
  ChunkRanges All() { return PartOf(*grid_, 0, 1); }

  v1::RunSpec spec_;
  std::shared_ptr<const Grid> grid_;
};

TEST_F(RoundLogTest, GivesARankWhatItLacksInOrder) {
  RoundLog log(4, 1 << 20);
  EXPECT_EQ(log.OpenedEvent(5), nullptr);
  const CommittedUpdate five = Update(5, Sha256Of("4")), six = Update(6, five.record.sha256());
  log.Opened(Opened(5));
  ASSERT_NE(log.OpenedEvent(5), nullptr);
  EXPECT_EQ(log.OpenedEvent(5)->opened().round(), 5U);
  log.Committed(grid_, five, true);
  log.Opened(Opened(6));
  log.Committed(grid_, six, false);
  log.Committed(grid_, six, false);
  log.Opened(Opened(6));
  log.Finished(6);
  EXPECT_EQ(log.committed_round(), 6U);
  EXPECT_EQ(log.RecordSha256(5), five.record.sha256());
  EXPECT_EQ(Text(log.After(4, All()).value()), "o5u5o6u6f6");
  EXPECT_EQ(Text(log.After(5, All()).value()), "o6u6f6");
  EXPECT_EQ(Text(log.After(6, All()).value()), "f6");
  EXPECT_EQ(Text(log.After(7, All()).value()), "f6") << "a rank ahead of an agent that came back";
  EXPECT_TRUE(log.UpdateFor(5, All())[0]->own_included());
  EXPECT_FALSE(log.UpdateFor(6, All())[0]->own_included());
  EXPECT_EQ(log.After(3, All()).status().code(), absl::StatusCode::kOutOfRange);
  log.Forget(5);
  EXPECT_EQ(log.After(4, All()).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Text(log.After(5, All()).value()), "o6u6f6");
}

TEST_F(RoundLogTest, ARankGetsOnlyPiecesThatOverlapItsRanges) {
  RoundLog log(0, 1 << 20);
  const CommittedUpdate update = Update(1, "");
  log.Opened(Opened(1));
  log.Committed(grid_, update, true);
  EXPECT_EQ(log.UpdateFor(1, All()).size(), 1 + update.pieces.size());
  EXPECT_EQ(log.UpdateFor(1, ChunkRanges()).size(), 1U);
  ChunkRanges first;
  first.Add(0, 1);
  EXPECT_EQ(log.UpdateFor(1, first).size(), 2U);
  EXPECT_EQ(log.UpdateFor(1, first)[0]->pieces_following(), 1U);
  // Shared, not copied.
  EXPECT_EQ(log.UpdateFor(1, first)[1], log.UpdateFor(1, All())[1]);
}

TEST_F(RoundLogTest, KeepsWithinItsBytesButNeverLessThanTheNewest) {
  const CommittedUpdate one = Update(1, ""), two = Update(2, one.record.sha256());
  RoundLog log(0, Bytes(one) + Bytes(two) - 1);
  log.Committed(grid_, one, true);
  log.Committed(grid_, two, true);
  EXPECT_EQ(Text(log.After(1, All()).value()), "u2");
  EXPECT_EQ(log.After(0, All()).status().code(), absl::StatusCode::kOutOfRange);
  RoundLog small(0, 1);
  small.Committed(grid_, one, true);
  EXPECT_EQ(Text(small.After(0, All()).value()), "u1");
}

TEST_F(RoundLogTest, ChecksAnUpdateOnceForAllRanks) {
  const CommittedUpdate good = Update(5, Sha256Of("4"));
  EXPECT_TRUE(CheckUpdate(*grid_, good, Sha256Of("4")).ok());
  EXPECT_EQ(CheckUpdate(*grid_, good, Sha256Of("3")).code(), absl::StatusCode::kDataLoss);
  CommittedUpdate bad = good;
  bad.pieces.pop_back();
  EXPECT_THAT(std::string(CheckUpdate(*grid_, bad, Sha256Of("4")).message()),
              HasSubstr("the update of round 5: it says"));
  bad = good;
  std::swap(bad.pieces[0], bad.pieces[1]);
  EXPECT_TRUE(CheckUpdate(*grid_, bad, Sha256Of("4")).ok()) << "pieces come in any order";
  bad.pieces[0] = bad.pieces[1];
  EXPECT_EQ(CheckUpdate(*grid_, bad, Sha256Of("4")).code(), absl::StatusCode::kDataLoss);
  bad = good;
  bad.pieces = Update(6, "").pieces;
  EXPECT_THAT(std::string(CheckUpdate(*grid_, bad, Sha256Of("4")).message()),
              HasSubstr("it says digest"));
}

}  // namespace
}  // namespace isthmus
