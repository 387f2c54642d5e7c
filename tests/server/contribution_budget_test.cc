// Where the pieces of contributions go, and what is in the way of the next one.
#include "server/contribution_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/piece_keeper.h"
#include "tests/server/fakes.h"
#include "tests/server/payloads.h"
#include "transport/errors.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(ContributionBudget, MemoryThenSpoolThenNowhere) {
  ContributionBudget budget({100, 50}, 1);
  budget.SetOldest(1, 1000);
  EXPECT_EQ(budget.share_bytes(), 150u);
  EXPECT_EQ(budget.PlaceFor("a", 1, 100), BudgetPlace::kMemory);
  budget.Add("a", 1, BudgetPlace::kMemory, 100);
  EXPECT_EQ(budget.PlaceFor("a", 1, 50), BudgetPlace::kSpool);
  EXPECT_EQ(budget.PlaceFor("a", 1, 51), BudgetPlace::kNone);
  budget.Add("a", 1, BudgetPlace::kSpool, 50);
  EXPECT_EQ(budget.PlaceFor("a", 1, 1), BudgetPlace::kNone);
  budget.Add("a", 1, BudgetPlace::kNone, 1);
  EXPECT_EQ(budget.look().memory_bytes, 100u);
  EXPECT_EQ(budget.look().spool_bytes, 50u);
  EXPECT_EQ(budget.look().spooled_pieces, 1u);
  EXPECT_EQ(budget.look().pushed_back_pieces, 1u);
  budget.Remove("a", 1, BudgetPlace::kMemory, 100);
  EXPECT_EQ(budget.PlaceFor("a", 1, 1), BudgetPlace::kMemory);
}

TEST(ContributionBudget, AShareIsKeptFromTheOthers) {
  ContributionBudget budget({100, 0}, 2);
  budget.SetOldest(1, 40);
  budget.Add("a", 1, BudgetPlace::kMemory, 40);
  // 20 are nobody's: for whoever comes first, of a later round too.
  EXPECT_EQ(budget.PlaceFor("a", 2, 21), BudgetPlace::kNone);
  EXPECT_EQ(budget.PlaceFor("a", 2, 20), BudgetPlace::kMemory);
  budget.Add("a", 2, BudgetPlace::kMemory, 20);
  EXPECT_EQ(budget.PlaceFor("a", 1, 1), BudgetPlace::kNone);
  EXPECT_EQ(budget.PlaceFor("b", 2, 1), BudgetPlace::kNone);
  EXPECT_EQ(budget.PlaceFor("b", 1, 40), BudgetPlace::kMemory);
  // Round 1 commits: what is held of round 2 moves into the share.
  budget.Remove("a", 1, BudgetPlace::kMemory, 40);
  budget.SetOldest(2, 40);
  EXPECT_EQ(budget.PlaceFor("a", 3, 21), BudgetPlace::kNone);
  EXPECT_EQ(budget.PlaceFor("a", 3, 20), BudgetPlace::kMemory);
}

