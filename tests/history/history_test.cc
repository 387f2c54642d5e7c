// The judge is judged: a good history passes, and each way of spoiling it is seen for what it is.
#include "tests/history/history.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "spec/piece.h"
#include "spec/update_record.h"
#include "tests/history/checker.h"
#include "tests/history/json_lines.h"
#include "tests/history/plain_fold.h"
#include "tests/server/payloads.h"

namespace isthmus {
namespace {

PiecesPtr Shared(std::vector<std::string> pieces) {
  return std::make_shared<const std::vector<std::string>>(std::move(pieces));
}

// Two nodes and two rounds; b is left out of the second one, and dies with its third contribution.
class HistoryTest : public testing::Test {
 protected:
  HistoryTest() {
    Restored("a", 1, 0);
    Restored("b", 1, 0);
    Computed("a", 1, 1);
    Computed("b", 1, 2);
    Receipt("a", 1);
    Commit(1, {"a", "b"});
    Deliver("a", 1, Outcome::kIncluded);
    Deliver("b", 1, Outcome::kIncluded);
    Computed("a", 2, 3);
    Computed("b", 2, 4);
    Commit(2, {"a"});
    Deliver("a", 2, Outcome::kIncluded);
    Deliver("b", 2, Outcome::kLeftOut);
    Computed("b", 3, 5);
    Settle("b", 3, Outcome::kDropped);
  }

  std::string Digest(const std::string& node, uint64_t round) {
    return DigestOf(*grid_, *contributions_.at({node, round}));
  }
  Event* Push(EventKind kind, const std::string& node, uint64_t round) {
    Event event;
    event.kind = kind;
    event.node = node;
    event.life = node.empty() ? 0 : 1;
    event.round = round;
    history_.push_back(event);
    return &history_.back();
  }
  void Restored(const std::string& node, uint64_t life, uint64_t round) {
    Event* event = Push(EventKind::kRestored, node, round);
    event->life = life;
    event->state = StateAfter(round);
    if (round > 0) event->sha256 = records_.at(round)->sha256();
  }
  void Computed(const std::string& node, uint64_t round, uint32_t seed) {
    const PiecesPtr pieces = Shared(RandomContribution(*grid_, seed));
    contributions_[{node, round}] = pieces;
    Event* event = Push(EventKind::kComputed, node, round);
    event->pieces = pieces;
    event->digest = DigestOf(*grid_, *pieces);
  }
  void Receipt(const std::string& node, uint64_t round) {
    Push(EventKind::kReceipt, node, round)->digest = Digest(node, round);
  }
  void Settle(const std::string& node, uint64_t round, Outcome outcome) {
    Event* event = Push(EventKind::kSettled, node, round);
    event->outcome = outcome;
    event->digest = Digest(node, round);
  }
  void Commit(uint64_t round, const std::vector<std::string>& nodes) {
    auto record = std::make_shared<v1::UpdateRecord>();
    record->set_run("test");
    record->set_round(round);
    record->set_base_round(round - 1);
    record->set_step(round);
    if (round > 1) record->set_previous_sha256(records_.at(round - 1)->sha256());
    std::vector<PiecesPtr> folded;
    for (const std::string& node : nodes) {
      v1::IncludedContribution* one = record->add_included();
      one->set_node(node);
      one->set_digest(Digest(node, round));
      folded.push_back(contributions_.at({node, round}));
    }
    record->set_sha256(UpdateRecordSha256(*record));
    records_[round] = record;
    updates_[round] = Shared(Encoded(*PlainFold(*grid_, folded)));
    Event* event = Push(EventKind::kDurable, "", round);
    event->record = record;
    event->pieces = updates_[round];
    Push(EventKind::kPublished, "", round)->sha256 = record->sha256();
  }
  void Deliver(const std::string& node, uint64_t round, Outcome outcome) {
    Event* event = Push(EventKind::kReceived, node, round);
    event->record = records_.at(round);
    event->pieces = updates_.at(round);
    Settle(node, round, outcome);
    event = Push(EventKind::kApplied, node, round);
    event->sha256 = records_.at(round)->sha256();
    event->state = StateAfter(round);
  }
  static std::string StateAfter(uint64_t round) { return Sha256Of(std::string(round + 1, 's')); }

