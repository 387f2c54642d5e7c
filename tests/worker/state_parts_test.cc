// What ranks say of a state that is checked becomes one hash, whoever of them holds which block.
#include "worker/state_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>

#include "base/limits.h"
#include "base/sha256.h"
#include "tests/worker/method_fixture.h"
#include "worker/state_copy.h"
#include "worker/state_hash.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

Grid TestedGrid() { return MakeGrid({{300, 20}, {9000}, {}, {18, 40}}, CompleteCodec()); }

v1::StatePart FactsOf(uint64_t round, uint32_t sections) {
  v1::StatePart facts;
  facts.set_round(round);
  facts.set_step(round + 3);
  facts.set_sections(sections);
  facts.set_beta1_power_bits(sections == 1 ? 0x3ff0000000000000 : 17);
  facts.set_beta2_power_bits(sections == 1 ? 0x3ff0000000000000 : 18);
  return facts;
}

// What a node of so many ranks says, each of them for itself, in any order.
std::vector<v1::StatePart> PartsOf(const Grid& grid, const std::vector<Tensors>& sections,
                                   const v1::StatePart& facts, uint32_t ranks, uint32_t seed) {
  const std::vector<UnitPlan> plan = PlanOf(grid, ranks);
  std::vector<v1::StatePart> all;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    StateCopy copy;
    copy.facts = facts;
    for (uint32_t section = 0; section < sections.size(); ++section) {
      for (const TensorPart<const float>& part : RankParts(plan, rank, sections[section])) {
        EXPECT_TRUE(CopyPart(grid, section, part, &copy).ok());
      }
    }
    for (v1::StatePart& part : HashCopy(copy)) all.push_back(std::move(part));
  }
  std::shuffle(all.begin(), all.end(), std::mt19937(seed));
  return all;
}

// It is there when the last part with blocks is, and not before.
std::string Combined(const Grid& grid, const std::vector<v1::StatePart>& parts) {
  StateParts combined;
  std::string sha256;
  auto missing = std::count_if(parts.begin(), parts.end(),
                               [](const v1::StatePart& part) { return part.blocks_size() > 0; });
  for (const v1::StatePart& part : parts) {
    if (part.blocks_size() > 0) --missing;
    const absl::StatusOr<std::string> now = combined.Add(part, grid);
    EXPECT_TRUE(now.ok()) << now.status();
    EXPECT_EQ(now->empty(), missing > 0);
    sha256 = *now;
  }
  return sha256;
}

TEST(StatePartsTest, ShardingDoesNotChangeTheHash) {
  const Grid grid = TestedGrid();
  for (const uint32_t sections : {1u, 3u}) {
    std::vector<Tensors> state;
    for (uint32_t i = 0; i < sections; ++i) state.push_back(RandomTensors(grid, i + 1));
    const v1::StatePart facts = FactsOf(100, sections);
    // As one process has it, and a snapshot.
    v1::SnapshotFacts whole;
    whole.set_step(facts.step());
    whole.set_beta1_power_bits(facts.beta1_power_bits());
    whole.set_beta2_power_bits(facts.beta2_power_bits());
    std::vector<std::string> hashes;
    for (const Tensors& tensors : state) {
      hashes.push_back(*SectionSha256(grid, WholeParts(tensors), facts.step(), 2));
    }
    const std::string expected = StateSha256(hashes, whole);
    for (const uint32_t ranks : {4u, 1u, 2u, 3u, 8u, 40u}) {
      EXPECT_EQ(Combined(grid, PartsOf(grid, state, facts, ranks, ranks)), expected) << ranks;
    }
    Tensors& last = state.back();
    last[3][7] = std::nextafter(last[3][7], 10.0f);
    EXPECT_NE(Combined(grid, PartsOf(grid, state, facts, 2, 1)), expected);
  }
}

TEST(StatePartsTest, TheSameAgainIsWell) {
  const Grid grid = TestedGrid();
  const auto parts = PartsOf(grid, {RandomTensors(grid, 1)}, FactsOf(5, 1), 3, 1);
  StateParts combined;
  for (int times = 0; times < 3; ++times) EXPECT_EQ(*combined.Add(parts[0], grid), "");
  EXPECT_EQ(*combined.Add(parts[1], grid), "");
  const std::string sha256 = *combined.Add(parts[2], grid);
  EXPECT_EQ(sha256.size(), kSha256Bytes);
  EXPECT_EQ(*combined.Add(parts[1], grid), sha256);
}

