#include "server/ctl/commands.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/ctl/words.h"

namespace isthmus {
namespace {

// What follows a command: nothing, perhaps a run, the node that it is about, a file, or a run (and
// the name of a new one) with fields of its spec.
enum class Takes { kNothing, kRun, kNode, kFile, kRunAndFields, kRunNameAndFields };

struct Known {
  const char* words;
  Command command;
  Takes takes;
  const char* purpose;
};

const char* Usage(Takes takes) {
  switch (takes) {
    case Takes::kNothing:
      break;
    case Takes::kRun:
      return " [RUN]";
    case Takes::kNode:
      return " NODE";
    case Takes::kFile:
      return " SPEC_FILE";
    case Takes::kRunNameAndFields:
      return " RUN NEW_NAME [FIELD=VALUE...]";
    case Takes::kRunAndFields:
      return " RUN [FIELD=VALUE...]";
  }
  return "";
}

constexpr Known kCommands[] = {
    {"runs show", Command::kRunsShow, Takes::kRun,
     "what the run waits for, since when, and its numbers"},
    {"runs list", Command::kRunsList, Takes::kNothing, "the coordinator's runs, one a line"},
    {"runs checkpoint", Command::kRunsCheckpoint, Takes::kRun,
     "keep a snapshot of the next round that opens"},
    {"runs create", Command::kRunsCreate, Takes::kFile, "add a run to the coordinator"},
    {"runs fork", Command::kRunsFork, Takes::kRunNameAndFields,
     "a new run from the newest snapshot (or of --round) of another "
     "one,\n"
     "                         with its spec or another (--set, --spec)"},
    {"runs update", Command::kRunsUpdate, Takes::kRunAndFields,
     "another spec from the next round on (--set, --spec, "
     "--from_round,\n"
     "                         --dry_run), such as optimizer.lr=0.0005"},
    {"runs pause", Command::kRunsPause, Takes::kRun,
     "let the open round finish and open no other (--reason)"},
    {"runs resume", Command::kRunsResume, Takes::kRun, "let rounds open again"},
    {"runs choose", Command::kRunsChoose, Takes::kRun,
     "where nodes' states differ without a majority: the state of --node is\n"
     "                         right, and those that differ start from a snapshot"},
    {"checkpoint export", Command::kCheckpointExport, Takes::kRun,
     "the parameters of the newest snapshot (or of --round), checked against\n"
     "                         its hash, as a safetensors file (--out)"},
    {"nodes list", Command::kNodesList, Takes::kRun,
     "every node: its state, and what it waits for"},
    {"nodes drain", Command::kNodesDrain, Takes::kNode,
     "let it finish the open round and take part in no other (--reason);\n"
     "                         then it may be stopped and nobody waits for it"},
    {"nodes evict", Command::kNodesEvict, Takes::kNode,
     "take it out at once, with what it sent for the open round, and\n"
     "                         refuse it from then on (--reason)"},
    {"nodes admit", Command::kNodesAdmit, Takes::kNode, "take a drain or an eviction back"},
    {"rounds list", Command::kRoundsList, Takes::kRun,
     "the newest rounds (--limit), and who was in them"},
    {"rounds watch", Command::kRoundsWatch, Takes::kRun,
     "a line for every change; ends when the run is finished"},
    {"health", Command::kHealth, Takes::kNothing,
     "whether it serves, for supervisors and probes: exit code 0, 1 or 3"},
    {"presets", Command::kPresets, Takes::kNothing,
     "the methods that a run spec may name, with their papers and values"},
    {"version", Command::kVersion, Takes::kNothing, "the version of isthmusctl"},
    {"help", Command::kHelp, Takes::kNothing, "this text"},
};

// Where the purposes begin in the help, after its margin of two; a command that leaves no space
// before that has a line to itself.
constexpr size_t kPurposeColumn = 23;

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

// A run, perhaps the name of a new one, and fields.
absl::StatusOr<Request> ReadFields(const Known& known, const std::vector<std::string>& words) {
  Request request;
  request.command = known.command;
  std::vector<std::string> names;
  for (const std::string& word : words) {
    (absl::StrContains(word, '=') ? request.fields : names).push_back(word);
  }
  const bool has_name = known.takes == Takes::kRunNameAndFields;
  const size_t count = has_name ? 2 : 1;
  if (names.size() < count) {
    return absl::InvalidArgumentError(absl::StrCat("'", known.words, "' needs the name of a run",
                                                   has_name ? ", and one for the new run" : "",
                                                   "; 'isthmusctl runs list' shows them"));
  }
  if (names.size() > count) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", known.words, "': '", names.back(), "' is no FIELD=VALUE"));
  }
  request.run = names[0];
  if (has_name) request.name = names[1];
  return request;
}

}  // namespace

