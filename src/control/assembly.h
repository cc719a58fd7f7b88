// Pure: from what processes registered to the cluster, or to the contradiction in it.
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
  std::string host;  // as the rendezvous sees it
  int64_t pid = 0;
};

// "rank 3 (10.0.0.4, pid 123)".
std::string describe(const RegisteredWorker& worker);
// "0, 2 to 5, 9"; long lists end with "and 7 more".
std::string list_numbers(std::vector<uint32_t> numbers);

// What already contradicts itself or what the rendezvous was told, before everybody is there:
// kConfiguration with who has what.
Status find_contradiction(const std::vector<RegisteredWorker>& workers, uint32_t size,
                          uint32_t dedicated_servers);

// Finds with little work for each worker that registers whether find_contradiction() has something
// to say.
class Roster {
 public:
  Roster(uint32_t size, uint32_t dedicated_servers)
      : size_(size), dedicated_servers_(dedicated_servers) {}
  void add(const WorkerRegistration& worker) {
    sound_ &= worker.size == size_ && worker.dedicated_servers == dedicated_servers_ &&
              worker.rank < size_ && here_.insert(worker.rank).second;
  }
  bool sound() const { return sound_; }

 private:
  const uint32_t size_, dedicated_servers_;
  std::unordered_set<uint32_t> here_;  // ranks
  bool sound_ = true;
};

// Connections that were refused, for the message about who is missing: they may be of those.
class Refusals {
 public:
  void add(const std::string& host, const std::string& why);
  // "; 2 connections were refused: ...", or nothing.
  std::string text() const;

 private:
  size_t count_ = 0;
  std::string shown_;
};

// Who has not registered yet: "ranks 1, 3 to 5 of 6 and 1 of 2 dedicated servers".
std::string list_missing(const std::vector<RegisteredWorker>& workers, uint32_t size,
                         uint32_t dedicated, uint32_t dedicated_servers);

// The cluster without servers. `workers`: without contradiction, every rank once, any order.
// kConfiguration when local ranks do not fit together.
Result<Cluster> assemble(const std::vector<RegisteredWorker>& workers);

// The nodes whose local rank 0 starts a colocated server.
std::vector<uint32_t> colocated_nodes(uint32_t nodes, uint32_t dedicated_servers);

// Whether an address comes before another: runs of digits count by their value, so that 10.0.0.9 is
// before 10.0.0.16.
bool address_before(std::string_view a, std::string_view b);
// The place of each among all: servers count by their addresses, whoever came first, so that
// weights mean the same machines in every run.
std::vector<uint32_t> number_by_address(const std::vector<std::string>& addresses);

// Weight per server: the setting "server_weights" (comma-separated) or the plan's.
Result<std::vector<double>> choose_weights(const Settings& settings, uint32_t nodes,
                                           uint32_t dedicated_servers);

}  // namespace herring::control
