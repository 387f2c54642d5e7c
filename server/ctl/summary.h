// The one sentence for somebody who looks at a run in the middle of the night.
#pragma once

#include <string>
#include <vector>

#include "isthmus/v1/monitor.pb.h"

namespace isthmus {

// What the run waits for, since when, and which node to look at; or that it runs, or is finished.
std::string SummaryOf(const v1::Run& run, const std::vector<v1::Node>& nodes);

// Whether the open round takes so much longer than usual that somebody should look.
bool StandsStill(const v1::Run& run);

}  // namespace isthmus
