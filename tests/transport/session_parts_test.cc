// Outbox and UpdateReader: what to send next, and what has arrived, without threads or connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spec/update_record.h"
#include "transport/outbox.h"
#include "transport/update_reader.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const Submission> Contribution(uint64_t round, uint64_t attempt = 1) {
  Submission submission;
  submission.round = round;
  submission.attempt = attempt;
  v1::ChunkRange range;
  range.set_begin(10);
  range.set_end(20);
  submission.ranges = {range};
  submission.pieces = {"piece"};
  return std::make_shared<const Submission>(submission);
}

v1::WatchStart Holding(uint64_t round, uint64_t attempt, uint64_t begin, uint64_t end,
                       bool complete) {
  v1::WatchStart start;
  v1::HeldContribution& held = *start.add_held();
  held.set_round(round);
  held.set_attempt(attempt);
  held.set_complete(complete);
  v1::ChunkRange& range = *held.add_ranges();
  range.set_begin(begin);
  range.set_end(end);
  return start;
}

TEST(OutboxTest, LowestRoundFirstAndEachOnce) {
  Outbox outbox;
  outbox.Put(Contribution(4), nullptr);
  outbox.Put(Contribution(3), nullptr);
  const auto first = outbox.Next();
  EXPECT_EQ(first->submission->round, 3u);
  EXPECT_EQ(outbox.Next()->submission->round, 4u);
  EXPECT_FALSE(outbox.Next().has_value());
  outbox.Held(*first);
  EXPECT_FALSE(outbox.Next().has_value());
  EXPECT_EQ(outbox.resends(), 0u);
}

TEST(OutboxTest, AgainIsCountedAndSettledIsGone) {
  Outbox outbox;
  outbox.Put(Contribution(3), nullptr);
  outbox.Again(*outbox.Next());
  const auto again = outbox.Next();
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(outbox.resends(), 1u);
  outbox.Settle(3);
  outbox.Again(*again);  // the outcome of a call that outlived its round
  EXPECT_FALSE(outbox.Next().has_value());
}

TEST(OutboxTest, AReplacementIsSentWhateverBecomesOfTheFirst) {
  Outbox outbox;
  outbox.Put(Contribution(3, 1), nullptr);
  const auto first = outbox.Next();
  outbox.Put(Contribution(3, 2), nullptr);
  outbox.Held(*first);
  EXPECT_EQ(outbox.Next()->submission->attempt, 2u);
}

TEST(OutboxTest, ANewWatchDecidesWhatIsSentAgain) {
  const struct {
    v1::WatchStart start;
    bool is_sent_again;
  } cases[] = {
      {v1::WatchStart(), true},
      {Holding(3, 1, 0, 100, true), false},
      {Holding(3, 1, 5, 20, true), false},  // a rank's part
      {Holding(3, 1, 5, 20, false), true},  // all of its pieces, but the end was lost
      {Holding(3, 1, 11, 20, false), true},
      {Holding(3, 2, 0, 100, true), true},  // of another attempt
      {Holding(2, 1, 0, 100, true), true},
  };
  for (const auto& one : cases) {
    Outbox outbox;
    outbox.Put(Contribution(3), nullptr);
    outbox.Held(*outbox.Next());
    outbox.WatchStarted(one.start, 1);
    EXPECT_EQ(outbox.Next().has_value(), one.is_sent_again) << one.start.ShortDebugString();
  }
}

// Chunks 10 to 20 in three pieces.
std::shared_ptr<const Submission> ThreePieces() {
  auto submission = std::make_shared<Submission>(*Contribution(3));
  submission->pieces = {"a", "b", "c"};
  const uint64_t cuts[] = {10, 13, 16, 20};
  for (int i = 0; i < 3; ++i) {
    v1::ChunkRange& range = submission->piece_ranges.emplace_back();
    range.set_begin(cuts[i]);
    range.set_end(cuts[i + 1]);
  }
  return submission;
}

std::string Sent(const Outbox::Part& part) {
  std::string sent;
  for (const std::string* piece : part.pieces) sent += *piece;
  for (const v1::ChunkRange& range : part.ranges) {
    sent += " " + std::to_string(range.begin()) + "-" + std::to_string(range.end());
  }
  return sent;
}

