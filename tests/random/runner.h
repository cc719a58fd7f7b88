// Runs a job. Every rank and dedicated server is a thread of this process, and so is each lane of a
// rank. Any fault ends the process (watchdog.h: fail()).
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

// Returns the numbers of programs that ran, of operations that ranks called, and of operations that
// ended with an error that the program explains.
Tally run_job(const JobPlan& plan);

}  // namespace herring::random_test
