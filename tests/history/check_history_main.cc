// Judges a history that real processes have recorded (tests/history/json_lines.h):
//
//   check_history FILE            a run that goes on, or was cut
//   check_history FILE complete   a run that has ended in good order: nothing may be open
//
// Exits with 0 when it is good, 1 when it is not, 2 when it cannot be read.
#include <cstdio>
#include <string>

#include "tests/history/checker.h"
#include "tests/history/json_lines.h"

int main(int argc, char** argv) {
  using isthmus::Violation;
  const bool complete = argc == 3 && std::string(argv[2]) == "complete";
  if (argc != 2 && !complete) {
    std::fprintf(stderr, "usage: check_history FILE [complete]\n");
    return 2;
  }
  const absl::StatusOr<isthmus::History> history = isthmus::ReadHistory(argv[1]);
  if (!history.ok()) {
    std::fprintf(stderr, "%s\n", std::string(history.status().message()).c_str());
    return 2;
  }
  isthmus::HistoryChecker checker(nullptr);
  for (const isthmus::Event& event : *history) checker.Take(event);
  if (complete) checker.Finish();
  for (const Violation& one : checker.violations()) {
    std::printf("%s: %s (event %zu: %s)\n", one.invariant.c_str(), one.sentence.c_str(), one.event,
                isthmus::Describe((*history)[one.event]).c_str());
  }
  const isthmus::HistoryChecker::Ledger ledger = checker.ledger();
  std::printf("%zu events, %llu rounds; contributions included %llu, left out %llu, dropped %llu\n",
              history->size(), static_cast<unsigned long long>(checker.last_durable()),
              static_cast<unsigned long long>(ledger.included),
              static_cast<unsigned long long>(ledger.left_out),
              static_cast<unsigned long long>(ledger.dropped));
  return checker.violations().empty() ? 0 : 1;
}