// A plain record beside it: limits hold, what is held adds up, and no member with room in its share
// is ever turned away from the round that commits next.
TEST(ContributionBudget, HoldsWhateverComes) {
  const uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  struct Held {
    std::string node;
    uint64_t round, bytes;
    BudgetPlace place;
  };
  for (int run = 0; run < 200; ++run) {
    const size_t members = 1 + random() % 5;
    const BudgetLimits limits = {random() % 2000, random() % 3 == 0 ? 0 : random() % 2000};
    const uint64_t piece_max = 1 + random() % 100;
    ContributionBudget budget(limits, members);
    uint64_t oldest = 1;
    const uint64_t need = random() % 800;
    budget.SetOldest(oldest, need);
    std::vector<Held> all;
    for (int step = 0; step < 300; ++step) {
      if (random() % 20 == 0) {  // the oldest round commits
        for (const Held& held : all) {
          if (held.round == oldest) budget.Remove(held.node, held.round, held.place, held.bytes);
        }
        all.erase(std::remove_if(all.begin(), all.end(),
                                 [&](const Held& held) { return held.round == oldest; }),
                  all.end());
        budget.SetOldest(++oldest, need);
      }
      const Held next = {std::string(1, static_cast<char>('a' + random() % members)),
                         oldest + random() % 3, 1 + random() % piece_max, BudgetPlace::kNone};
      uint64_t own = 0, memory = 0, spool = 0;
      for (const Held& held : all) {
        if (held.node == next.node && held.round == oldest) own += held.bytes;
        (held.place == BudgetPlace::kMemory ? memory : spool) += held.bytes;
      }
      ASSERT_EQ(budget.look().memory_bytes, memory);
      ASSERT_EQ(budget.look().spool_bytes, spool);
      ASSERT_LE(memory, limits.memory_bytes);
      ASSERT_LE(spool, limits.spool_bytes + piece_max);
      ASSERT_LE(memory + spool, limits.total());
      const BudgetPlace place = budget.PlaceFor(next.node, next.round, next.bytes);
      if (next.round == oldest && own + next.bytes <= budget.share_bytes()) {
        ASSERT_NE(place, BudgetPlace::kNone)
            << own << " + " << next.bytes << " of " << budget.share_bytes() << ", run " << run;
      }
      budget.Add(next.node, next.round, place, next.bytes);
      if (place != BudgetPlace::kNone) all.push_back({next.node, next.round, next.bytes, place});
    }
  }
}

class PieceKeeperTest : public ::testing::Test {
 protected:
  PieceKeeperTest()
      : dir_(fs::path(std::getenv("TEST_TMPDIR")) / absl::StrCat("spool_", ::getpid())) {
    fs::create_directories(dir_);
  }
  ~PieceKeeperTest() override { fs::remove_all(dir_); }

  std::string spool() const { return (dir_ / "spool").string(); }

  static HeldPiece Piece(const std::string& bytes) {
    HeldPiece piece;
    piece.bytes = InMemory(bytes);
    return piece;
  }

  const fs::path dir_;
};

