// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), with SSE4.2 where the processor has it.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace isthmus {

// The checksum of `bytes`; `seed` is the checksum of what came before them (0 at the start).
uint32_t Crc32c(absl::string_view bytes, uint32_t seed = 0);

}  // namespace isthmus
