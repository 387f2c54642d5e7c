// The limit of open files and sockets of this process.
#pragma once

#include <cstdint>

namespace isthmus {

// Raises the soft limit to `wanted`, or as near as the hard limit lets it; never lowers it. Returns
// the limit that holds.
uint64_t RaiseDescriptorLimit(uint64_t wanted);

}  // namespace isthmus
