// What every process of a job does before it takes part, a worker and a server alike.
#pragma once

#include <string>

#include "base/settings.h"
#include "control/member.h"

namespace herring::job {

// What belongs to the process as a whole: its log, its kernels, its ports.
void apply_process_settings(const Settings& settings);

// How this process reaches the rendezvous, `host:port`, and proves that it belongs to the job.
Result<control::Member::Options> member_options(const std::string& rendezvous,
                                                const std::string& secret,
                                                const Settings& settings);

}  // namespace herring::job
