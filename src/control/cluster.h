// The description of a job's processes, which all processes have once registration is complete.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/settings.h"
#include "base/status.h"

namespace herring::control {

using Settings = std::map<std::string, std::string>;

// How long a process waits for the others, according to its settings.
struct Timings {
  explicit Timings(const herring::Settings& settings = {})
      : connect_timeout(from_seconds(settings.get_seconds("connect_timeout"))),
        heartbeat_interval(from_seconds(settings.get_seconds("heartbeat_interval"))),
        heartbeat_timeout(from_seconds(settings.get_seconds("heartbeat_timeout"))),
        warn_after(from_seconds(settings.get_seconds("warn_after"))) {}

  Nanos connect_timeout, heartbeat_interval, heartbeat_timeout;
  // After this time, and at the latest after kFirstReminder, the log says whom the process waits
  // for, and says it again later.
  Nanos warn_after;
};

struct WorkerInfo {
  uint32_t rank = 0, node = 0, local_rank = 0;
  std::string host;  // address as seen by the rendezvous, for messages
  int64_t pid = 0;
  std::string bus;   // where the node's other workers reach it; opaque here
};

struct ServerInfo {
  uint32_t index = 0;
  bool dedicated = false;
  uint32_t node = ~0u;  // of a colocated server
  std::string address;  // host:port of the server's listener
  double weight = 0;
};

inline constexpr uint32_t kFirstEpoch = 1;

// The advice for ranks that still call operations after another rank has left the job.
inline constexpr char kAdviceOnLeaving[] =
    "use join() if ranks have different amounts of data; if the rank that left has failed, see its "
    "output";

struct Cluster {
  uint32_t incarnation = 0;  // random: connections of another job with the same name are refused
  // The generation of the membership: 0 while servers are missing, kFirstEpoch when all processes
  // are there. Each loss increments it; see Loss and Member::epoch().
  uint32_t epoch = 0;
  uint32_t size = 0;
  uint32_t nodes = 0;
  std::vector<WorkerInfo> workers;  // by rank
  // By index: first dedicated servers in order of their addresses, then colocated ones by node.
  std::vector<ServerInfo> servers;
  Settings settings;  // rank 0's settings, which all processes adopt

  uint32_t local_size(uint32_t node) const;
  std::vector<uint32_t> ranks_of(uint32_t node) const;   // by local rank
  // Returns in whose process a server is; nothing if it is dedicated.
  std::optional<uint32_t> rank_with(const ServerInfo& server) const;
  std::string describe_rank(uint32_t rank) const;        // "rank 3 (10.0.0.4, pid 123)"
  std::string describe_ranks(const std::vector<uint32_t>& ranks) const;
  std::string describe_server(uint32_t index) const;     // "server 1 (10.0.0.5:40123)"
};

// A process that is gone.
struct Loss {
  bool is_server = false;
  bool left = false;   // the process said goodbye, which by itself is not a failure
  uint32_t index = 0;  // rank or server index
  std::string text;    // a sentence: who is gone, how that was noticed, after what time
  uint32_t epoch = 0;  // the epoch of the membership without the process
  // By server: which ones serve from now on. Empty unless others stand in for the lost server, so
  // that the job goes on.
  std::vector<bool> serving;
};

// A process that takes the place of a dedicated server that is lost, and how far it has come.
struct Replacement {
  enum class Stage : uint8_t {
    kSpare = 1,  // it waits until a place is free
    kComing,     // workers connect to it
    kDropped,    // it does not come
    kServes,     // it serves; all earlier versions of the set of servers are over
  };

  Stage stage = Stage::kSpare;
  uint32_t server = 0;         // the index that it takes over
  uint32_t number = 0;         // of the replacement: 1 for the first of the job
  std::string address;         // host:port of its listener
  uint32_t epoch = 0;          // kServes: the epoch of the membership with it
  std::vector<bool> serving;   // kServes: by server
};

}  // namespace herring::control
