// The version of the coordinator: semantic, of the whole project.
#pragma once

namespace isthmus {

inline constexpr char kServerVersion[] = "0.1.0";

}  // namespace isthmus
