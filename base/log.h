// One line per event on stderr: time, level, process name, event in words, then key=value fields.
//
//   LogInfo("round committed", {{"round", "17"}, {"included", "2"}});
//
// Thread-safe. Never log payloads or secrets.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace isthmus {

using LogFields = std::vector<std::pair<std::string, std::string>>;

// Names this process in every line and sets the least level shown: "debug", "info", "warning",
// "error". Call once at start.
void StartLog(absl::string_view process, absl::string_view level);

void LogDebug(absl::string_view event, const LogFields& fields = {});
void LogInfo(absl::string_view event, const LogFields& fields = {});
void LogWarning(absl::string_view event, const LogFields& fields = {});
void LogError(absl::string_view event, const LogFields& fields = {});

}  // namespace isthmus
