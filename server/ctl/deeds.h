// What isthmusctl says when it has changed something: what happened, and what to do next.
#pragma once

#include <string>

#include "isthmus/v1/admin.pb.h"

namespace isthmus {

std::string DrainedText(const std::string& node, const v1::DrainNodeResponse& drained);
std::string EvictedText(const std::string& node);
std::string AdmittedText(const std::string& node);
std::string CreatedText(const v1::CreateRunResponse& created);
std::string ForkedText(const std::string& run, const v1::ForkRunResponse& forked);
std::string UpdatedText(const std::string& run, const v1::UpdateRunResponse& updated, bool dry_run);
std::string PausedText(const std::string& run, const v1::PauseRunResponse& paused);
std::string ResumedText(const std::string& run);
std::string ChosenText(const std::string& run, const v1::ChooseStateResponse& chosen);
std::string CheckpointText(const v1::CheckpointRunResponse& asked);

}  // namespace isthmus
