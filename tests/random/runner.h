// Runs a job: every rank and dedicated server as threads of this process, each rank's lanes as
// threads of their own. Whatever is not as it should be ends the process (watchdog.h: fail()).
#pragma once

#include <cstdint>

namespace herring::random_test {

struct JobPlan {
  uint64_t seed = 0;
  uint32_t features = ~0u;
  uint32_t programs = 20;
  int only = -1;         // run this program alone
  bool verbose = false;
};

struct Tally {
  uint64_t jobs = 0, programs = 0, calls = 0, errors = 0;
};

// What ran: programs, operations that ranks called, and how many of them ended with an error that
// the program explains.
Tally run_job(const JobPlan& plan);

}  // namespace herring::random_test
