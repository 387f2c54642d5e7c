// What isthmusctl is asked to do.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace isthmus {

enum class Command {
  kHelp,
  kVersion,
  kRunsShow,
  kRunsList,
  kRunsCheckpoint,
  kRunsCreate,
  kRunsFork,
  kRunsUpdate,
  kRunsPause,
  kRunsResume,
  kRunsChoose,
  kCheckpointExport,
  kNodesList,
  kNodesDrain,
  kNodesEvict,
  kNodesAdmit,
  kRoundsList,
  kRoundsWatch,
  kPresets,
  kHealth,
};

struct Request {
  Command command = Command::kHelp;
  std::string run;   // empty: the coordinator's own
  std::string node;  // of the commands that are about one
  std::string name;  // of a new run
  std::string file;
  std::vector<std::string> fields;  // "optimizer.lr=0.0005", of those that set some
};

// Whether text can be sent at all. INVALID_ARGUMENT: it is no UTF-8; names `what` and its
// beginning.
absl::Status CheckText(absl::string_view what, absl::string_view text);

// From the arguments that are no flags. INVALID_ARGUMENT: no command, one that does not exist (with
// the nearest ones), too many words, no node or run where one must be named, or no UTF-8.
absl::StatusOr<Request> ReadRequest(const std::vector<std::string>& words);

// What `isthmusctl help` prints.
std::string HelpText();

}  // namespace isthmus
