// A process that only runs a server: `herring server`.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/settings.h"
#include "base/status.h"
#include "transport/tcp/transport.h"

namespace herring::job {

// Serves one job until the job ends. Returns ok if all workers have left or if this thread is
// interrupted (base/interrupt.h), else why the job ended. `waits_since` is for the log: since when
// the process has waited for a job, if longer than this call; else 0. `transport` carries the data
// plane.
Status run_dedicated_server(const std::string& rendezvous, const std::string& secret,
                            const Settings& settings, Nanos waits_since = 0,
                            transport::Transport& transport = transport::tcp::transport());

}  // namespace herring::job