TEST(StatePartsTest, OldRoundsAreGivenUp) {
  const Grid grid = TestedGrid();
  const std::vector<Tensors> state = {RandomTensors(grid, 1)};
  StateParts combined;
  for (uint64_t round = 1; round <= kStateRoundsOpenMax + 1; ++round) {
    EXPECT_EQ(*combined.Add(PartsOf(grid, state, FactsOf(round, 1), 2, 1)[0], grid), "");
  }
  // The second part of the first of them finds nothing that it belongs to; the last one's does.
  EXPECT_EQ(*combined.Add(PartsOf(grid, state, FactsOf(1, 1), 2, 1)[1], grid), "");
  const uint64_t last = kStateRoundsOpenMax + 1;
  EXPECT_NE(*combined.Add(PartsOf(grid, state, FactsOf(last, 1), 2, 1)[1], grid), "");
}

TEST(StatePartsTest, RefusesWhatIsNotOfTheModel) {
  const Grid grid = TestedGrid();
  const v1::StatePart good = PartsOf(grid, {RandomTensors(grid, 1)}, FactsOf(5, 1), 1, 1)[0];
  const auto refusal = [&](const v1::StatePart& part) {
    StateParts combined;
    const absl::Status status = combined.Add(part, grid).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  v1::StatePart part = good;
  part.set_sections(2);
  EXPECT_THAT(refusal(part), HasSubstr("1 or 3 sections, not 2"));
  part = good;
  part.mutable_blocks(0)->set_section(1);
  EXPECT_THAT(refusal(part), HasSubstr("of section 1"));
  part = good;
  part.mutable_blocks(0)->mutable_sha256s()->pop_back();
  EXPECT_THAT(refusal(part), HasSubstr("bytes of hashes"));
  part = good;
  part.mutable_blocks(0)->set_first_block(static_cast<uint32_t>(grid.blocks().size()));
  EXPECT_THAT(refusal(part), HasSubstr("from block"));
  part = good;
  part.mutable_blocks(0)->set_first_block(~uint32_t{0});
  EXPECT_THAT(refusal(part), HasSubstr("from block"));
  StateParts combined;
  EXPECT_TRUE(combined.Add(good, grid).ok());
  part = good;
  part.set_step(77);
  EXPECT_THAT(std::string(combined.Add(part, grid).status().message()),
              HasSubstr("ranks say different things"));
}

TEST(StateCopyTest, MessagesAreBounded) {
  constexpr size_t kMost = kStatePartBytesMax / kSha256Bytes;
  StateCopy copy;
  copy.facts = FactsOf(1, 1);
  EXPECT_EQ(HashCopy(copy).size(), 1u);  // a rank without blocks
  copy.parts.push_back({0, 5, std::vector<uint64_t>(kMost - 10, 1), std::vector<float>(kMost, 1)});
  copy.parts.push_back({0, 20000, std::vector<uint64_t>(30, 2), std::vector<float>(60, 2)});
  const std::vector<v1::StatePart> messages = HashCopy(copy);
  ASSERT_EQ(messages.size(), 2u);
  ASSERT_EQ(messages[0].blocks_size(), 2);
  EXPECT_EQ(messages[0].blocks(1).sha256s().size(), 10 * kSha256Bytes);
  ASSERT_EQ(messages[1].blocks_size(), 1);
  EXPECT_EQ(messages[1].blocks(0).first_block(), 20010u);
  EXPECT_EQ(messages[1].blocks(0).sha256s().size(), 20 * kSha256Bytes);
}

TEST(StateHashingTest, TellsTheLastAndNothingThatWasDropped) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<uint64_t> told;
  bool holds = true;
  StateHashing hashing([&](std::vector<v1::StatePart> parts) {
    std::unique_lock<std::mutex> lock(mutex);
    told.push_back(parts[0].round());
    changed.notify_all();
    changed.wait(lock, [&] { return !holds; });
  });
  const auto copy_of = [](uint64_t round) {
    StateCopy copy;
    copy.facts = FactsOf(round, 1);
    return copy;
  };
  hashing.Begin(copy_of(1));
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return told.size() == 1; });
  // While one is told others come: the last of them takes their place.
  hashing.Begin(copy_of(2));
  hashing.Begin(copy_of(3));
  holds = false;
  changed.notify_all();
  changed.wait(lock, [&] { return told.size() == 2; });
  EXPECT_EQ(told, (std::vector<uint64_t>{1, 3}));
  holds = true;
  hashing.Begin(copy_of(4));
  changed.wait(lock, [&] { return told.size() == 3; });
  hashing.Begin(copy_of(5));
  holds = false;
  changed.notify_all();
  lock.unlock();
  hashing.Drop();  // returns when nothing is being told any more
  hashing.Begin(copy_of(6));
  lock.lock();
  changed.wait(lock, [&] { return told.back() == 6; });
  EXPECT_EQ(std::count(told.begin(), told.end(), 4u), 1);
}

}  // namespace
}  // namespace isthmus