  // The pieces of an update with these values; zeros are not sent.
  std::vector<std::string> Encoded(const DenseChunks& chunks) {
    PieceWriter writer(grid_.get(), v1::PAYLOAD_CODEC_MERGED, 500);
    for (uint64_t chunk = 0; chunk < chunks.size(); ++chunk) {
      Components components;
      for (uint32_t at = 0; at < chunks[chunk].size(); ++at) {
        if (chunks[chunk][at] == 0.0f) continue;
        components.index.push_back(at);
        components.value.push_back(chunks[chunk][at]);
      }
      writer.Append(chunk, components);
    }
    return writer.Finish();
  }

  // The first event of this kind, node and round.
  Event* Find(EventKind kind, const std::string& node, uint64_t round) {
    return &history_[At(kind, node, round)];
  }
  size_t At(EventKind kind, const std::string& node, uint64_t round) {
    for (size_t i = 0; i < history_.size(); ++i) {
      const Event& event = history_[i];
      if (event.kind == kind && event.node == node && event.round == round) return i;
    }
    ADD_FAILURE() << "no such event";
    return 0;
  }
  void Erase(EventKind kind, const std::string& node, uint64_t round) {
    history_.erase(history_.begin() + static_cast<std::ptrdiff_t>(At(kind, node, round)));
  }
  // Moves an event to the end.
  void Delay(EventKind kind, const std::string& node, uint64_t round) {
    const Event event = *Find(kind, node, round);
    Erase(kind, node, round);
    history_.push_back(event);
  }
  // The record of a round, which may be changed; its hash is made right by Sealed.
  std::shared_ptr<v1::UpdateRecord> Reworked(uint64_t round,
                                             const std::function<void(v1::UpdateRecord*)>& change) {
    auto record = std::make_shared<v1::UpdateRecord>(*records_.at(round));
    change(record.get());
    record->set_sha256(UpdateRecordSha256(*record));
    for (Event& event : history_) {
      if (event.record != nullptr && event.round == round) event.record = record;
      if (event.record == nullptr && event.round == round && !event.sha256.empty()) {
        event.sha256 = record->sha256();
      }
    }
    return record;
  }

  // Expects that the history is refused, first of all for the sake of this invariant.
  void ExpectRefused(const std::string& invariant, const std::string& words) {
    const std::vector<Violation> found = CheckHistory(history_, grid_, /*complete=*/true);
    ASSERT_FALSE(found.empty()) << "a bad history has passed";
    EXPECT_EQ(found[0].invariant, invariant) << found[0].sentence;
    EXPECT_NE(found[0].sentence.find(words), std::string::npos) << found[0].sentence;
  }