TEST(OutboxTest, WhatTheServerHoldsOfAContributionIsNotSentAgain) {
  const struct {
    v1::WatchStart start;
    const char* sent;
  } cases[] = {
      {v1::WatchStart(), "abc 10-20"},
      {Holding(3, 1, 10, 13, false), "bc 13-20"},
      {Holding(3, 1, 13, 16, false), "ac 10-13 16-20"},
      {Holding(3, 1, 12, 20, false), "a 10-13"},
      {Holding(3, 1, 10, 20, false), "c 16-20"},    // all of it, but the end was lost
      {Holding(3, 2, 10, 13, false), "abc 10-20"},  // of another attempt
      {Holding(2, 1, 10, 13, false), "abc 10-20"},
  };
  for (const auto& one : cases) {
    Outbox outbox;
    outbox.WatchStarted(one.start, 1);
    outbox.Put(ThreePieces(), nullptr);
    const auto ticket = outbox.Next();
    EXPECT_EQ(Sent(Outbox::NotHeld(*ticket)), one.sent) << one.start.ShortDebugString();
    outbox.Again(*ticket);  // whatever became of it
    EXPECT_EQ(Sent(Outbox::NotHeld(*outbox.Next())), "abc 10-20");
  }
}

TEST(OutboxTest, PiecesOfUnknownChunksAreAllSent) {
  Outbox outbox;
  outbox.WatchStarted(Holding(3, 1, 10, 13, false), 1);
  outbox.Put(Contribution(3), nullptr);
  EXPECT_EQ(Sent(Outbox::NotHeld(*outbox.Next())), "piece 10-20");
}

TEST(OutboxTest, AReceiptFromBeforeANewWatchProvesNothing) {
  Outbox outbox;
  outbox.Put(Contribution(3), nullptr);
  const auto ticket = outbox.Next();
  outbox.WatchStarted(v1::WatchStart(), 2);
  outbox.Held(*ticket);
  EXPECT_TRUE(outbox.Next().has_value());
}

TEST(OutboxTest, ARefusalFromBeforeANewWatchProvesNothing) {
  Outbox outbox;
  bool told = false;
  outbox.Put(Contribution(3), [&](const absl::Status&) { told = true; });
  const auto ticket = outbox.Next();
  outbox.WatchStarted(v1::WatchStart(), 2);
  EXPECT_EQ(outbox.Refuse(*ticket, 1), nullptr);
  EXPECT_TRUE(outbox.Next().has_value());
  EXPECT_FALSE(told);
}

TEST(OutboxTest, WhatIsCommittedIsNeitherSentNorRefused) {
  Outbox outbox;
  bool told = false;
  const auto refused = [&](const absl::Status&) { told = true; };
  outbox.Put(Contribution(3), refused);
  const auto under_way = outbox.Next();
  outbox.Put(Contribution(4), refused);
  v1::WatchStart start;
  start.set_committed_round(4);
  outbox.WatchStarted(start, 1);
  EXPECT_EQ(outbox.Refuse(*under_way, 1), nullptr);
  outbox.Put(Contribution(4, 2), refused);
  EXPECT_FALSE(outbox.Next().has_value());
  EXPECT_FALSE(told);
}

// A coordinator that was started again may see a contribution before it opens the round again.
TEST(OutboxTest, WhatWasRefusedBeforeTheRoundOpenedIsSentAgain) {
  Outbox outbox;
  int told = 0;
  outbox.Put(Contribution(3), [&](const absl::Status&) { ++told; });
  const auto first = outbox.Next();
  outbox.Refuse(*first, 7)(absl::OkStatus());
  EXPECT_FALSE(outbox.Next().has_value());
  outbox.Opened(2);
  EXPECT_FALSE(outbox.Next().has_value());
  outbox.Opened(3);
  const auto second = outbox.Next();
  ASSERT_TRUE(second.has_value());
  // The word that it is open may come before the refusal.
  outbox.Opened(3);
  EXPECT_EQ(outbox.Refuse(*second, 7), nullptr);
  EXPECT_TRUE(outbox.Next().has_value());
  EXPECT_EQ(told, 1);
}

TEST(OutboxTest, ARefusalIsToldOnceAndForgottenUnderANewIncarnation) {
  Outbox outbox;
  int told = 0;
  outbox.Put(Contribution(3), [&](const absl::Status&) { ++told; });
  outbox.Refuse(*outbox.Next(), 7)(absl::OkStatus());
  EXPECT_EQ(told, 1);
  outbox.WatchStarted(v1::WatchStart(), 7);
  EXPECT_FALSE(outbox.Next().has_value());
  outbox.WatchStarted(v1::WatchStart(), 8);
  const auto again = outbox.Next();
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(outbox.Refuse(*again, 8), nullptr);
  outbox.WatchStarted(v1::WatchStart(), 8);
  EXPECT_FALSE(outbox.Next().has_value());
}

