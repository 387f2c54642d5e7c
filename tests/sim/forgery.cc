#include "tests/sim/forgery.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "spec/piece.h"

namespace isthmus::sim {

void SetLastValue(float value, std::string* piece) {
  std::memcpy(&(*piece)[piece->size() - sizeof(value)], &value, sizeof(value));
  // The checksum stands last in the header and covers what is before it and the body.
  const size_t at = kPieceHeaderBytes - sizeof(uint32_t);
  const absl::string_view bytes = *piece;
  const uint32_t crc = Crc32c(bytes.substr(kPieceHeaderBytes), Crc32c(bytes.substr(0, at)));
  std::memcpy(&(*piece)[at], &crc, sizeof(crc));
}

}  // namespace isthmus::sim
