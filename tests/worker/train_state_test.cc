// Files of a trainer's state: what is read is what was written, and damage shows.
#include "worker/train_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "worker/train_checkpoints.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TrainState SmallState(uint64_t round) {
  TrainState state;
  TrainFacts& facts = state.facts;
  facts.run = "small";
  facts.node = "a";
  facts.rank = 1;
  facts.ranks = 2;
  facts.group_id = std::string(16, 'g');
  facts.fingerprint = std::string(32, 'f');
  facts.start_state_sha256 = std::string(32, 's');
  facts.round = round;
  facts.step = round + 3;
  facts.update_sha256 = std::string(32, 'u');
  facts.attempt = 7;
  state.parts = {{"z", 0, 3}, {"b", 64, 2}};  // not in the order of names
  state.parameters = {{1.0f, -0.0f, 3e-42f}, {4.0f, 5.0f}};
  state.method.residual = {{0.1f, 0.2f, 0.3f}, {0.4f, 0.5f}};
  state.method.step.first_moments = {{7, 8, 9}, {10, 11}};
  state.method.step.second_moments = {{12, 13, 14}, {15, 16}};
  state.method.step.beta1_power = 0.9 * 0.9 * 0.9;
  state.method.step.beta2_power = 0.1;
  state.method.x = {{27, 28, 29}, {30, 31}};
  state.method.work = {7, 5000};
  state.method.carried_rounds = 2;
  state.inner.first_moments = {{17, 18, 19}, {20, 21}};
  state.inner.second_moments = {{22, 23, 24}, {25, 26}};
  state.inner.beta1_power = 0.9;
  state.inner.beta2_power = 0.99;
  state.method.pending = {{round, 0.25f, {"piece", std::string("\0\1", 2)}, 0.5f, {"taken"}},
                          {round + 1, 1.0f, {}, 0.0f, {}}};
  return state;
}

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class TrainStateTest : public testing::Test {
 protected:
  TrainStateTest() {
    folder_ =
        testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    path_ = folder_ + "/state.safetensors";
  }
  std::string folder_, path_;
};

TEST_F(TrainStateTest, WhatIsReadIsWhatWasWritten) {
  const TrainState state = SmallState(12);
  ASSERT_TRUE(WriteTrainState(path_, state).ok());
  const auto read = ReadTrainState(path_, state.parts);
  ASSERT_TRUE(read.ok()) << read.status();
  // Written again it is the same file: no field was lost.
  ASSERT_TRUE(WriteTrainState(path_ + "2", *read).ok());
  EXPECT_EQ(ReadBytes(path_), ReadBytes(path_ + "2"));
  EXPECT_EQ(read->parameters, state.parameters);
  EXPECT_TRUE(std::signbit(read->parameters[0][1]));
  EXPECT_EQ(read->method.residual, state.method.residual);
  EXPECT_EQ(read->method.step.second_moments, state.method.step.second_moments);
  EXPECT_EQ(read->method.step.beta1_power, state.method.step.beta1_power);
  EXPECT_EQ(read->facts.step, 15u);
  // An outer optimizer may have one array where AdamW has two.
  TrainState one = state;
  one.method.step.second_moments.clear();
  ASSERT_TRUE(WriteTrainState(path_ + "3", one).ok());
  const auto read_one = ReadTrainState(path_ + "3", state.parts);
  ASSERT_TRUE(read_one.ok()) << read_one.status();
  EXPECT_EQ(read_one->method.step.first_moments, one.method.step.first_moments);
  EXPECT_TRUE(read_one->method.step.second_moments.empty());
  EXPECT_EQ(read->method.x, state.method.x);
  EXPECT_EQ(read->method.work.steps, 7u);
  EXPECT_EQ(read->method.work.tokens, 5000u);
  EXPECT_EQ(read->method.carried_rounds, 2u);
  EXPECT_EQ(read->inner.first_moments, state.inner.first_moments);
  EXPECT_EQ(read->inner.second_moments, state.inner.second_moments);
  EXPECT_EQ(read->inner.beta1_power, 0.9);
  EXPECT_EQ(read->inner.beta2_power, 0.99);
  EXPECT_EQ(read->facts.attempt, 7u);
  ASSERT_EQ(read->method.pending.size(), 2u);
  EXPECT_EQ(read->method.pending[0].decay, 0.25f);
  EXPECT_EQ(read->method.pending[0].lr, 0.5f);
  EXPECT_THAT(read->method.pending[0].taken, ElementsAre("taken"));
  EXPECT_THAT(read->method.pending[0].pieces, ElementsAre("piece", std::string("\0\1", 2)));
}

