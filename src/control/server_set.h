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
  std::vector<uint32_t> since;   // by server: the epoch in which it came or went; 0: at the start

  // Makes the set of a job with all of its servers.
  static ServerSet all(size_t servers);
  // Make the next version: a server is gone, or is here again.
  void lose(uint32_t server) { change(server, false); }
  void add(uint32_t server) { change(server, true); }
  // Becomes a later version of which only `epoch` and `serving` are known.
  void adopt(const ServerSet& later);
  bool has(uint32_t server) const { return server < serving.size() && serving[server]; }

  static constexpr uint32_t kNone = ~0u;
  struct StandIn {
    uint32_t server = kNone;
    uint32_t epoch = 0;  // since when it does that
    bool operator==(const StandIn&) const = default;
  };
  // Returns the server that sums the shards of `home` in a buffer: `home` itself if it serves, else
  // one of the `owners` that serve, or kNone. If the set changes, only those shards move whose home
  // or stand-in has gone, or whose home or a better stand-in has come (rendezvous hashing). The
  // shards of one home are spread over all stand-ins, buffer by buffer.
  StandIn stand_in(uint32_t home, uint32_t buffer, const std::vector<uint32_t>& owners) const;

 private:
  void change(uint32_t server, bool serves);
  uint32_t changed(uint32_t server) const { return server < since.size() ? since[server] : 0; }
};

}  // namespace herring::control
