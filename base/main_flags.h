// What the command lines of all processes have in common. For the files with main only.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace isthmus {

// Exit code for wrong flags; 1 is for what fails later.
inline constexpr int kExitFlags = 2;

struct Program {
  std::string name;     // "coordinator"
  std::string version;  // "0.1.0"
  std::string purpose;  // a sentence for --help
};

// Sets the flags from the command line. --help and --version print and end the process with 0, a
// flag that does not exist or does not parse ends it with kExitFlags.
// INVALID_ARGUMENT: an argument that is no flag.
absl::Status ReadFlags(const Program& program, int argc, char** argv);
// The same for a program with commands: returns the arguments that are no flags.
std::vector<std::string> ReadFlagsAndWords(const Program& program, int argc, char** argv);

// INVALID_ARGUMENT unless `level` is one that StartLog knows.
absl::Status CheckLogLevel(absl::string_view level);

// Writes the addresses served, one a line, into a file that appears whole. An empty path: nothing.
absl::Status WriteReadyFile(const std::string& path, const std::vector<std::string>& addresses);

}  // namespace isthmus