// A node that was no member is taken in when the quorum cannot be reached without it.
TEST(OutboxTest, ARoundThatOpensAgainWantsWhatItHadRefused) {
  Outbox outbox;
  outbox.Put(Contribution(3), nullptr);
  outbox.Refuse(*outbox.Next(), 7);
  outbox.Opened(2);
  EXPECT_FALSE(outbox.Next().has_value());
  outbox.Opened(3);
  const auto again = outbox.Next();
  ASSERT_TRUE(again.has_value());
  outbox.Opened(3);  // it is under way
  EXPECT_FALSE(outbox.Next().has_value());
}

// A chain of records, each with two pieces of three bytes.
class Chain {
 public:
  explicit Chain(uint64_t rounds, float salt = 0) {
    for (uint64_t round = 1; round <= rounds; ++round) {
      v1::UpdateRecord record;
      record.set_round(round);
      record.set_spec_revision(static_cast<uint64_t>(salt));
      record.set_pieces(2);
      record.set_payload_bytes(6);
      if (round > 1) record.set_previous_sha256(records_.back().sha256());
      record.set_sha256(UpdateRecordSha256(record));
      records_.push_back(record);
    }
  }
  const v1::UpdateRecord& record(uint64_t round) const { return records_[round - 1]; }
  RoundHash hash(uint64_t round) const {
    return round == 0 ? RoundHash() : RoundHash{round, record(round).sha256()};
  }

 private:
  std::vector<v1::UpdateRecord> records_;
};

class UpdateReaderTest : public ::testing::Test {
 protected:
  absl::StatusOr<UpdateReader::News> Start(uint64_t committed = 99) {
    v1::WatchUpdatesResponse event;
    event.mutable_start()->set_committed_round(committed);
    return reader_.Take(&event);
  }
  absl::StatusOr<UpdateReader::News> Open(uint64_t round) {
    v1::WatchUpdatesResponse event;
    event.mutable_opened()->set_round(round);
    return reader_.Take(&event);
  }
  absl::StatusOr<UpdateReader::News> Record(const v1::UpdateRecord& record, uint32_t following) {
    v1::WatchUpdatesResponse event;
    *event.mutable_update() = record;
    event.set_pieces_following(following);
    event.set_own_included(true);
    return reader_.Take(&event);
  }
  absl::StatusOr<UpdateReader::News> Piece(uint64_t round, const std::string& data = "abc") {
    v1::WatchUpdatesResponse event;
    event.mutable_piece()->set_round(round);
    event.mutable_piece()->set_data(data);
    return reader_.Take(&event);
  }
  // A whole update; the news of its last piece.
  absl::StatusOr<UpdateReader::News> Update(uint64_t round) {
    EXPECT_TRUE(Record(chain_.record(round), 2).ok());
    EXPECT_TRUE(Piece(round).ok());
    return Piece(round);
  }

  const Chain chain_{5};
  UpdateReader reader_{RoundHash()};
};

TEST_F(UpdateReaderTest, PutsUpdatesTogether) {
  reader_.StartWatch(RoundHash(), true);
  EXPECT_TRUE(Start()->start.has_value());
  EXPECT_EQ(Open(1)->opened->round(), 1u);
  EXPECT_EQ(Record(chain_.record(1), 2)->update, nullptr);
  EXPECT_EQ(Piece(1)->update, nullptr);
  const auto update = Piece(1, "def")->update;
  ASSERT_NE(update, nullptr);
  EXPECT_EQ(update->record.round(), 1u);
  EXPECT_TRUE(update->own_included);
  EXPECT_EQ(update->pieces, (std::vector<std::string>{"abc", "def"}));
  EXPECT_EQ(reader_.bytes(), 6u);
}

TEST_F(UpdateReaderTest, ARankMayGetSomePiecesOrNone) {
  reader_.StartWatch(RoundHash(), false);
  ASSERT_TRUE(Start(0).ok());
  const auto none = Record(chain_.record(1), 0);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->update->pieces.empty());
  ASSERT_TRUE(Record(chain_.record(2), 1).ok());
  EXPECT_EQ(Piece(2)->update->pieces.size(), 1u);
}

