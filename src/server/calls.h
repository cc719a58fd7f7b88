// Checks whether the announcements of all ranks in one call of a named operation are consistent.
// Computes results from payloads that were sent along with the announcements. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "control/group.h"
#include "wire/messages.h"

namespace herring::server {

// Announcements by index in the group; at least one is not null. Null means that the rank has
// joined and the operation goes on without it (all-reduces only).
using Announces = std::vector<const wire::Announce*>;

const wire::Announce& first_of(const Announces& calls);

// Returns the number of payload bytes that the rank must send along.
uint64_t payload_bytes(const wire::Announce& call, uint32_t index);

// Checks what no rank could check alone. Returns kMismatch, with who called what, if ranks
// disagree. Returns kInvalidArgument if they agree on an impossible call.
Status check(const control::Group& group, const Announces& calls);

// Returns the largest gathered result that any one rank gets, in bytes.
uint64_t largest_reply(const Announces& calls);

// common_head() fills the part of a Go or Reply that is the same for all ranks; complete_head()
// adds the part of one rank.
wire::Go common_head(const Announces& calls);
void complete_head(wire::Go& go, const Announces& calls, uint32_t index);

// Results of payloads that were sent along: one common result, or one result per rank.
struct Results {
  std::string common;
  std::vector<std::string> own;  // by index
  const std::string& of(uint32_t index) const { return own.empty() ? common : own[index]; }
};
Results compute(const Announces& calls);

}  // namespace herring::server
