// What the ranks of a group say in one call of a named operation: whether it fits together, and
// what comes of the payloads that rode along. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "control/group.h"
#include "wire/messages.h"

namespace herring::server {

// By index in the group. Null: the rank has joined, and the operation does without it (all-reduces
// only). At least one is there.
using Announces = std::vector<const wire::Announce*>;

const wire::Announce& first_of(const Announces& calls);

// The bytes that the rank must send along.
uint64_t payload_bytes(const wire::Announce& call, uint32_t index);

// What no rank could see alone. kMismatch: they do not agree, with who called what;
// kInvalidArgument: they agree on what cannot be.
Status check(const control::Group& group, const Announces& calls);

// Of a gathered result; bytes, of the rank that gets most.
uint64_t largest_reply(const Announces& calls);

// What of a Go or a Reply is the same for all ranks, and what is each rank's own.
wire::Go common_head(const Announces& calls);
void complete_head(wire::Go& go, const Announces& calls, uint32_t index);

// From payloads that all rode along: one result for all ranks, or one for each.
struct Results {
  std::string common;
  std::vector<std::string> own;  // by index
  const std::string& of(uint32_t index) const { return own.empty() ? common : own[index]; }
};
Results compute(const Announces& calls);

}  // namespace herring::server
