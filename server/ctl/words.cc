#include "server/ctl/words.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace isthmus {
namespace {

std::string Two(uint64_t large, const char* large_unit, uint64_t small, const char* small_unit) {
  if (small == 0) return absl::StrCat(large, " ", large_unit);
  return absl::StrCat(large, " ", large_unit, " ", small, " ", small_unit);
}

}  // namespace

std::string Span(uint64_t ms) {
  constexpr uint64_t kSecond = 1000, kMinute = 60 * kSecond, kHour = 60 * kMinute;
  constexpr uint64_t kDay = 24 * kHour;
  if (ms < 10 * kSecond) {
    // Rounded first: 9.97 s are 10 s.
    const uint64_t tenths = (ms + 50) / 100;
    if (tenths < 100) return absl::StrFormat("%d.%d s", tenths / 10, tenths % 10);
  }
  if (ms < kMinute) return absl::StrCat(ms / kSecond, " s");
  if (ms < kHour) return Two(ms / kMinute, "min", ms % kMinute / kSecond, "s");
  if (ms < kDay) return Two(ms / kHour, "h", ms % kHour / kMinute, "min");
  return Two(ms / kDay, "d", ms % kDay / kHour, "h");
}

std::string Ago(uint64_t ms) { return absl::StrCat(Span(ms), " ago"); }

std::string Size(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  auto value = static_cast<double>(bytes);
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (value /= 1024; value >= 1024 && unit + 1 < 4; ++unit) value /= 1024;
  return absl::StrFormat("%.1f %s", value, units[unit]);
}

std::string Grouped(uint64_t number) {
  std::string digits = absl::StrCat(number);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, ",");
  return digits;
}

std::string List(const std::vector<std::string>& names, size_t most) {
  if (names.size() <= 1) return names.empty() ? "" : names.front();
  if (names.size() > most) {
    return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + most, ", "), " and ",
                        names.size() - most, " more");
  }
  return absl::StrCat(absl::StrJoin(names.begin(), names.end() - 1, ", "), " and ", names.back());
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace isthmus
