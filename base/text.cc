#include "base/text.h"

namespace isthmus {
namespace {

// Bytes of the UTF-8 character at the front of `text` (RFC 3629), 0 if there is none.
size_t CharacterBytes(absl::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  size_t bytes = 0;
  if (first >= 0xC2 && first <= 0xDF) bytes = 2;
  if (first >= 0xE0 && first <= 0xEF) bytes = 3;
  if (first >= 0xF0 && first <= 0xF4) bytes = 4;
  if (bytes == 0 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  // Longer forms than needed, surrogates, and what lies beyond U+10FFFF.
  if (first == 0xE0 && at(1) < 0xA0) return 0;
  if (first == 0xED && at(1) > 0x9F) return 0;
  if (first == 0xF0 && at(1) < 0x90) return 0;
  if (first == 0xF4 && at(1) > 0x8F) return 0;
  return bytes;
}

bool IsControl(absl::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7F;
  const auto second = static_cast<unsigned char>(character[1]);
  if (character.size() == 2) return first == 0xC2 && second < 0xA0;  // U+0080 to U+009F
  // U+2028, U+2029 end lines; U+202A to U+202E turn the direction of writing.
  return first == 0xE2 && second == 0x80 && static_cast<unsigned char>(character[2]) >= 0xA8 &&
         static_cast<unsigned char>(character[2]) <= 0xAE;
}

}  // namespace

std::string OneLine(absl::string_view text, size_t bytes_max) {
  std::string line;
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const absl::string_view character = text.substr(0, bytes == 0 ? 1 : bytes);
    text.remove_prefix(character.size());
    const size_t added = bytes == 0 || IsControl(character) ? 1 : bytes;
    if (line.size() + added > bytes_max) break;
    if (bytes == 0) {
      line += '?';
    } else if (IsControl(character)) {
      line += ' ';
    } else {
      line.append(character.data(), character.size());
    }
  }
  return line;
}

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

bool MatchesGlob(absl::string_view pattern, absl::string_view name) {
  // After a mismatch only the last '*' need take one character more: an earlier one could not reach
  // anything that the later one does not.
  size_t p = 0, n = 0;
  size_t after_star = absl::string_view::npos, star_took_to = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      star_took_to = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (after_star != absl::string_view::npos) {
      p = after_star;
      n = ++star_took_to;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace isthmus
