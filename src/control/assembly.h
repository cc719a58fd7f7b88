// Pure: from what processes registered to the cluster, or to the contradiction in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "control/cluster.h"
#include "control/member.h"

namespace herring::control {

struct RegisteredWorker {
  WorkerRegistration registration;
  std::string host;  // as the rendezvous sees it
  int64_t pid = 0;
};

struct RegisteredServer {
  ServerRegistration registration;
  std::string host;
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

// Weight per server: the setting "server_weights" (comma-separated) or the plan's.
Result<std::vector<double>> choose_weights(const Settings& settings, uint32_t nodes,
                                           uint32_t dedicated_servers);

}  // namespace herring::control