TEST_F(TrainStateTest, PartsOfAnotherCutAreRefused) {
  const TrainState state = SmallState(1);
  ASSERT_TRUE(WriteTrainState(path_, state).ok());
  for (const std::vector<StatePart>& parts : {std::vector<StatePart>{{"z", 0, 3}},
                                              {{"z", 0, 3}, {"b", 0, 2}},
                                              {{"z", 0, 3}, {"b", 64, 3}}}) {
    EXPECT_EQ(ReadTrainState(path_, parts).status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

// Two ranks' files, read by one, by two that cut elsewhere, and by three.
TEST_F(TrainStateTest, AnotherNumberOfRanksReadsItsShareOfASet) {
  TrainState first = SmallState(12), second = SmallState(12);
  first.facts.rank = 0;
  first.parts = {{"a", 0, 2}, {"b", 0, 4}};
  first.parameters = {{1, 2}, {3, 4, 5, 6}};
  second.parts = {{"b", 4, 2}, {"c", 0, 1}};
  second.parameters = {{7, 8}, {9}};
  for (TrainState* state : {&first, &second}) {
    for (auto* values : {&state->method.residual, &state->method.step.first_moments,
                         &state->method.step.second_moments, &state->inner.first_moments,
                         &state->inner.second_moments, &state->method.x}) {
      *values = state->parameters;
    }
    state->method.pending = {
        {12, 0.25f, {"piece of rank " + std::to_string(state->facts.rank)}, 0.0f, {}}};
  }
  second.method.residual = {{70, 80}, {90}};
  const std::vector<std::string> paths = {path_ + "0", path_ + "1"};
  ASSERT_TRUE(WriteTrainState(paths[0], first).ok());
  ASSERT_TRUE(WriteTrainState(paths[1], second).ok());

  using Values = std::vector<std::vector<float>>;
  const std::pair<std::vector<StatePart>, Values> cuts[] = {
      {{{"a", 0, 2}, {"b", 0, 6}, {"c", 0, 1}}, {{1, 2}, {3, 4, 5, 6, 7, 8}, {9}}},
      {{{"b", 2, 3}, {"c", 0, 1}}, {{5, 6, 7}, {9}}},
      {{{"c", 0, 1}, {"b", 5, 1}, {"a", 1, 1}}, {{9}, {8}, {2}}},
      {{}, {}},
  };
  for (const auto& [parts, values] : cuts) {
    const auto read = ReadTrainStates(paths, parts);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->parameters, values);
    EXPECT_EQ(read->method.step.second_moments, values);
    EXPECT_EQ(read->inner.first_moments, values);
    EXPECT_EQ(read->method.x, values);
    EXPECT_EQ(read->method.work.steps, 7u);
    EXPECT_EQ(read->method.work.tokens, 10000u);
    EXPECT_EQ(read->method.step.beta1_power, first.method.step.beta1_power);
    ASSERT_EQ(read->method.pending.size(), 1u);
    EXPECT_EQ(read->method.pending[0].decay, 0.25f);
    EXPECT_THAT(read->method.pending[0].pieces, ElementsAre("piece of rank 0", "piece of rank 1"));
  }
  EXPECT_EQ(ReadTrainStates(paths, cuts[1].first)->method.residual, (Values{{5, 6, 70}, {90}}));

  const auto refused = [&](const std::vector<StatePart>& parts) {
    return ReadTrainStates(paths, parts).status();
  };
  EXPECT_THAT(std::string(refused({{"b", 4, 3}}).message()),
              HasSubstr("no parameters of 'b' from element 6 on"));
  EXPECT_EQ(refused({{"d", 0, 1}}).code(), absl::StatusCode::kFailedPrecondition);
  second.facts.group_id = std::string(16, 'h');
  ASSERT_TRUE(WriteTrainState(paths[1], second).ok());
  EXPECT_THAT(std::string(refused({{"a", 0, 1}}).message()), HasSubstr("another trainer group"));
  second.facts.group_id = first.facts.group_id;
  second.method.pending[0].lr = 0.5f;
  ASSERT_TRUE(WriteTrainState(paths[1], second).ok());
  EXPECT_EQ(refused({{"a", 0, 1}}).code(), absl::StatusCode::kDataLoss);
  TrainState idle = first;  // has nothing under way, while the other rank has
  idle.method.pending.clear();
  ASSERT_TRUE(WriteTrainState(paths[0], idle).ok());
  EXPECT_EQ(refused({{"a", 0, 1}}).code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(WriteTrainState(paths[0], first).ok());
  second.method.pending[0].round = 11;
  ASSERT_TRUE(WriteTrainState(paths[1], second).ok());
  EXPECT_EQ(refused({{"a", 0, 1}}).code(), absl::StatusCode::kDataLoss);
  std::filesystem::resize_file(paths[1], std::filesystem::file_size(paths[1]) - 1);
  EXPECT_EQ(refused({{"a", 0, 1}}).code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove(paths[1]);
  EXPECT_EQ(refused({{"a", 0, 1}}).code(), absl::StatusCode::kNotFound);
}

// Every cut and every flipped bit shows: nothing wrong is ever read as right.
TEST_F(TrainStateTest, DamageShows) {
  const TrainState state = SmallState(3);
  ASSERT_TRUE(WriteTrainState(path_, state).ok());
  const std::string whole = ReadBytes(path_);
  for (size_t size = 0; size < whole.size(); ++size) {
    WriteBytes(path_, whole.substr(0, size));
    const auto read = ReadTrainState(path_, state.parts);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << size << ": " << read.status();
  }
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  int harmless = 0;
  for (int i = 0; i < 500; ++i) {
    std::string bytes = whole;
    bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    WriteBytes(path_, bytes);
    const auto read = ReadTrainState(path_, state.parts);
    if (!read.ok()) continue;
    ++harmless;  // in the one text that means nothing, "format", and in white space
    ASSERT_TRUE(WriteTrainState(path_ + "2", *read).ok());
    EXPECT_EQ(ReadBytes(path_ + "2"), whole);
  }
  EXPECT_LT(harmless, 25);
}

class CheckpointsTest : public TrainStateTest {
 protected:
  std::unique_ptr<TrainCheckpoints> Open(uint32_t rank = 1) {
    auto opened = TrainCheckpoints::Open(folder_, rank, 2);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }
};

TEST_F(CheckpointsTest, TheNewestSetsThatAllRanksHaveStay) {
  const auto checkpoints = Open();
  for (uint64_t round : {10, 20, 30, 40}) {
    checkpoints->Write(SmallState(round));
    checkpoints->Wait();
    EXPECT_EQ(checkpoints->newest(), round);
  }
  checkpoints->KeepFrom(30);  // a rank has not yet written 40
  EXPECT_THAT(checkpoints->Rounds(), ElementsAre(40, 30, 20));
  checkpoints->KeepFrom(40);
  EXPECT_THAT(checkpoints->Rounds(), ElementsAre(40, 30));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/round-0000000020"));
}

TEST_F(CheckpointsTest, WhatACrashLeftBehindGoes) {
  {
    const auto checkpoints = Open();
    for (uint64_t round : {10, 20}) {
      checkpoints->Write(SmallState(round));
      checkpoints->Wait();
    }
  }
  const std::string part = Open()->PathsOf(20).at(0) + ".part";
  WriteBytes(part, "half");
  const auto checkpoints = Open();
  EXPECT_FALSE(std::filesystem::exists(part));
  EXPECT_THAT(checkpoints->Rounds(), ElementsAre(20, 10));
  checkpoints->Resume(10);  // the other rank has no 20
  EXPECT_THAT(checkpoints->Rounds(), ElementsAre(10));
  EXPECT_EQ(checkpoints->newest(), 10u);
}

TEST_F(CheckpointsTest, AnotherNumberOfRanksIsNamed) {
  {
    const auto checkpoints = Open();
    checkpoints->Write(SmallState(10));
  }
  const auto opened = TrainCheckpoints::Open(folder_, 0, 4);
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(opened.status().message()),
              HasSubstr("was made by 2 ranks, this node has 4, and the file of rank 0 is not"));
}

TEST_F(CheckpointsTest, AFolderThatCannotBeIsNamed) {
  WriteBytes(folder_ + "/file", "x");
  EXPECT_THAT(std::string(CheckCheckpointFolder(folder_ + "/file").message()), HasSubstr("/file"));
  EXPECT_FALSE(CheckCheckpointFolder(folder_ + "/no/where").ok());
  EXPECT_TRUE(CheckCheckpointFolder(folder_ + "/new").ok());
  EXPECT_TRUE(CheckCheckpointFolder(folder_).ok());
}

// A full disk: the run goes on, the last set stays.
TEST_F(CheckpointsTest, AFileThatCannotBeWrittenCostsNothing) {
  const auto checkpoints = Open();
  checkpoints->Write(SmallState(10));
  checkpoints->Wait();
  WriteBytes(folder_ + "/round-0000000020", "a file where a folder should be");
  checkpoints->Write(SmallState(20));
  checkpoints->Wait();
  EXPECT_EQ(checkpoints->newest(), 10u);
  EXPECT_FALSE(checkpoints->writing());
  EXPECT_THAT(checkpoints->Rounds(), ElementsAre(10));
}

}  // namespace
}  // namespace isthmus
