// Judges a history that real processes have recorded (tests/history/json_lines.h):
//
//   check_history FILE open          a run that goes on, or was cut
//   check_history FILE complete      a run that has ended in good order: nothing may be open
//   check_history FILE complete 50   one with so many local steps in each round
//
// Exits with 0 when it is good, 1 when it is not, 2 when it cannot be read.
#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "tests/history/checker.h"
#include "tests/history/json_lines.h"

int main(int argc, char** argv) {
  using isthmus::Violation;
  const bool complete = argc >= 3 && std::string(argv[2]) == "complete";
  const bool open = argc >= 3 && std::string(argv[2]) == "open";
  uint64_t local_steps = 1;
  if (argc > 4 || !(open || complete) ||
      (argc == 4 && (!absl::SimpleAtoi(argv[3], &local_steps) || local_steps == 0))) {
    std::fprintf(stderr, "usage: check_history FILE open|complete [LOCAL_STEPS]\n");
    return 2;
  }
  const absl::StatusOr<isthmus::History> history = isthmus::ReadHistory(argv[1]);
  if (!history.ok()) {
    std::fprintf(stderr, "%s\n", std::string(history.status().message()).c_str());
    return 2;
  }
  isthmus::HistoryChecker checker(nullptr, 0, local_steps);
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
