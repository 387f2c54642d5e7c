// The settings that all ranks of a node share. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "isthmus/v1/coordinator.pb.h"

namespace isthmus {

// INVALID_ARGUMENT: a name that is empty, too long or given twice. RESOURCE_EXHAUSTED: more than
// kSettingsMax.
absl::Status CheckSettings(const v1::RankInfo& info);

// The first setting, by name, that is not the same: "data_bytes (10 and 12)". Empty: none.
std::string SettingsDifference(const v1::RankInfo& one, const v1::RankInfo& other);

}  // namespace isthmus
