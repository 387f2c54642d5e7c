// JSON that came from somewhere else.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace isthmus {

// What config.json and index files of checkpoints have is nested three deep. The library copies and
// prints by recursion, so a file that is nested without end would end the process.
inline constexpr int kJsonDepthMax = 32;

// A discarded value where the text is not JSON, or is nested deeper than kJsonDepthMax.
inline nlohmann::ordered_json ParseJson(const std::string& text) {
  bool too_deep = false;
  const auto keep = [&too_deep](int depth, nlohmann::ordered_json::parse_event_t, auto&) {
    too_deep |= depth > kJsonDepthMax;
    return depth <= kJsonDepthMax;
  };
  nlohmann::ordered_json parsed = nlohmann::ordered_json::parse(text, keep, false);
  return too_deep ? nlohmann::ordered_json(nlohmann::ordered_json::value_t::discarded) : parsed;
}

}  // namespace isthmus
