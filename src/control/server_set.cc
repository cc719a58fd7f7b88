#include "control/server_set.h"

#include <algorithm>

namespace herring::control {
namespace {

// The finalizer of MurmurHash3: every bit of the input changes half of the bits of the result.
uint64_t mix(uint64_t x) {
  x = (x ^ x >> 33) * 0xff51afd7ed558ccd;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53;
  return x ^ x >> 33;
}

}  // namespace

ServerSet ServerSet::all(size_t servers) {
  ServerSet set;
  set.serving.assign(servers, true);
  set.since.assign(servers, 0);
  return set;
}

void ServerSet::change(uint32_t server, bool serves) {
  serving[server] = serves;
  since[server] = ++epoch;
}

void ServerSet::adopt(const ServerSet& later) {
  serving.resize(later.serving.size());
  since.resize(later.serving.size());
  for (uint32_t server = 0; server < serving.size(); ++server) {
    if (has(server) != later.has(server)) since[server] = later.epoch;
  }
  serving = later.serving;
  epoch = later.epoch;
}

ServerSet::StandIn ServerSet::stand_in(uint32_t home, uint32_t buffer,
                                       const std::vector<uint32_t>& owners) const {
  if (has(home)) return {home, changed(home)};
  const auto score = [&](uint32_t owner) {
    return mix(mix(uint64_t{home} << 32 | buffer) + owner);
  };
  StandIn chosen;
  for (const uint32_t owner : owners) {
    if (has(owner) && (chosen.server == kNone || score(owner) > score(chosen.server))) {
      chosen.server = owner;
    }
  }
  if (chosen.server == kNone) return chosen;
  // It has been the best since it came and all better ones were gone.
  chosen.epoch = std::max(changed(chosen.server), changed(home));
  for (const uint32_t owner : owners) {
    if (score(owner) > score(chosen.server)) chosen.epoch = std::max(chosen.epoch, changed(owner));
  }
  return chosen;
}

}  // namespace herring::control
