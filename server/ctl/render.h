// Answers of MonitorService as text for a terminal.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "isthmus/v1/monitor.pb.h"

namespace isthmus {

std::string RunText(const v1::Run& run, const std::vector<v1::Node>& nodes);
std::string RunsText(const std::vector<v1::Run>& runs);
std::string NodesText(const std::vector<v1::Node>& nodes);
// Times of day in `zone`.
std::string RoundsText(const std::vector<v1::Round>& rounds, absl::TimeZone zone);
// One line, without its end.
std::string ChangeText(const v1::WatchRoundsResponse& change, absl::TimeZone zone);

}  // namespace isthmus
