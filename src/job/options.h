// Derives the options of engines and servers from settings, in the same way wherever they run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/settings.h"
#include "control/cluster.h"
#include "server/server.h"
#include "worker/engine.h"

namespace herring::job {

// Returns the settings that must be the same on all ranks and servers; the cluster carries them.
control::Settings shared_settings(const Settings& settings);
// Returns the default settings, overridden by the job's shared ones.
Result<Settings> adopt(const control::Settings& shared);

// The machine on which a server runs.
struct ServingHost {
  uint32_t cores = 1;
  uint64_t rate = 0;  // of its link, in bits per second and direction; 0: unknown
};

// Returns this machine, whose server is reached at `address`, a literal IP address.
ServingHost serving_host(const std::string& address);

// Returns the number of proxies of a server if HERRING_PROXIES does not set it: as many as the
// server's link can keep busy, but at most half of the cores and at most one per node, since all
// flows of a node end at one proxy. By the costs in lab/docs/simulate.md, one thread moves some 14
// Gbit/s, which no network card has confirmed. A proxy is given half of that, because nodes are not
// spread evenly and small frames cost more. Virtual machines do not know the rate of their link,
// which may be 100 Gbit/s; for that rate the paper has 8 proxies.
uint32_t proxies_for(const ServingHost& host, uint32_t nodes);

server::DataPlaneOptions data_plane(const Settings& shared, const control::Cluster& cluster,
                                    const ServingHost& host);

// Returns the number of cores on which this process may run.
uint32_t usable_cores();
// Returns with how many threads each of `workers` sums in the node's memory if HERRING_NODE_THREADS
// does not set it: half of the worker's share of the cores, since the other half feeds the worker
// or its GPU. More than four threads reach the limits of the node's memory.
uint32_t node_threads_for(uint32_t cores, uint32_t workers);

// Returns engine options without those that belong to the process: addresses, credentials,
// timeouts, the abort callback and threads.
engine::EngineOptions engine_options(const control::Cluster& cluster, uint32_t rank,
                                     const server::DataPlaneOptions& plane,
                                     const Settings& shared);

// A connection of a worker, one per flow: where it goes, and with which identity.
struct Door {
  uint32_t server;
  transport::Address address;
  wire::Hello hello;
};
// Returns the connections of `rank`, server by server.
Result<std::vector<Door>> doors_of(const control::Cluster& cluster, uint32_t rank,
                                   uint32_t flows_per_server);

}  // namespace herring::job
