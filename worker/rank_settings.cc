#include "worker/rank_settings.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace isthmus {
namespace {

constexpr char kNotSet[] = "not set";

std::map<std::string, std::string> ByName(const v1::RankInfo& info) {
  std::map<std::string, std::string> settings;
  for (const v1::Setting& setting : info.settings()) settings[setting.name()] = setting.value();
  return settings;
}

}  // namespace

absl::Status CheckSettings(const v1::RankInfo& info) {
  if (static_cast<size_t>(info.settings_size()) > kSettingsMax) {
    return absl::ResourceExhaustedError(absl::StrCat("rank ", info.rank(), " sends ",
                                                     info.settings_size(),
                                                     " settings; the limit is ", kSettingsMax));
  }
  std::set<std::string> names;
  for (const v1::Setting& setting : info.settings()) {
    if (setting.name().empty() || setting.name().size() > kNameBytesMax ||
        setting.value().size() > kReasonBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "setting '", setting.name().substr(0, kNameBytesMax), "' of rank ", info.rank(), " has ",
          setting.name().size(), " bytes of name and ", setting.value().size(),
          " of value; the limits are 1 to ", kNameBytesMax, " and ", kReasonBytesMax));
    }
    if (!names.insert(setting.name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", info.rank(), " names setting '", setting.name(), "' twice"));
    }
  }
  return absl::OkStatus();
}

std::string SettingsDifference(const v1::RankInfo& one, const v1::RankInfo& other) {
  const auto ours = ByName(one);
  const auto theirs = ByName(other);
  std::set<std::string> names;
  for (const auto& [name, value] : ours) names.insert(name);
  for (const auto& [name, value] : theirs) names.insert(name);
  for (const std::string& name : names) {
    const auto our = ours.find(name);
    const auto their = theirs.find(name);
    const std::string our_value = our == ours.end() ? kNotSet : our->second;
    const std::string their_value = their == theirs.end() ? kNotSet : their->second;
    if ((our == ours.end()) == (their == theirs.end()) && our_value == their_value) continue;
    return absl::StrCat(name, " (", our_value, " and ", their_value, ")");
  }
  return "";
}

}  // namespace isthmus
