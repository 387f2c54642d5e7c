#include "base/text.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace isthmus {
namespace {

TEST(OneLine, CutsBetweenCharacters) {
  std::string text = "x";
  for (int i = 0; i < 200; ++i) text += "\xC3\xA9";  // é
  EXPECT_EQ(OneLine(text, 256).size(), 255U);
  EXPECT_EQ(OneLine(text, 257).size(), 257U);
  EXPECT_EQ(OneLine("\xF0\x9F\x98\x80", 3), "");
  EXPECT_EQ(OneLine("\xF0\x9F\x98\x80", 4), "\xF0\x9F\x98\x80");
  EXPECT_EQ(OneLine("", 10), "");
  EXPECT_EQ(OneLine("abc", 0), "");
}

TEST(OneLine, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(OneLine("a\xC3", 10), "a?");
  EXPECT_EQ(OneLine("\x80\xFFz", 10), "??z");
  EXPECT_EQ(OneLine("\xC0\xAF", 10), "??");                // longer than needed
  EXPECT_EQ(OneLine("\xED\xA0\x80", 10), "???");           // a surrogate
  EXPECT_EQ(OneLine("\xF4\x90\x80\x80", 10), "????");      // beyond U+10FFFF
  EXPECT_EQ(OneLine("\xE2\x82\xAC", 10), "\xE2\x82\xAC");  // €
}

TEST(OneLine, KeepsOneLineAndNoEscapes) {
  EXPECT_EQ(OneLine("a\nb\r\tc\x1B[31m\x7F", 20), "a b  c [31m ");
  EXPECT_EQ(OneLine("a\xC2\x85z", 20), "a z");      // U+0085
  EXPECT_EQ(OneLine("a\xE2\x80\xA8z", 20), "a z");  // U+2028
  EXPECT_EQ(OneLine("a\xE2\x80\xAEz", 20), "a z");  // U+202E
}

TEST(OneLine, IsItsOwnResult) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 40, '\0');
    for (char& byte : text) byte = static_cast<char>(random());
    const size_t bytes_max = random() % 50;
    const std::string line = OneLine(text, bytes_max);
    EXPECT_LE(line.size(), bytes_max);
    EXPECT_EQ(OneLine(line, bytes_max), line);
  }
}

TEST(MatchesGlob, StarsStandForAnyCharacters) {
  EXPECT_TRUE(MatchesGlob("", ""));
  EXPECT_FALSE(MatchesGlob("", "a"));
  EXPECT_TRUE(MatchesGlob("*", ""));
  EXPECT_TRUE(MatchesGlob("**", "abc"));
  EXPECT_TRUE(MatchesGlob("*.bias", "h.0.ln_1.bias"));
  EXPECT_FALSE(MatchesGlob("*.bias", "h.0.ln_1.biases"));
  EXPECT_TRUE(MatchesGlob("h.*.ln_*.weight", "h.11.ln_2.weight"));
  EXPECT_FALSE(MatchesGlob("h.*.ln_*.weight", "h.11.attn.weight"));
  EXPECT_TRUE(MatchesGlob("a*ab", "aab"));
  EXPECT_FALSE(MatchesGlob("a?c", "abc"));
}

TEST(MatchesGlob, ManyStarsTakeNoTime) {
  std::string pattern;
  for (int i = 0; i < 128; ++i) pattern += "a*";
  EXPECT_FALSE(MatchesGlob(pattern + "b", std::string(256, 'a')));
  EXPECT_TRUE(MatchesGlob(pattern, std::string(256, 'a')));
}

// The obvious recursion, for short words.
bool MatchesSlowly(absl::string_view pattern, absl::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') {
    return MatchesSlowly(pattern.substr(1), name) ||
           (!name.empty() && MatchesSlowly(pattern, name.substr(1)));
  }
  return !name.empty() && pattern[0] == name[0] && MatchesSlowly(pattern.substr(1), name.substr(1));
}

TEST(MatchesGlob, AgreesWithTheRecursion) {
  const uint32_t seed = std::random_device()();
  std::mt19937 random(seed);
  for (int i = 0; i < 20000; ++i) {
    std::string pattern, name;
    for (uint32_t n = random() % 7; n > 0; --n) pattern += "ab*"[random() % 3];
    for (uint32_t n = random() % 9; n > 0; --n) name += "ab"[random() % 2];
    ASSERT_EQ(MatchesGlob(pattern, name), MatchesSlowly(pattern, name))
        << "seed " << seed << ": '" << pattern << "' on '" << name << "'";
  }
}

}  // namespace
}  // namespace isthmus
