#include "base/main_flags.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace isthmus {
namespace {

// The flag library ends the process with 1 for a wrong flag and for --help alike.
constexpr int kFlagsRead = -1;
int flags_exit_code = kExitFlags;

void ExitWithFlagsCode() {
  if (flags_exit_code == kFlagsRead) return;
  std::cout.flush();  // _Exit does not
  std::fflush(nullptr);
  std::_Exit(flags_exit_code);
}

bool AsksForHelp(absl::string_view argument) {
  return argument == "--help" || argument == "-help" || argument == "--helpshort" ||
         argument == "--helpfull" || argument == "--helppackage" ||
         absl::StartsWith(argument, "--help=");
}

// By default the library shows the flags of files named as the program, which ours are not.
bool HasOurFlags(absl::string_view file) { return absl::EndsWith(file, "main.cc"); }

}  // namespace

std::vector<std::string> ReadFlagsAndWords(const Program& program, int argc, char** argv) {
  absl::SetProgramUsageMessage(program.purpose);
  absl::FlagsUsageConfig usage;
  usage.contains_helpshort_flags = HasOurFlags;
  usage.contains_help_flags = HasOurFlags;
  usage.contains_helppackage_flags = HasOurFlags;
  usage.version_string = [program] {
    flags_exit_code = 0;
    return absl::StrCat("isthmus ", program.name, " ", program.version, "\n");
  };
  absl::SetFlagsUsageConfig(usage);
  for (int i = 1; i < argc; ++i) {
    if (AsksForHelp(argv[i])) flags_exit_code = 0;
  }
  std::atexit(ExitWithFlagsCode);
  const std::vector<char*> positional = absl::ParseCommandLine(argc, argv);
  flags_exit_code = kFlagsRead;
  return std::vector<std::string>(positional.begin() + 1, positional.end());
}

absl::Status ReadFlags(const Program& program, int argc, char** argv) {
  const std::vector<std::string> words = ReadFlagsAndWords(program, argc, argv);
  if (words.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", words.front(), "' is no flag; flags begin with --"));
}

absl::Status CheckLogLevel(absl::string_view level) {
  for (absl::string_view known : {"debug", "info", "warning", "error"}) {
    if (level == known) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--log_level is '", level, "'; it is debug, info, warning or error"));
}

absl::Status WriteReadyFile(const std::string& path, const std::vector<std::string>& addresses) {
  if (path.empty()) return absl::OkStatus();
  // Whoever waits for the file must not see half of it.
  const std::string temporary = absl::StrCat(path, ".new");
  std::ofstream file(temporary);
  for (const std::string& address : addresses) file << address << "\n";
  file.close();
  if (file && std::rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot write --ready_file ", path));
}

}  // namespace isthmus