  std::shared_ptr<const Grid> grid_ = TestGrid();
  History history_;
  std::map<std::pair<std::string, uint64_t>, PiecesPtr> contributions_;
  std::map<uint64_t, std::shared_ptr<const v1::UpdateRecord>> records_;
  std::map<uint64_t, PiecesPtr> updates_;
};

TEST_F(HistoryTest, AGoodHistoryPasses) {
  HistoryChecker checker(grid_);
  for (const Event& event : history_) checker.Take(event);
  checker.Finish();
  for (const Violation& one : checker.violations()) ADD_FAILURE() << one.sentence;
  EXPECT_EQ(checker.ledger().included, 3u);
  EXPECT_EQ(checker.ledger().left_out, 1u);
  EXPECT_EQ(checker.ledger().dropped, 1u);
  EXPECT_EQ(checker.last_durable(), 2u);
}

TEST_F(HistoryTest, SeenBeforeDurable) {
  const Event received = *Find(EventKind::kReceived, "a", 2);
  history_.insert(history_.begin() + static_cast<std::ptrdiff_t>(At(EventKind::kDurable, "", 2)),
                  received);
  ExpectRefused("I4", "before it is durable");
}

TEST_F(HistoryTest, PublishedBeforeDurable) {
  const Event durable = *Find(EventKind::kDurable, "", 2);
  const size_t at = At(EventKind::kDurable, "", 2);
  std::swap(history_[at], history_[at + 1]);
  ExpectRefused("I4", "leaves before it is durable");
}

TEST_F(HistoryTest, SettledBeforeDurable) {
  const Event settled = *Find(EventKind::kSettled, "a", 2);
  Erase(EventKind::kSettled, "a", 2);
  history_.insert(history_.begin() + static_cast<std::ptrdiff_t>(At(EventKind::kDurable, "", 2)),
                  settled);
  ExpectRefused("I4", "settled before its round is durable");
}

TEST_F(HistoryTest, SettledAsIncludedThoughLeftOut) {
  Find(EventKind::kSettled, "b", 2)->outcome = Outcome::kIncluded;
  ExpectRefused("I1", "its update lacks it");
}

TEST_F(HistoryTest, SettledAsLeftOutThoughIncluded) {
  Find(EventKind::kSettled, "a", 2)->outcome = Outcome::kLeftOut;
  ExpectRefused("I1", "its update has it");
}

TEST_F(HistoryTest, NeverSettled) {
  Erase(EventKind::kSettled, "b", 3);
  ExpectRefused("I1", "neither settled nor counted as dropped");
}

TEST_F(HistoryTest, SettledTwice) {
  Settle("a", 2, Outcome::kIncluded);
  ExpectRefused("I1", "is not open");
}

TEST_F(HistoryTest, AppliedWithoutSettling) {
  Delay(EventKind::kSettled, "b", 2);
  ExpectRefused("I1", "not settled when its update is applied");
}

TEST_F(HistoryTest, DiesWithoutCounting) {
  Erase(EventKind::kSettled, "b", 3);
  Restored("b", 2, 2);
  ExpectRefused("I1", "neither settled nor counted as dropped");
}

TEST_F(HistoryTest, IncludesWhatNobodyComputed) {
  Reworked(1, [](v1::UpdateRecord* record) {
    record->mutable_included(1)->set_digest(Sha256Of("something else"));
  });
  ExpectRefused("I1", "never computed");
}

TEST_F(HistoryTest, IncludesTheContributionOfAnotherRound) {
  Reworked(2, [this](v1::UpdateRecord* record) {
    record->mutable_included(0)->set_digest(Digest("a", 1));
  });
  ExpectRefused("I1", "never computed");
}

TEST_F(HistoryTest, ListsANodeTwice) {
  Reworked(1, [](v1::UpdateRecord* record) {
    const v1::IncludedContribution second = record->included(1);
    *record->add_included() = second;
  });
  ExpectRefused("I1", "each once");
}

TEST_F(HistoryTest, FoldsOneTwice) {
  const PiecesPtr a = contributions_.at({"a", 1}), b = contributions_.at({"b", 1});
  const PiecesPtr twice = Shared(Encoded(*PlainFold(*grid_, {a, a, b})));
  for (Event& event : history_) {
    if (event.record != nullptr && event.round == 1) event.pieces = twice;
  }
  ExpectRefused("I2", "not the fold");
}

TEST_F(HistoryTest, FoldsInAnotherOrder) {
  // Three values whose sum depends on the order; here it is enough that the list names two nodes
  // and the bytes are of one.
  const PiecesPtr one = Shared(Encoded(*PlainFold(*grid_, {contributions_.at({"b", 1})})));
  for (Event& event : history_) {
    if (event.record != nullptr && event.round == 1) event.pieces = one;
  }
  ExpectRefused("I2", "not the fold");
}

TEST_F(HistoryTest, HashOfTheRecordIsWrong) {
  auto record = std::make_shared<v1::UpdateRecord>(*records_.at(1));
  record->set_lr_bits(7);
  Find(EventKind::kDurable, "", 1)->record = record;
  ExpectRefused("I2", "hash of record 1");
}

TEST_F(HistoryTest, ChainIsBroken) {
  Reworked(2, [](v1::UpdateRecord* record) { record->set_previous_sha256(Sha256Of("else")); });
  ExpectRefused("I2", "does not build on");
}

TEST_F(HistoryTest, RoundsHaveOtherSteps) {
  HistoryChecker checker(grid_, 0, 2);
  for (const Event& event : history_) checker.Take(event);
  ASSERT_FALSE(checker.violations().empty());
  EXPECT_EQ(checker.violations()[0].sentence, "record 1 has base round 0 and step 1");
}

TEST_F(HistoryTest, ARoundIsIssuedAgain) {
  history_.push_back(*Find(EventKind::kDurable, "", 2));
  ExpectRefused("I3", "round 2 is committed after round 2");
}

TEST_F(HistoryTest, ARoundIsSkipped) {
  Erase(EventKind::kDurable, "", 1);
  Erase(EventKind::kPublished, "", 1);
  ExpectRefused("I4", "before it is durable");
}

TEST_F(HistoryTest, AnotherRecordIsSeen) {
  auto record = std::make_shared<v1::UpdateRecord>(*records_.at(2));
  record->set_lr_bits(7);
  record->set_sha256(UpdateRecordSha256(*record));
  Find(EventKind::kReceived, "b", 2)->record = record;
  ExpectRefused("I3", "another update 2");
}

TEST_F(HistoryTest, OtherBytesAreSeen) {
  Find(EventKind::kReceived, "b", 2)->pieces = updates_.at(1);
  ExpectRefused("I3", "other bytes of update 2");
}

TEST_F(HistoryTest, AnUpdateIsReceivedTwice) {
  history_.push_back(*Find(EventKind::kReceived, "a", 2));
  ExpectRefused("I3", "receives update 2 after update 2");
}

TEST_F(HistoryTest, AnUpdateIsAppliedTwice) {
  history_.push_back(*Find(EventKind::kApplied, "a", 2));
  ExpectRefused("I3", "applies update 2 after update 2");
}

TEST_F(HistoryTest, AnUpdateIsNotApplied) {
  Erase(EventKind::kApplied, "a", 1);
  ExpectRefused("I3", "applies update 2 after update 0");
}

TEST_F(HistoryTest, StatesDiffer) {
  Find(EventKind::kApplied, "b", 2)->state = Sha256Of("something else");
  ExpectRefused("I3", "the state of b");
}

TEST_F(HistoryTest, StartsFromAnotherHistory) {
  Restored("b", 2, 2);
  history_.back().sha256 = Sha256Of("else");
  ExpectRefused("I3", "starts from another round 2");
}

TEST_F(HistoryTest, StartsFromARoundThatIsNotDurable) {
  Restored("b", 2, 2);
  history_.back().round = 3;
  ExpectRefused("I4", "not durable");
}

TEST_F(HistoryTest, AReceiptForWhatWasNeverComputed) {
  Find(EventKind::kReceipt, "a", 1)->digest = Sha256Of("else");
  ExpectRefused("I1", "never computed");
}

TEST_F(HistoryTest, AnEarlierLifeActs) {
  Restored("b", 2, 2);
  Computed("b", 3, 6);
  ExpectRefused("I1", "acts in life 1");
}

// A node that computes again, bit for bit, what was included of its earlier life has contributed
// once.
TEST_F(HistoryTest, ReplayIsOneContribution) {
  Restored("a", 2, 1);
  for (const EventKind kind :
       {EventKind::kComputed, EventKind::kReceived, EventKind::kSettled, EventKind::kApplied}) {
    history_.push_back(*Find(kind, "a", 2));
    history_.back().life = 2;
  }
  HistoryChecker checker(grid_);
  for (const Event& event : history_) checker.Take(event);
  checker.Finish();
  for (const Violation& one : checker.violations()) ADD_FAILURE() << one.sentence;
  EXPECT_EQ(checker.ledger().included, 3u);
}

// The form on disk keeps everything, and says what it cannot read.
TEST_F(HistoryTest, LinesAreReadBack) {
  HistoryChecker checker(grid_);
  for (const Event& event : history_) {
    const auto read = ReadLine(WriteLine(event));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(Describe(*read), Describe(event));
    checker.Take(*read);
  }
  checker.Finish();
  EXPECT_TRUE(checker.violations().empty());
  EXPECT_EQ(checker.ledger().included, 3u);
}

TEST_F(HistoryTest, RecordsInParts) {
  const auto read =
      ReadLine(R"({"event":"durable","round":1,"sha256":"e3","previous_sha256":"","void":false,)"
               R"("included":[{"node":"a","digest":"5c"}]})");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->is_whole);
  EXPECT_EQ(read->record->included(0).node(), "a");
  EXPECT_EQ(read->record->included(0).digest(), "\x5c");
}

TEST(JsonLinesTest, SaysWhatItCannotRead) {
  for (const char* line :
       {"", "{", "[]", R"({"event":"eaten"})", R"({"event":"settled","outcome":"lost"})",
        R"({"event":"durable","record":"00"})", R"({"event":"computed","pieces":[1]})"}) {
    EXPECT_EQ(ReadLine(line).status().code(), absl::StatusCode::kInvalidArgument) << line;
  }
}

}  // namespace
}  // namespace isthmus
