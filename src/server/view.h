// What a server sees of its job at one moment, for the reports to the rendezvous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "observe/lateness.h"
#include "observe/report.h"

namespace herring::server {

// The report without what the process tells of itself, and what the report is made from. Calls and
// segments are those of this server alone, and without partial all-reduces, where ranks are late by
// design. A shard counts in `sum_time` from the last segment of the last contributor until the last
// result was given to its flow. So a slow reader or path does not count, but a slow processor does.
struct ServerView : observe::Report {
  static constexpr size_t kMostMissing = 16, kMostMessages = 32;
  // Shorter waits are not listed as missing.
  static constexpr Nanos kLeastWait = 500 * kMillisecond;

  std::vector<observe::Lateness> ranks;  // by rank of the job: a copy is cheaper than a search
  // Messages that one rank has given or asked for, and the other rank has not.
  std::vector<observe::Missing> messages;
  // The counters of flows were true at `seen`, a twentieth of a second before at most unless a
  // proxy is held up.
  Nanos seen = 0;
  size_t undelivered = 0;  // bytes that have not reached the workers
  size_t announced = 0;    // calls of single ranks that wait for the others

  // Adds the counts of one part of the server.
  void add(const std::vector<observe::Lateness>& counted);
  // Completes the report: `missing` has at most kMostMissing waits, the oldest first, and then the
  // messages; `paths` has each rank once, in order.
  void arrange();
};

}  // namespace herring::server