TEST_F(PieceKeeperTest, WhereAPieceIsMakesNoDifference) {
  const uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  fs::create_directories(spool());
  std::ofstream(fs::path(spool()) / "left by another") << "x";
  PieceKeeper keeper({5000, 1 << 20}, 1, spool());
  EXPECT_FALSE(fs::exists(fs::path(spool()) / "left by another"));
  keeper.SetOldest(1, 1 << 20);
  std::vector<std::pair<std::string, HeldPiece>> pieces;
  for (int i = 0; i < 100; ++i) {
    std::string bytes(random() % 3000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    pieces.emplace_back(bytes, Piece(bytes));
    ASSERT_TRUE(keeper.Keep("a", 1, &pieces.back().second).ok());
  }
  EXPECT_GT(keeper.Look().spooled_pieces, 0u);
  // A file without a name: nobody has to take it away.
  EXPECT_TRUE(fs::is_empty(spool()));
  std::shuffle(pieces.begin(), pieces.end(), random);
  while (!pieces.empty()) {
    for (const auto& [bytes, piece] : pieces) ASSERT_EQ(*piece.bytes, bytes);
    pieces.resize(pieces.size() * 9 / 10);
  }
  EXPECT_EQ(keeper.Look().memory_bytes, 0u);
  EXPECT_EQ(keeper.Look().spool_bytes, 0u);
}

// Pieces of many rounds share a file; what is gone takes no room in it.
TEST_F(PieceKeeperTest, WhatIsGoneTakesNoRoomInAFileThatStays) {
  const uint64_t before = fs::space(dir_).free;
  PieceKeeper keeper({0, uint64_t{1} << 30}, 1, spool());
  keeper.SetOldest(1, uint64_t{1} << 30);
  const std::string bytes(1 << 20, 'x');
  HeldPiece stays = Piece(bytes);
  ASSERT_TRUE(keeper.Keep("a", 1, &stays).ok());
  for (int i = 0; i < 200; ++i) {
    HeldPiece goes = Piece(bytes);
    ASSERT_TRUE(keeper.Keep("a", 1, &goes).ok());
    ASSERT_EQ(*goes.bytes, bytes);
  }
  EXPECT_EQ(*stays.bytes, bytes);
  // Others write to this disk as well.
  std::printf(
      "%.1f MiB of the disk in use\n",
      (static_cast<double>(before) - static_cast<double>(fs::space(dir_).free)) / (1 << 20));
  EXPECT_LT(keeper.Look().spool_bytes, 2u << 20);
}

TEST_F(PieceKeeperTest, BeyondBothLimitsAndWithoutADiskItIsPushedBack) {
  const std::string bytes(1000, 'x');
  {
    PieceKeeper keeper({1500, 1500}, 1, spool());
    keeper.SetOldest(1, 1 << 20);
    std::vector<HeldPiece> held;
    for (int i = 0; i < 2; ++i) {
      held.push_back(Piece(bytes));
      ASSERT_TRUE(keeper.Keep("a", 1, &held.back()).ok());
    }
    HeldPiece more = Piece(bytes);
    const absl::Status full = keeper.Keep("a", 1, &more);
    EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
    EXPECT_EQ(ReasonOf(full), "OPEN_CONTRIBUTION_BYTES");
    EXPECT_GT(RetryAfterMsOf(full), 0);
    EXPECT_THAT(std::string(full.message()), HasSubstr("1256 bytes in memory, limit 1500"));
    EXPECT_THAT(std::string(full.message()), HasSubstr("--spool_mib"));
    EXPECT_EQ(*more.bytes, bytes);
    held.clear();
    EXPECT_TRUE(keeper.Keep("a", 1, &more).ok());
  }
  std::ofstream(dir_ / "file") << "x";
  PieceKeeper keeper({0, 1 << 20}, 1, (dir_ / "file" / "spool").string());
  keeper.SetOldest(1, 1 << 20);
  HeldPiece piece = Piece(bytes);
  const absl::Status failed = keeper.Keep("a", 1, &piece);
  EXPECT_TRUE(absl::IsResourceExhausted(failed)) << failed;
  EXPECT_EQ(ReasonOf(failed), "SPOOL_FAILED");
  EXPECT_GT(RetryAfterMsOf(failed), 0);
  EXPECT_EQ(*piece.bytes, bytes);
  EXPECT_EQ(keeper.Look().spool_bytes, 0u);
  EXPECT_EQ(keeper.Look().pushed_back_pieces, 1u);
}

class BudgetedRunTest : public PieceKeeperTest {
 protected:
  // What a member may need for a contribution, as the coordinator reckons.
  static uint64_t Need() {
    const uint64_t total = ContributionSizes(TestGrid()).total();
    return total + total / 8 + (64 << 10);
  }

  void Begin(uint32_t quorum, uint32_t overlap, const BudgetLimits& limits) {
    a_ = nullptr;
    b_ = nullptr;
    coordinator_ = nullptr;
    v1::RunSpec spec = TestSpec({"a", "b"}, quorum, 6);
    spec.set_overlap(overlap);
    spec.mutable_timing()->set_deadline_ms(10000);
    spec.mutable_timing()->set_grace_ms(10000);
    CoordinatorOptions options;
    options.contributions = limits;
    options.spool_dir = spool();
    coordinator_ = std::make_unique<TestCoordinator>(spec, MakeMemoryStore(), HistoryLimits(),
                                                     std::move(options));
    a_ = std::make_unique<FakeNode>(host(), "a");
    b_ = std::make_unique<FakeNode>(host(), "b");
    a_->JoinAndWatch();
    b_->JoinAndWatch();
  }

  Coordinator* host() { return coordinator_->host.get(); }

  std::unique_ptr<TestCoordinator> coordinator_;
  std::unique_ptr<FakeNode> a_, b_;
};

TEST_F(BudgetedRunTest, EndsBitEqualWhereverThePiecesAre) {
  std::string expected;
  const BudgetLimits in_memory = {2 * Need(), 0}, in_file = {0, 2 * Need()},
                     in_both = {1500, 2 * Need()};
  for (const BudgetLimits& limits : {in_memory, in_file, in_both}) {
    Begin(2, 0, limits);
    for (uint64_t round = 1; round <= 4; ++round) {
      for (FakeNode* node : {a_.get(), b_.get()}) {
        node->ExpectOpened(round);
        const uint32_t seed = static_cast<uint32_t>(2 * round) + (node == b_.get() ? 1 : 0);
        const auto receipt = node->SubmitRandom(round, seed);
        ASSERT_TRUE(receipt.ok() && receipt->complete()) << receipt.status();
      }
      a_->ExpectUpdate(round);
      b_->ExpectUpdate(round);
    }
    const RunFacts facts = host()->Look();
    if (expected.empty()) expected = facts.last_update_sha256;
    EXPECT_EQ(facts.last_update_sha256, expected);
    EXPECT_EQ(facts.budget.spooled_pieces > 0, limits.spool_bytes > 0);
    EXPECT_EQ(facts.budget.memory_bytes + facts.budget.spool_bytes, 0u);
    EXPECT_EQ(facts.budget.pushed_back_pieces, 0u);
  }
}

// What is reserved for the round that commits next is not given to a later one; who is pushed back
// there is not late.
TEST_F(BudgetedRunTest, LaterRoundsArePushedBackAndGoOn) {
  Begin(1, 1, {2 * Need(), 0});
  // The first two rounds have a alone, which was there first.
  a_->ExpectOpened(1);
  a_->ExpectOpened(2);
  for (const uint64_t round : {1, 2}) {
    ASSERT_TRUE(a_->SubmitRandom(round, static_cast<uint32_t>(round)).ok());
    for (FakeNode* node : {a_.get(), b_.get()}) {
      node->ExpectUpdate(round);
      node->ExpectOpened(round + 2);
    }
  }
  const absl::Status pushed_back = a_->SubmitRandom(4, 40).status();
  EXPECT_TRUE(absl::IsResourceExhausted(pushed_back)) << pushed_back;
  EXPECT_EQ(ReasonOf(pushed_back), "OPEN_CONTRIBUTION_BYTES");
  EXPECT_EQ(host()->Look().budget.pushed_back_pieces, 1u);
  coordinator_->Pass(9000, {a_.get(), b_.get()});
  EXPECT_TRUE(absl::IsResourceExhausted(a_->SubmitRandom(4, 40).status()));
  ASSERT_TRUE(a_->SubmitRandom(3, 30).ok());
  ASSERT_TRUE(b_->SubmitRandom(3, 31).ok());
  a_->ExpectUpdate(3);
  b_->ExpectUpdate(3);
  ASSERT_TRUE(b_->SubmitRandom(4, 41).ok());
  // Without that, the deadline of round 4 would pass here.
  coordinator_->Pass(5000, {a_.get(), b_.get()});
  EXPECT_EQ(host()->Look().machine.committed_round(), 3u);
  EXPECT_EQ(host()->Look().machine.committing_round(), 0u);
  const auto receipt = a_->SubmitRandom(4, 40);
  ASSERT_TRUE(receipt.ok() && receipt->complete()) << receipt.status();
  for (FakeNode* node : {a_.get(), b_.get()}) {
    node->ExpectOpened(5);
    node->ExpectUpdate(4);
  }
}

// The same piece again needs no room.
TEST_F(BudgetedRunTest, WhatIsHeldIsTakenAgainWithoutRoom) {
  Begin(2, 0, {2 * Need(), 0});
  a_->ExpectOpened(1);
  b_->ExpectOpened(1);
  const auto pieces = RandomContribution(*TestGrid(), 1);
  for (int time = 0; time < 1000; ++time) {
    auto sink = host()->BeginSubmit(a_->Header(1, pieces));
    ASSERT_TRUE(sink.ok()) << sink.status();
    ASSERT_TRUE((*sink)->AddPiece(pieces[0]).ok());
  }
  EXPECT_LT(host()->Look().budget.memory_bytes, 2000u);
}

TEST_F(BudgetedRunTest, AModelThatIsTooLargeIsRefusedAtTheJoin) {
  CoordinatorOptions options;
  options.contributions = {2 * Need() - 1, 0};
  TestCoordinator coordinator(TestSpec({"a", "b"}), MakeMemoryStore(), HistoryLimits(),
                              std::move(options));
  FakeNode a(coordinator.host.get(), "a");
  const absl::Status refused = a.Join();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--spool_mib"));
}

}  // namespace
}  // namespace isthmus
