// The program that makes the strict links of herring_lab.emulate.Cluster; see switch.h.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include "switch/switch.h"

int main() {
  // Programs that compute on this machine must not delay its network. Without the right to a
  // real-time priority the switch uses the best nice value; the report shows how late packets were.
  sched_param priority{.sched_priority = 1};
  if (sched_setscheduler(0, SCHED_FIFO, &priority) != 0) setpriority(PRIO_PROCESS, 0, -20);
  prctl(PR_SET_TIMERSLACK, 1);
  herring::Status status = herring::lab::run_switch(STDIN_FILENO, STDOUT_FILENO);
  if (status.ok()) return 0;
  std::fprintf(stderr, "herring_lab_switch: %s\n", status.message().c_str());
  return 2;
}
