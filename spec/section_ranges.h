// Ranges of a replicated state's elements, as snapshots cut it: a state is 1 or 3 sections
// (parameters, moments), each with an element for every trainable one of the model, in the order of
// the manifest. Lists of ranges are ascending and disjoint.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "isthmus/v1/coordinator.pb.h"

namespace isthmus {

// Elements [begin, end) of a section.
struct SectionRange {
  uint32_t section = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
};
inline bool operator==(const SectionRange& a, const SectionRange& b) {
  return std::tie(a.section, a.begin, a.end) == std::tie(b.section, b.begin, b.end);
}
inline bool operator<(const SectionRange& a, const SectionRange& b) {
  return std::tie(a.section, a.begin, a.end) < std::tie(b.section, b.begin, b.end);
}

using SectionRangesProto = google::protobuf::RepeatedPtrField<v1::SectionRange>;

// INVALID_ARGUMENT, naming the range: one that is empty, outside of the state, or not after the one
// before it; more than kSnapshotRangesMax.
absl::StatusOr<std::vector<SectionRange>> ReadRanges(const SectionRangesProto& ranges,
                                                     uint32_t sections, uint64_t elements);
void WriteRanges(const std::vector<SectionRange>& ranges, SectionRangesProto* proto);

// The whole state.
std::vector<SectionRange> AllRanges(uint32_t sections, uint64_t elements);

// What of `wanted` is not in `held`, neighbours merged; at most `most` ranges, the first ones.
std::vector<SectionRange> Missing(const std::vector<SectionRange>& wanted,
                                  const std::vector<SectionRange>& held, size_t most);

}  // namespace isthmus
