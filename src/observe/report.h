// What a process tells the rendezvous about itself, about once a second. Reports of all processes
// together say who is late, what binds and why something hangs (monitor.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "observe/deadlock.h"
#include "observe/group_book.h"
#include "observe/lateness.h"
#include "observe/operations.h"

namespace herring::observe {

// A round of a planned operation as one rank saw it. Times are in that rank's clock, 0 if unknown.
// The time of a round divides into phases: until `ready` the rank computes; until `reduced` its
// node combines; until `pushed` its bytes leave; until `done` results come.
struct RoundSample {
  uint32_t group = 0, stream = 0, round = 0;
  Nanos before = 0;   // when the previous round of the same operation was done
  Nanos called = 0;   // when the program began the round
  Nanos ready = 0;    // when the rank had given all its data
  Nanos reduced = 0, pushed = 0;  // when this was so for its last buffer
  Nanos done = 0;     // when all results were in place
  Nanos waited = 0;   // how long the program waited for them
  uint64_t bytes = 0;
};

// Counters of the operating system for the whole process, since its start.
struct Resources {
  uint64_t memory = 0;        // bytes in physical memory now
  uint64_t major_faults = 0;  // pages that had to be read from a disk
  Nanos cpu = 0;              // processor time of all threads
  // How long threads were ready to run and had no processor: the main thread, or all of them.
  Nanos run_delay = 0;
};

// Reads the counters of this process. `all_threads`: the delays of threads add up. Fields that the
// system does not tell are 0.
Resources own_resources(bool all_threads = false);

// A connection between a worker and a server, as the sender of the report sees it.
struct PathReport {
  uint32_t index = 0;  // server in the report of a worker, rank in that of a server
  Nanos rtt = 0, shortest_rtt = 0;
  uint64_t retransmits = 0;
};

// An operation for which some rank waits while others have not come.
struct Missing {
  std::string what;
  Nanos age = 0;
  std::vector<uint32_t> ranks;  // that have not come, of the job; of a message, empty: any rank
  // In a message, the rank that waits for the other one. `what` then begins with "send" or
  // "receive".
  std::optional<uint32_t> by = std::nullopt;
};

struct Report {
  Nanos sent = 0;           // in the sender's clock
  Nanos offset = 0;         // clock of the rendezvous minus the sender's, as the sender measured it
  Nanos offset_error = -1;  // bound of its error; -1: not measured yet
  Still still;              // whether the process has stood still, in its own clock

  // What the program does. Workers only.
  std::string where;        // the operation in which it waits; empty while it computes
  Nanos age = 0;            // for how long it has waited or computed
  std::string stack;        // where its code is, if it was asked
  std::string cause;        // what kind of code that is, such as "input"
  uint64_t rounds = 0, calls = 0, in_flight = 0;
  uint64_t credit = 0;      // bytes
  uint64_t kept = 0;        // bytes kept for others, who may lack them when a server dies
  std::vector<RoundSample> samples;
  uint32_t stride = 1;      // samples are of the rounds whose number is a multiple of this
  std::vector<GroupNews> groups;           // what is new; at most kMostGroupNews of them
  std::vector<OperationCount> operations;  // that have ended since the start of the job

  Resources resources;
  uint64_t bytes_sent = 0, bytes_received = 0, retransmits = 0;
  std::vector<PathReport> paths;

  // Servers only.
  // By rank, without ranks that were not active; at most 8,192 of them.
  std::vector<std::pair<uint32_t, Lateness>> lateness;
  uint64_t sums = 0;
  Nanos sum_time = 0;       // between last contributions and results, over all sums
  std::vector<Missing> missing;
};

inline constexpr size_t kMostSamples = 64, kMostPaths = 4096, kMostMissing = 64;
inline constexpr size_t kMostTextBytes = 512;  // texts in a report are cut to this size

std::string encode(const Report& report);
// Checks every length and count. Texts come out printable.
Result<Report> decode_report(std::string_view payload);

// What the rendezvous tells all members about a rank.
struct RankText {
  uint32_t rank = 0;
  // What it does while others wait for it: "has been computing for 12 s". Empty if it is only late
  // in many steps.
  std::string text;
  // How long a rank usually computes in a step, so that a late one can find out what it does after
  // that; 0 if not known.
  Nanos usual = 0;
  Nanos late = 0;  // how much later than the median rank it gives its data, on average

  friend bool operator==(const RankText&, const RankText&) = default;
};
using RankTexts = std::vector<RankText>;
// Returns the texts by rank, without empty ones.
std::map<uint32_t, std::string> states_of(const RankTexts& texts);
inline constexpr size_t kMostRankTexts = 64;
std::string encode(const RankTexts& texts);
Result<RankTexts> decode_rank_texts(std::string_view payload);

}  // namespace herring::observe
