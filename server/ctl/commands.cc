#include "server/ctl/commands.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "server/ctl/words.h"

namespace isthmus {
namespace {

struct Known {
  const char* words;
  Command command;
  bool takes_run;
  const char* purpose;
};

constexpr Known kCommands[] = {
    {"runs show", Command::kRunsShow, true, "what the run waits for, since when, and its numbers"},
    {"runs list", Command::kRunsList, false, "the coordinator's runs, one a line"},
    {"nodes list", Command::kNodesList, true, "every node: its state, and what it waits for"},
    {"rounds list", Command::kRoundsList, true, "the newest rounds (--limit), and who was in them"},
    {"rounds watch", Command::kRoundsWatch, true,
     "a line for every change; ends when the run is finished"},
    {"version", Command::kVersion, false, "the version of isthmusctl"},
    {"help", Command::kHelp, false, "this text"},
};

// Further than this two commands have nothing to do with each other.
constexpr size_t kSuggestDistanceMax = 3;

std::string Suggestions(const std::string& asked) {
  std::vector<std::string> near;
  for (const Known& known : kCommands) {
    const absl::string_view words = known.words;
    const absl::string_view group = words.substr(0, words.find(' '));
    // "runs" alone, "rounds tail", and letters in the wrong place.
    const absl::string_view first = absl::string_view(asked).substr(0, asked.find(' '));
    if (EditDistance(asked, words) <= kSuggestDistanceMax || EditDistance(first, group) <= 1) {
      near.push_back(absl::StrCat("'", words, "'"));
    }
  }
  if (near.empty()) return "; 'isthmusctl help' lists the commands";
  return absl::StrCat("; did you mean ", absl::StrJoin(near, " or "), "?");
}

}  // namespace

absl::StatusOr<Request> ReadRequest(const std::vector<std::string>& words) {
  if (words.empty()) {
    return absl::InvalidArgumentError("no command was given; 'isthmusctl help' lists them");
  }
  for (const Known& known : kCommands) {
    const std::string name = known.words;
    const auto count = static_cast<size_t>(std::count(name.begin(), name.end(), ' ')) + 1;
    if (words.size() < count) continue;
    if (absl::StrJoin(words.begin(), words.begin() + count, " ") != name) continue;
    Request request{known.command, ""};
    const size_t more = words.size() - count;
    if (more > (known.takes_run ? 1 : 0)) {
      return absl::InvalidArgumentError(absl::StrCat("'", name, "' takes ",
                                                     known.takes_run ? "one run" : "no argument",
                                                     ", and '", words.back(), "' is one too many"));
    }
    if (more == 1) request.run = words.back();
    return request;
  }
  const std::string asked = absl::StrJoin(words, " ");
  return absl::InvalidArgumentError(
      absl::StrCat("there is no command '", asked, "'", Suggestions(asked)));
}

std::string HelpText() {
  std::string text =
      "isthmusctl shows what a coordinator's run does, and what it waits for.\n\n"
      "usage: isthmusctl [FLAGS] COMMAND\n\n";
  for (const Known& known : kCommands) {
    std::string words = absl::StrCat(known.words, known.takes_run ? " [RUN]" : "");
    words.resize(20, ' ');
    absl::StrAppend(&text, "  ", words, known.purpose, "\n");
  }
  absl::StrAppend(
      &text,
      "\n"
      "  --server=HOST:PORT  the coordinator; default: the variable ISTHMUS_SERVER, else "
      "127.0.0.1:7070\n"
      "  --timeout=10s       longest wait for an answer\n"
      "  --json              for programs: the messages of isthmus.v1.MonitorService\n"
      "  --limit=20          rounds of 'rounds list'\n\n"
      "exit codes: 0 done, 1 the coordinator refused, 2 wrong usage, 3 not reachable\n");
  return text;
}

}  // namespace isthmus
