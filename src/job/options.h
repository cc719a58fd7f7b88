// From settings to the options of engines and servers: the same wherever they run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/settings.h"
#include "control/cluster.h"
#include "server/server.h"
#include "worker/engine.h"

namespace herring::job {

// What all ranks and servers must have alike, to travel with the cluster.
control::Settings shared_settings(const Settings& settings);
// A process's settings with the job's shared ones over them.
Result<Settings> adopt(const control::Settings& shared);

// The machine that serves.
struct ServingHost {
  uint32_t cores = 1;
  uint64_t rate = 0;  // of its link, bits per second and direction; 0: not known
};

// This machine, whose server is reached at `address`, a literal.
ServingHost serving_host(const std::string& address);

// How many proxies a server has unless HERRING_PROXIES says so: as many as its link can keep busy,
// at most half of the cores, and one per node, for all flows of a node end at one proxy. By the
// costs of lab/docs/simulate.md one thread moves some 14 Gbit/s, which no network card has
// confirmed; it is given half of that, for nodes are not spread evenly, and small frames cost more.
// Virtual machines do not know their link's rate: it may be 100 Gbit/s, for which the paper has 8.
uint32_t proxies_for(const ServingHost& host, uint32_t nodes);

server::DataPlaneOptions data_plane(const Settings& shared, const control::Cluster& cluster,
                                    const ServingHost& host);

// How many cores this process may run on.
uint32_t usable_cores();
// With how many threads each of `workers` sums in the node's memory unless HERRING_NODE_THREADS
// says so: half of its share of the cores, as the others feed it or its GPU. More than four reach
// the limits of the node's memory.
uint32_t node_threads_for(uint32_t cores, uint32_t workers);

// Without what belongs to the process: addresses, credentials, time-outs, how to abort, and
// threads.
worker::EngineOptions engine_options(const control::Cluster& cluster, uint32_t rank,
                                     const server::DataPlaneOptions& plane,
                                     const Settings& shared);

// Where a worker connects, once for each flow, and as whom.
struct Door {
  uint32_t server;
  transport::Address address;
  wire::Hello hello;
};
// Those of `rank`, server by server.
Result<std::vector<Door>> doors_of(const control::Cluster& cluster, uint32_t rank,
                                   uint32_t flows_per_server);

}  // namespace herring::job
