// Numbers in the words of people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace isthmus {

// "0.3 s", "12 s", "4 min 5 s", "3 h 20 min", "5 d 2 h".
std::string Span(uint64_t ms);
// "12 s ago".
std::string Ago(uint64_t ms);
// "512 B", "39.3 KiB", "1.5 GiB".
std::string Size(uint64_t bytes);
// "842,112".
std::string Grouped(uint64_t number);
// "a", "a and b", "a, b and c"; of more than `most` names "a, b and 7 more".
std::string List(const std::vector<std::string>& names, size_t most);
// Single characters added, removed or replaced to get from one to the other.
size_t EditDistance(absl::string_view a, absl::string_view b);

}  // namespace isthmus