TEST_F(UpdateReaderTest, ANewWatchRepeatsAndIsToldNothingTwice) {
  reader_.StartWatch(RoundHash(), true);
  ASSERT_TRUE(Start().ok());
  ASSERT_NE(Open(1)->opened, std::nullopt);
  ASSERT_NE(Update(1)->update, nullptr);
  ASSERT_NE(Open(2)->opened, std::nullopt);
  ASSERT_TRUE(Record(chain_.record(2), 2).ok());
  ASSERT_TRUE(Piece(2).ok());  // ... and the connection is lost

  reader_.StartWatch(RoundHash(), true);
  ASSERT_TRUE(Start().ok());
  EXPECT_EQ(Open(1)->opened, std::nullopt);
  EXPECT_EQ(Update(1)->update, nullptr);
  EXPECT_EQ(Open(2)->opened, std::nullopt);
  EXPECT_EQ(Update(2)->update->record.round(), 2u);
  EXPECT_NE(Open(3)->opened, std::nullopt);
}

TEST_F(UpdateReaderTest, StartsInTheMiddleOfARun) {
  reader_ = UpdateReader(chain_.hash(3));
  reader_.StartWatch(chain_.hash(3), true);
  ASSERT_TRUE(Start().ok());
  EXPECT_EQ(Update(4)->update->record.round(), 4u);
}

TEST_F(UpdateReaderTest, GapsAndForksAreDataLoss) {
  reader_.StartWatch(RoundHash(), true);
  ASSERT_TRUE(Start().ok());
  EXPECT_EQ(Record(chain_.record(2), 2).status().code(), absl::StatusCode::kDataLoss);
  ASSERT_NE(Update(1)->update, nullptr);
  ASSERT_NE(Update(2)->update, nullptr);
  EXPECT_EQ(Record(Chain(3, 1).record(3), 2).status().code(), absl::StatusCode::kDataLoss);

  reader_.StartWatch(RoundHash(), true);
  ASSERT_TRUE(Start().ok());
  const Chain other(2, 1);
  ASSERT_TRUE(Record(other.record(1), 2).ok());
  ASSERT_TRUE(Piece(1).ok());
  ASSERT_TRUE(Piece(1).ok());
  const absl::Status forked = Record(other.record(2), 2).status();
  EXPECT_EQ(forked.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(forked.message()), HasSubstr("another update 2"));

  reader_.StartWatch(RoundHash(), true);
  EXPECT_EQ(Start(1).status().code(), absl::StatusCode::kDataLoss);  // it had committed 2
}

TEST_F(UpdateReaderTest, WhatTheProtocolDoesNotAllowIsInternal) {
  const auto expect_broken = [&](const absl::Status& status, const std::string& text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    reader_.StartWatch(RoundHash(), true);
    ASSERT_TRUE(Start().ok());
  };
  reader_.StartWatch(RoundHash(), true);
  expect_broken(Open(1).status(), "no WatchStart");
  expect_broken(Start().status(), "second WatchStart");
  expect_broken(Piece(1).status(), "without its update");
  expect_broken(Record(chain_.record(1), 1).status(), "announced");
  expect_broken(Record(chain_.record(1), 3).status(), "announced");
  ASSERT_TRUE(Record(chain_.record(1), 2).ok());
  expect_broken(Open(2).status(), "lacks 2 pieces");
  ASSERT_TRUE(Record(chain_.record(1), 2).ok());
  expect_broken(Piece(2).status(), "amid update 1");
  ASSERT_TRUE(Record(chain_.record(1), 2).ok());
  expect_broken(Piece(1, "abcdefg").status(), "larger than");
  ASSERT_TRUE(Record(chain_.record(1), 2).ok());
  ASSERT_TRUE(Piece(1).ok());
  expect_broken(Piece(1, "ab").status(), "all pieces of update 1 have 5 bytes");
}

TEST_F(UpdateReaderTest, TheRunFinishesWithItsLastUpdate) {
  reader_.StartWatch(RoundHash(), true);
  ASSERT_TRUE(Start().ok());
  ASSERT_NE(Update(1)->update, nullptr);
  v1::WatchUpdatesResponse event;
  event.mutable_finished()->set_round(1);
  EXPECT_EQ(reader_.Take(&event)->finished, 1u);
  event.mutable_finished()->set_round(2);
  EXPECT_EQ(reader_.Take(&event).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace isthmus
