// The description of a job's processes that everybody shares once registration is complete.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/settings.h"
#include "base/status.h"

namespace herring::control {

using Settings = std::map<std::string, std::string>;

// How long a process waits for the others, as its settings say.
struct Timings {
  explicit Timings(const herring::Settings& settings = {})
      : connect_timeout(from_seconds(settings.get_seconds("connect_timeout"))),
        heartbeat_interval(from_seconds(settings.get_seconds("heartbeat_interval"))),
        heartbeat_timeout(from_seconds(settings.get_seconds("heartbeat_timeout"))),
        warn_after(from_seconds(settings.get_seconds("warn_after"))) {}

  Nanos connect_timeout, heartbeat_interval, heartbeat_timeout;
  // The log says whom the process waits for then, or after kFirstReminder, and again.
  Nanos warn_after;
};

struct WorkerInfo {
  uint32_t rank = 0, node = 0, local_rank = 0;
  std::string host;  // address as seen by the rendezvous, for messages
  int64_t pid = 0;
  std::string bus;   // opaque here: where its node's other workers reach it
};

struct ServerInfo {
  uint32_t index = 0;
  bool dedicated = false;
  uint32_t node = ~0u;  // of a colocated one
  std::string address;  // host:port of its listener
  double weight = 0;
};

inline constexpr uint32_t kFirstEpoch = 1;

struct Cluster {
  uint32_t incarnation = 0;  // random: connections of another job of the same name are refused
  // Generation of the membership: 0 while servers are missing, kFirstEpoch when all are there. Each
  // loss makes the next one, see Loss and Member::epoch().
  uint32_t epoch = 0;
  uint32_t size = 0;
  uint32_t nodes = 0;
  std::vector<WorkerInfo> workers;  // by rank
  // By index: dedicated ones in order of their addresses, then colocated ones by node.
  std::vector<ServerInfo> servers;
  Settings settings;  // rank 0's; everybody adopts them

  uint32_t local_size(uint32_t node) const;
  std::vector<uint32_t> ranks_of(uint32_t node) const;   // by local rank
  std::string describe_rank(uint32_t rank) const;        // "rank 3 (10.0.0.4, pid 123)"
  std::string describe_server(uint32_t index) const;     // "server 1 (10.0.0.5:40123)"
};

// A process that is gone.
struct Loss {
  bool is_server = false;
  bool left = false;   // it said goodbye: not a failure by itself
  uint32_t index = 0;  // rank or server index
  std::string text;    // a sentence: who, how it was noticed, after what time
  uint32_t epoch = 0;  // of the membership without it
};

}  // namespace herring::control
