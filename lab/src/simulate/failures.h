// The data plane of a job whose servers die, in virtual time: the links of workers, with servers
// and proxies of real jobs, over modelled hosts and links. Everything that happens follows from a
// seed and the number of a schedule of faults. Servers are killed, cut off (they go on and know
// nothing) or replaced at random moments; each process hears of a change after a delay of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace herring::simulate {

struct FailureOptions {
  uint64_t seed = 1;      // of the job
  uint32_t schedule = 1;  // of its faults; 0: none
};

struct FailureReport {
  // The averages that each rank has got, as hashes by rank, round and buffer.
  std::vector<uint64_t> results;
  uint32_t kills = 0, cuts = 0, replacements = 0;
  double seconds = 0;       // virtual
  std::string description;  // of the job
};

// Runs the job of a seed with the faults of a schedule. Returns kTimeout with what was left if it
// does not end, or the error that a worker met.
Result<FailureReport> run_with_failures(const FailureOptions& options);

}  // namespace herring::simulate
