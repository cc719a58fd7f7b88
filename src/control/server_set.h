// Which servers serve a job. A server may die in the middle of a step; others then stand in for it
// until a replacement takes its place.
#pragma once

#include <cstdint>
#include <vector>

#include "control/cluster.h"

namespace herring::control {

// A version of the set of servers. All members hear of all versions in the same order.
struct ServerSet {
  uint32_t epoch = kFirstEpoch;  // of the membership that this version belongs to
  std::vector<bool> serving;     // by server

  bool has(uint32_t server) const { return server < serving.size() && serving[server]; }

  // Returns the server that sums the shards of `home` in a buffer: `home` itself if it serves, else
  // one of the `owners` that serve, or kNone. If the set changes, only those shards move whose home
  // or stand-in has come or gone (rendezvous hashing), and the shards of one home are spread over
  // all stand-ins, buffer by buffer.
  static constexpr uint32_t kNone = ~0u;
  uint32_t stand_in(uint32_t home, uint32_t buffer, const std::vector<uint32_t>& owners) const;
};

}  // namespace herring::control
