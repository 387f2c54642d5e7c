// Pieces that say of themselves that all is well, and are not what was computed.
#pragma once

#include <cstring>
#include <string>

#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "spec/piece.h"

namespace isthmus {

// Puts the right checksum on a piece that was changed on purpose.
inline void Reseal(std::string* piece) {
  // It stands last in the header and covers what is before it and the body.
  constexpr size_t kAt = kPieceHeaderBytes - sizeof(uint32_t);
  const absl::string_view bytes(*piece);
  const uint32_t crc = Crc32c(bytes.substr(kPieceHeaderBytes), Crc32c(bytes.substr(0, kAt)));
  for (size_t i = 0; i < sizeof(crc); ++i) (*piece)[kAt + i] = static_cast<char>(crc >> (8 * i));
}

// Replaces the last value in a piece whose values are float32 at its end.
inline void SetLastValue(float value, std::string* piece) {
  std::memcpy(&(*piece)[piece->size() - sizeof(value)], &value, sizeof(value));
  Reseal(piece);
}

}  // namespace isthmus
