// What a server sees of its job at one moment, for the reports to the rendezvous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "observe/lateness.h"

namespace herring::server {

struct ServerView {
  static constexpr size_t kMostMissing = 16, kMostMessages = 32;
  // Shorter waits are not listed as missing.
  static constexpr Nanos kLeastWait = 500 * kMillisecond;

  // A call, or a round of which one or several shards are to be summed here, that waits for ranks.
  struct Missing {
    std::string what;  // "allreduce 'x'", or "'resnet' (round 7)"
    Nanos since = 0;   // when the wait began
    std::vector<uint32_t> ranks;  // of the job, ascending: those that have not come, or are behind
  };
  // A message that one rank has given or asked for, and the other rank has not.
  struct Message {
    std::string what;  // "receive from rank 2 (tag 7)"
    Nanos since = 0;
    uint32_t by = 0;   // the rank that has posted it, of the job
    std::optional<uint32_t> other;  // the rank that has not; none: it may be any one
  };
  struct Path {
    uint32_t rank = 0;
    Nanos rtt = 0;             // the longest of the worker's flows
    uint64_t retransmits = 0;  // without those that turned out to be unneeded
  };

  // By rank of the job, and complete: a copy is cheaper than a search. Calls and segments are those
  // of this server alone, and without partial all-reduces, where ranks are late by design.
  std::vector<observe::Lateness> ranks;
  // Shards whose results were all sent, and how long that took the server: from the last segment of
  // the last contributor until the last result was given to its flow. So a slow reader or path does
  // not count, but a slow processor does.
  uint64_t sums = 0;
  Nanos sum_time = 0;
  // The fields of this paragraph were true at `seen`, a twentieth of a second before at most unless
  // a proxy is held up.
  Nanos seen = 0;
  size_t undelivered = 0;   // bytes that have not reached the workers
  uint64_t bytes_in = 0, bytes_out = 0, retransmits = 0;
  std::vector<Path> paths;  // to workers that have been connected, by rank
  // Shards that are being summed, and calls of single ranks that wait for the others.
  size_t in_flight = 0, announced = 0;
  std::vector<Missing> missing;  // the oldest first, at most kMostMissing
  std::vector<Message> messages;  // likewise, at most kMostMessages

  // Brings the lists into their order, and bounds them.
  void arrange();
};

}  // namespace herring::server
