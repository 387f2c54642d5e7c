#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/limits.h"
#include "base/text.h"

namespace isthmus {
namespace {

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("isthmus",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %n %v");
    return made;
  }();
  return *logger;
}

std::string& ProcessName() {
  static std::string name = "isthmus";
  return name;
}

// Keeps one event on one line and one field in one word, whatever a peer sent.
std::string Quoted(const std::string& value) {
  const std::string line = OneLine(value, kLogFieldBytesMax);
  if (!line.empty() && line.find_first_of(" \"=") == std::string::npos) return line;
  return absl::StrCat("\"", absl::StrReplaceAll(line, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

void Log(spdlog::level::level_enum level, absl::string_view event, const LogFields& fields) {
  if (!Logger().should_log(level)) return;
  std::string line = absl::StrCat(ProcessName(), ": ", OneLine(event, kLogFieldBytesMax));
  for (const auto& [key, value] : fields) absl::StrAppend(&line, " ", key, "=", Quoted(value));
  Logger().log(level, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace

void StartLog(absl::string_view process, absl::string_view level) {
  ProcessName() = std::string(process);
  Logger().set_level(spdlog::level::from_str(std::string(level)));
  Logger().set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
}

void LogDebug(absl::string_view event, const LogFields& fields) {
  Log(spdlog::level::debug, event, fields);
}
void LogInfo(absl::string_view event, const LogFields& fields) {
  Log(spdlog::level::info, event, fields);
}
void LogWarning(absl::string_view event, const LogFields& fields) {
  Log(spdlog::level::warn, event, fields);
}
void LogError(absl::string_view event, const LogFields& fields) {
  Log(spdlog::level::err, event, fields);
}

}  // namespace isthmus
