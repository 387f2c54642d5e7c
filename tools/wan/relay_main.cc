// The relay of WAN in a box. Started by wan_box.py, which sends the commands (relay.h names them).
//
//   relay SEED
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "absl/strings/numbers.h"
#include "tools/wan/relay.h"

int main(int argc, char** argv) {
  uint64_t seed = 0;
  if (argc != 2 || !absl::SimpleAtoi(argv[1], &seed)) {
    std::fprintf(stderr, "usage: relay SEED, commands come by standard input\n");
    return 2;
  }
  // By default the kernel may wake a process 50 us late, which every packet would feel.
  prctl(PR_SET_TIMERSLACK, 1UL);
  // A link does not wait for a processor. Where this is not permitted it is as late as they are.
  sched_param priority = {};
  priority.sched_priority = sched_get_priority_min(SCHED_RR);
  sched_setscheduler(0, SCHED_RR, &priority);
  std::signal(SIGPIPE, SIG_IGN);
  auto relay = isthmus::wan::Relay::Create(seed);
  absl::Status status = relay.status();
  if (status.ok()) status = (*relay)->Run(STDIN_FILENO, STDOUT_FILENO, getppid());
  if (status.ok()) return 0;
  std::fprintf(stderr, "relay: %s\n", status.ToString().c_str());
  return 1;
}
