// What every process of a job, worker or server, does before it takes part.
#pragma once

#include <string>

#include "base/settings.h"
#include "control/member.h"

namespace herring::job {

// Applies the settings that concern the whole process: its log, its kernels and its ports.
void apply_process_settings(const Settings& settings);

// Returns what this process proves, and what encrypts its connections.
Result<transport::Credentials> credentials_of(const std::string& secret, const Settings& settings);

// Returns how this process reaches the rendezvous, `host:port`, and proves its membership.
Result<control::Member::Options> member_options(const std::string& rendezvous,
                                                const std::string& secret,
                                                const Settings& settings);

}  // namespace herring::job
