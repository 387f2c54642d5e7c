// A copy of what one rank holds of the replicated state, to be uploaded as a part of a snapshot.
#pragma once

#include <cstdint>
#include <vector>

#include "isthmus/v1/coordinator.pb.h"

namespace isthmus {

struct SnapshotParts {
  struct Part {
    uint32_t section = 0;
    uint64_t begin = 0;  // of the section's elements
    std::vector<float> values;
  };
  v1::SnapshotFacts facts;
  std::vector<Part> parts;  // ascending and disjoint
};

}  // namespace isthmus
