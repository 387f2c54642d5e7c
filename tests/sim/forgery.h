// Pieces that say of themselves that all is well, and are not what was computed.
#pragma once

#include <string>

namespace isthmus::sim {

// Replaces the last value in a piece of a contribution, and makes its checksum right again.
void SetLastValue(float value, std::string* piece);

}  // namespace isthmus::sim
