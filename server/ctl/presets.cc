#include "server/ctl/presets.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "spec/presets.h"

namespace isthmus {
namespace {

// Longer lines go on in the next one, between fields.
constexpr size_t kLineMax = 96;

void AppendLine(absl::string_view fields, std::string* text) {
  std::vector<std::string> words;
  for (const absl::string_view word : absl::StrSplit(fields, ' ', absl::SkipEmpty())) {
    if (!words.empty() && words.back().back() == ':') {
      absl::StrAppend(&words.back(), " ", word);  // a value stays with its name
    } else {
      words.emplace_back(word);
    }
  }
  std::string line = "   ";
  for (const std::string& word : words) {
    if (line.size() + 1 + word.size() > kLineMax) {
      absl::StrAppend(text, line, "\n");
      line = "       ";
    }
    absl::StrAppend(&line, " ", word);
  }
  absl::StrAppend(text, line, "\n");
}

// Fields of a RunSpec in text format, each on a line of its own, which can be copied into a spec.
std::string FieldLines(absl::string_view values) {
  std::string text, line;
  int depth = 0;
  for (const absl::string_view word : absl::StrSplit(values, ' ', absl::SkipEmpty())) {
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
    depth += word == "{" ? 1 : word == "}" ? -1 : 0;
    const bool ends_message = word == "}";
    const bool ends_value = word != "{" && word.back() != ':' && absl::StrContains(line, ": ");
    if (depth > 0 || (!ends_message && !ends_value)) continue;
    AppendLine(line, &text);
    line.clear();
  }
  return text;
}

}  // namespace

std::string PresetsText() {
  std::string text =
      "A run spec names one (preset: \"diloco\"); its own fields override single values.\n";
  for (const Preset& preset : Presets()) {
    absl::StrAppend(&text, "\n", preset.name, "  (", preset.paper, ")\n", "    ", preset.summary,
                    "\n", FieldLines(preset.values));
  }
  absl::StrAppend(
      &text,
      "\nLocal steps of a preset (schedule.local_steps) are its paper's. A run wants many rounds:\n"
      "with H local steps it has steps / H of them, and an outer momentum remembers some. What "
      "was\n"
      "measured with few rounds stands in docs/results/sign_momentum.md.\n");
  return text;
}

}  // namespace isthmus
