// What `isthmusctl presets` prints.
#pragma once

#include <string>

namespace isthmus {

// Every preset with its paper, what it is for, and the values it stands for, as a RunSpec has them.
std::string PresetsText();

}  // namespace isthmus
