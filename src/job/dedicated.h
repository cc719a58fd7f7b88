// A process that is a server and nothing else: `herring server`.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/settings.h"
#include "base/status.h"

namespace herring::job {

// Serves one job until it ends. Returns why, if not because all workers have left, or with ok when
// this thread is interrupted (base/interrupt.h). `waits_since`: for the log, where it waits for a
// job longer than this; 0: it does not.
Status run_dedicated_server(const std::string& rendezvous, const std::string& secret,
                            const Settings& settings, Nanos waits_since = 0);

}  // namespace herring::job
