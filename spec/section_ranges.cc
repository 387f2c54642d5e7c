#include "spec/section_ranges.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace isthmus {

absl::StatusOr<std::vector<SectionRange>> ReadRanges(const SectionRangesProto& ranges,
                                                     uint32_t sections, uint64_t elements) {
  if (static_cast<size_t>(ranges.size()) > kSnapshotRangesMax) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", ranges.size(),
                                                   " ranges; a call has at most ",
                                                   kSnapshotRangesMax, ", make several"));
  }
  std::vector<SectionRange> read;
  for (const v1::SectionRange& range : ranges) {
    const bool inside =
        range.section() < sections && range.begin() < range.end() && range.end() <= elements;
    const bool after = read.empty() || range.section() > read.back().section ||
                       (range.section() == read.back().section && range.begin() >= read.back().end);
    if (!inside || !after) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ranges has [", range.begin(), ", ", range.end(), ") of section ", range.section(),
          inside ? ", not after the one before it" : "", "; the state has ", sections,
          " sections of ", elements, " elements, and ranges are ascending and disjoint"));
    }
    read.push_back({range.section(), range.begin(), range.end()});
  }
  return read;
}

void WriteRanges(const std::vector<SectionRange>& ranges, SectionRangesProto* proto) {
  for (const SectionRange& range : ranges) {
    v1::SectionRange* written = proto->Add();
    written->set_section(range.section);
    written->set_begin(range.begin);
    written->set_end(range.end);
  }
}

std::vector<SectionRange> AllRanges(uint32_t sections, uint64_t elements) {
  std::vector<SectionRange> all;
  for (uint32_t section = 0; elements > 0 && section < sections; ++section) {
    all.push_back({section, 0, elements});
  }
  return all;
}

std::vector<SectionRange> Missing(const std::vector<SectionRange>& wanted,
                                  const std::vector<SectionRange>& held, size_t most) {
  std::vector<SectionRange> missing;
  // Whether there is room for it.
  const auto add = [&](const SectionRange& range) {
    if (!missing.empty() && missing.back().section == range.section &&
        missing.back().end == range.begin) {
      missing.back().end = range.end;
      return true;
    }
    if (missing.size() == most) return false;
    missing.push_back(range);
    return true;
  };
  size_t next = 0;  // the first held range that may reach what is wanted
  for (const SectionRange& range : wanted) {
    uint64_t at = range.begin;
    while (next < held.size() && (held[next].section < range.section ||
                                  (held[next].section == range.section && held[next].end <= at))) {
      ++next;
    }
    for (size_t i = next; at < range.end; ++i) {
      const bool reaches =
          i < held.size() && held[i].section == range.section && held[i].begin < range.end;
      const uint64_t until = reaches ? std::max(held[i].begin, at) : range.end;
      if (until > at && !add({range.section, at, until})) return missing;
      at = reaches ? std::max(held[i].end, at) : range.end;
    }
  }
  return missing;
}

}  // namespace isthmus
