// Pure functions that derive the cluster, or its contradiction, from what processes registered.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "control/cluster.h"
#include "control/member.h"

namespace herring::control {

struct RegisteredWorker {
  WorkerRegistration registration;
  std::string host;  // the worker's host as the rendezvous sees it
  int64_t pid = 0;
};

// Returns "rank 3 (10.0.0.4, pid 123)".
std::string describe(const RegisteredWorker& worker);

// Returns the worker's HERRING_OBJECTS. The setting guards the rank that has it, so it is not taken
// over from rank 0: ranks with different values do not form a job.
std::string objects_of(const WorkerRegistration& worker);

// Finds registrations that contradict one another or the rendezvous' own settings, before all
// workers are there. Returns kConfiguration with who has which value.
Status find_contradiction(const std::vector<RegisteredWorker>& workers, uint32_t size,
                          uint32_t dedicated_servers);

// Finds out, with little work for each worker that registers, whether find_contradiction() would
// report an error.
class Roster {
 public:
  Roster(uint32_t size, uint32_t dedicated_servers)
      : size_(size), dedicated_servers_(dedicated_servers) {}
  void add(const WorkerRegistration& worker) {
    if (here_.empty()) objects_ = objects_of(worker);
    sound_ &= worker.size == size_ && worker.dedicated_servers == dedicated_servers_ &&
              worker.rank < size_ && objects_of(worker) == objects_ &&
              here_.insert(worker.rank).second;
  }
  bool sound() const { return sound_; }

 private:
  const uint32_t size_, dedicated_servers_;
  std::unordered_set<uint32_t> here_;  // ranks that have registered
  std::string objects_;                // the first worker's
  bool sound_ = true;
};

// Connections that were refused. The message about missing processes lists them, since they may be
// connections of those processes.
class Refusals {
 public:
  void add(const std::string& host, const std::string& why);
  // Returns "; 2 connections were refused: ...", or an empty text.
  std::string text() const;

 private:
  size_t count_ = 0;
  std::string shown_;
};

// Lists who has not registered yet: "ranks 1, 3-5 of 6 and 1 of 2 dedicated servers".
std::string list_missing(const std::vector<RegisteredWorker>& workers, uint32_t size,
                         uint32_t dedicated, uint32_t dedicated_servers);

// Returns the cluster without servers. `workers` must be without contradiction and have every rank
// once, in any order. Returns kConfiguration if local ranks do not fit together.
Result<Cluster> assemble(const std::vector<RegisteredWorker>& workers);

// Returns the nodes whose local rank 0 starts a colocated server.
std::vector<uint32_t> colocated_nodes(uint32_t nodes, uint32_t dedicated_servers);

// Returns whether address `a` comes before `b`. Runs of digits are compared by value, so 10.0.0.9
// comes before 10.0.0.16.
bool address_before(std::string_view a, std::string_view b);
struct NamedServer {
  uint32_t wanted = ~0u;  // the number that it asks for; ~0u: any
  std::string address;
};
// Returns the number of each dedicated server. They are ordered by the numbers that they ask for,
// and then by address, not by the order in which they came. So weights mean the same machines in
// every run.
std::vector<uint32_t> number_servers(const std::vector<NamedServer>& servers);

// Returns one weight per server, from the setting "server_weights" (comma-separated) or the plan.
Result<std::vector<double>> choose_weights(const Settings& settings, uint32_t nodes,
                                           uint32_t dedicated_servers);

}  // namespace herring::control
