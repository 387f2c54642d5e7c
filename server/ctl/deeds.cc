#include "server/ctl/deeds.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/sha256.h"
#include "server/ctl/words.h"
#include "spec/run_spec.h"

namespace isthmus {

std::string DrainedText(const std::string& node, const v1::DrainNodeResponse& drained) {
  const std::string round = drained.last_round() == 0
                                ? "No round counts on it; it may be stopped now"
                                : absl::StrCat("It finishes round ", Grouped(drained.last_round()),
                                               "; when that is committed it may be stopped");
  return absl::StrCat(
      "Node ", node, " drains: it gets updates and takes part in no further round.\n", round,
      ", and nobody waits for it.\n'isthmusctl nodes admit ", node, "' takes it back.\n");
}

std::string EvictedText(const std::string& node) {
  return absl::StrCat(
      "Node ", node,
      " is evicted: what it sent for the open round does not count, its trainers end, and it may "
      "not join.\n'isthmusctl nodes admit ",
      node, "' lets it in again; then start what has ended of it.\n");
}

std::string AdmittedText(const std::string& node) {
  return absl::StrCat("Node ", node,
                      " is admitted: it takes part as soon as it is connected and holds the last "
                      "round.\nStart its agent and trainers if they do not run.\n");
}

namespace {

std::string WarningLines(const v1::RunSpec& spec) {
  std::string text;
  for (const std::string& warning : SpecWarnings(spec)) {
    absl::StrAppend(&text, "Warning: ", warning, "\n");
  }
  return text;
}

}  // namespace

std::string CreatedText(const v1::CreateRunResponse& created) {
  return absl::StrCat("Run ", created.spec().run(),
                      " is there; its agents join with --run=", created.spec().run(), ".\n",
                      WarningLines(created.spec()));
}

std::string ForkedText(const std::string& run, const v1::ForkRunResponse& forked) {
  const std::string& name = forked.spec().run();
  std::string text = absl::StrCat(
      "Run ", name, " is there; it starts at step 0 from the state of run ", run, " after round ",
      Grouped(forked.round()), " (start state ", HexPrefix(forked.state_sha256()), ").\n");
  if (!forked.without().empty()) {
    absl::StrAppend(&text, "It starts without ", forked.without(), ".\n");
  }
  return absl::StrCat(text, "All of its nodes fetch that state; its agents join with --run=", name,
                      ".\n", WarningLines(forked.spec()));
}

std::string UpdatedText(const std::string& run, const v1::UpdateRunResponse& updated,
                        bool dry_run) {
  if (updated.changes().empty()) {
    return absl::StrCat("Nothing changes: run ", run, " has this spec (revision ",
                        updated.revision(), ") already.\n");
  }
  std::string text = absl::StrCat("Revision ", updated.revision(), " of run ", run,
                                  dry_run ? " would hold" : " holds", " from round ",
                                  Grouped(updated.from_round()), " on:\n");
  for (const v1::SpecChange& change : updated.changes()) {
    absl::StrAppend(&text, "  ", change.field(), ": ",
                    change.before().empty() ? "not set" : change.before(), " -> ",
                    change.after().empty() ? "not set" : change.after(), "\n");
  }
  return text;
}

std::string PausedText(const std::string& run, const v1::PauseRunResponse& paused) {
  const std::string last =
      paused.last_round() == 0
          ? "No round is open"
          : absl::StrCat("Round ", Grouped(paused.last_round()), " is finished first");
  return absl::StrCat("The run pauses. ", last,
                      "; nodes stay connected, and no other round opens until 'isthmusctl runs "
                      "resume",
                      run.empty() ? "" : " ", run, "'.\n");
}

std::string ResumedText(const std::string& run) {
  return absl::StrCat(run.empty() ? "The run" : absl::StrCat("Run ", run),
                      " goes on: rounds open again.\n");
}

std::string ChosenText(const std::string& run, const v1::ChooseStateResponse& chosen) {
  return absl::StrCat(
      "The state ", HexPrefix(chosen.sha256()), " after round ", Grouped(chosen.round()),
      " is right, which ", absl::StrJoin(chosen.right(), ", "), " had; ",
      absl::StrJoin(chosen.healing(), ", "),
      " start from a snapshot of it. Nothing of them counts until they have.\n",
      run.empty() ? "The run" : absl::StrCat("Run ", run), " goes on: rounds open again.\n");
}

std::string CheckpointText(const v1::CheckpointRunResponse& asked) {
  return absl::StrCat(
      "A snapshot of round ", Grouped(asked.round()),
      " will be kept. A node uploads it while the rounds go on; of a model that the "
      "coordinator hosts, it keeps its own.\n");
}

}  // namespace isthmus