absl::Status CheckText(absl::string_view what, absl::string_view text) {
  if (IsUtf8(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is not UTF-8 ('",
                                                 absl::CHexEscape(text.substr(0, kNameBytesMax)),
                                                 "'), and no coordinator takes anything else"));
}

absl::StatusOr<Request> ReadRequest(const std::vector<std::string>& words) {
  if (words.empty()) {
    return absl::InvalidArgumentError("no command was given; 'isthmusctl help' lists them");
  }
  for (const std::string& word : words) ISTHMUS_RETURN_IF_ERROR(CheckText("an argument", word));
  for (const Known& known : kCommands) {
    const std::string name = known.words;
    const auto count = static_cast<size_t>(std::count(name.begin(), name.end(), ' ')) + 1;
    if (words.size() < count) continue;
    if (absl::StrJoin(words.begin(), words.begin() + count, " ") != name) continue;
    if (known.takes == Takes::kRunAndFields || known.takes == Takes::kRunNameAndFields) {
      return ReadFields(known, {words.begin() + static_cast<ptrdiff_t>(count), words.end()});
    }
    Request request;
    request.command = known.command;
    const size_t more = words.size() - count;
    if (more > (known.takes == Takes::kNothing ? 0 : 1)) {
      const char* const takes = known.takes == Takes::kFile   ? "one file"
                                : known.takes == Takes::kRun  ? "one run"
                                : known.takes == Takes::kNode ? "one node"
                                                              : "no argument";
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' takes ", takes, ", and '", words.back(), "' is one too many"));
    }
    if (known.takes == Takes::kNode && more == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", name, "' needs the name of a node; 'isthmusctl nodes list' shows them"));
    }
    if (known.takes == Takes::kFile && more == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' needs the file with the run's spec"));
    }
    if (more == 1) {
      (known.takes == Takes::kNode   ? request.node
       : known.takes == Takes::kFile ? request.file
                                     : request.run) = words.back();
    }
    return request;
  }
  const std::string asked = absl::StrJoin(words, " ");
  return absl::InvalidArgumentError(
      absl::StrCat("there is no command '", asked, "'", Suggestions(asked)));
}

std::string HelpText() {
  std::string text =
      "isthmusctl shows what a coordinator's run does and what it waits for, and changes who takes "
      "part.\n\n"
      "usage: isthmusctl [FLAGS] COMMAND\n\n";
  for (const Known& known : kCommands) {
    std::string words = absl::StrCat("  ", known.words, Usage(known.takes));
    if (words.size() > kPurposeColumn) absl::StrAppend(&words, "\n");
    const size_t line = words.back() == '\n' ? words.size() : 0;
    words.resize(line + 2 + kPurposeColumn, ' ');
    absl::StrAppend(&text, words, known.purpose, "\n");
  }
  absl::StrAppend(
      &text,
      "\n"
      "  --server=HOST:PORT  the coordinator; default: the variable ISTHMUS_SERVER, else "
      "127.0.0.1:7070\n"
      "  --timeout=10s       longest wait for an answer\n"
      "  --json              for programs: the messages of isthmus.v1.MonitorService and "
      "AdminService\n"
      "  --limit=20          rounds of 'rounds list'\n"
      "  --run=RUN           of commands about a node, where the coordinator has several runs\n"
      "  --set=FIELD=VALUE   of 'runs update' and 'runs fork': fields of the spec, by comma\n"
      "  --spec=FILE         the same: a whole spec\n"
      "  --from_round=N      of 'runs update': the first round it holds in; default: the next one\n"
      "  --dry_run           of 'runs update': only say what would change\n"
      "  --round=N           of 'checkpoint export' and 'runs fork': the snapshot; default: the "
      "newest\n"
      "  --out=FILE          of 'checkpoint export': the file to write\n"
      "  --reason=TEXT       why, of 'nodes drain', 'nodes evict' and 'runs pause': for the log,\n"
      "                      the nodes, and those who look\n\n"
      "exit codes: 0 done, 1 the coordinator refused, 2 wrong usage, 3 not reachable\n");
  return text;
}

}  // namespace isthmus
