// Small jobs over real sockets in which one connection breaks. Ranks and dedicated servers are
// threads of this process; everything follows from a seed, but for what the system decides.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/connections/faulty.h"

namespace herring::connections_test {

// Which side of a connection between a worker and a server sends the frame.
enum class Side { kWorker, kServer };

// What is asked for; a seed determines the rest.
struct Wanted {
  uint64_t seed = 0;
  std::vector<Kind> kinds;      // one of them
  std::vector<Side> sides;
  std::vector<bool> failovers;
  bool verbose = false;
};

struct Tally {
  uint64_t jobs = 0, struck = 0, survived = 0, failed = 0;
  uint64_t restarts = 0;        // of servers that were given up
  Nanos longest = 0;            // from a fault to the end of a rank's program
  std::map<std::string, uint64_t> errors;  // by kind of fault and code
  void add(const Tally& other);
};

// Runs the job of a seed without a fault, then with one, and compares. Ends the process if it does
// not end as docs/failure.md promises.
Tally run_job(const Wanted& wanted);

}  // namespace herring::connections_test
