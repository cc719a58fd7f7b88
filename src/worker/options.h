// From settings to the options of engines and servers: the same wherever they run.
#pragma once

#include <cstdint>

#include "base/settings.h"
#include "control/cluster.h"
#include "server/server.h"
#include "worker/engine.h"

namespace herring::worker {

// What all ranks and servers must have alike, to travel with the cluster.
control::Settings shared_settings(const Settings& settings);
// A process's settings with the job's shared ones over them.
Result<Settings> adopt(const control::Settings& shared);

// `cores`: of the machine that serves.
server::DataPlaneOptions data_plane(const Settings& shared, const control::Cluster& cluster,
                                    uint32_t cores);

// Without what belongs to the process: addresses, credentials, time-outs, how to abort.
EngineOptions engine_options(const control::Cluster& cluster, uint32_t rank,
                             const server::DataPlaneOptions& plane, const Settings& shared);

}  // namespace herring::worker
