#include "spec/section_ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/limits.h"

namespace isthmus {
namespace {

using Ranges = std::vector<SectionRange>;

std::set<std::pair<uint32_t, uint64_t>> Elements(const Ranges& ranges) {
  std::set<std::pair<uint32_t, uint64_t>> elements;
  for (const SectionRange& range : ranges) {
    for (uint64_t i = range.begin; i < range.end; ++i) elements.insert({range.section, i});
  }
  return elements;
}

Ranges RandomRanges(std::mt19937_64* random, uint32_t sections, uint64_t elements) {
  Ranges ranges;
  for (uint32_t section = 0; section < sections; ++section) {
    uint64_t at = 0;
    while (at < elements) {
      const uint64_t begin = at + (*random)() % 4;
      const uint64_t end = begin + 1 + (*random)() % 5;
      if (end > elements) break;
      ranges.push_back({section, begin, end});
      at = end;
    }
  }
  return ranges;
}

TEST(SectionRanges, MissingIsTheDifferenceOfTheSets) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    const uint64_t elements = random() % 40;
    const Ranges wanted = RandomRanges(&random, 3, elements);
    const Ranges held = RandomRanges(&random, 3, elements);
    auto expected = Elements(wanted);
    for (const auto& element : Elements(held)) expected.erase(element);
    const Ranges missing = Missing(wanted, held, 1000);
    EXPECT_EQ(Elements(missing), expected);
    for (size_t j = 1; j < missing.size(); ++j) {
      EXPECT_TRUE(missing[j - 1].section < missing[j].section ||
                  missing[j - 1].end < missing[j].begin);
    }
    Ranges first = missing;
    first.resize(std::min<size_t>(first.size(), 2));
    EXPECT_EQ(Missing(wanted, held, 2), first);
  }
}

TEST(SectionRanges, AllRangesCoverTheState) {
  EXPECT_EQ(AllRanges(3, 5), (Ranges{{0, 0, 5}, {1, 0, 5}, {2, 0, 5}}));
  EXPECT_TRUE(AllRanges(3, 0).empty());
}

TEST(SectionRanges, WhatIsWrittenIsRead) {
  const Ranges ranges = {{0, 0, 2}, {0, 2, 3}, {2, 1, 7}};
  SectionRangesProto proto;
  WriteRanges(ranges, &proto);
  const auto read = ReadRanges(proto, 3, 7);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, ranges);
}

TEST(SectionRanges, RefusesWhatIsNoListOfRangesOfTheState) {
  const Ranges wrong[] = {{{0, 3, 3}},
                          {{0, 4, 3}},
                          {{0, 0, 8}},
                          {{3, 0, 1}},
                          {{0, 0, 2}, {0, 1, 3}},
                          {{1, 0, 1}, {0, 2, 3}},
                          {{0, 0, uint64_t(-1)}}};
  for (const Ranges& ranges : wrong) {
    SectionRangesProto proto;
    WriteRanges(ranges, &proto);
    EXPECT_TRUE(absl::IsInvalidArgument(ReadRanges(proto, 3, 7).status()));
  }
  SectionRangesProto many;
  for (uint64_t i = 0; i <= kSnapshotRangesMax; ++i) {
    WriteRanges({{0, 2 * i, 2 * i + 1}}, &many);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ReadRanges(many, 1, 1 << 20).status()));
}

}  // namespace
}  // namespace isthmus
