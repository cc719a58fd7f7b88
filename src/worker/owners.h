// Which server answers for the names of a home. Pure: all workers hear of the same versions of the
// set of servers in the same order, and so agree.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "base/streams.h"
#include "control/server_set.h"

namespace herring::worker {

struct Owner {
  Reign reign;
  uint32_t server = 0;
  auto operator<=>(const Owner&) const = default;
};

class Owners {
 public:
  void serve(const control::ServerSet& set) { versions_.push_back(set); }
  bool has(uint32_t server) const { return versions_.empty() || versions_.back().has(server); }

  // Returns who answers for `home`, one of the `owners` of a group. A server that stands in goes on
  // when the home has been replaced. So names never leave a living server, which knows what waits
  // for whom: a replacement can make no call fail. If no owner is left, the last one stays.
  Owner of(const std::vector<uint32_t>& owners, uint32_t home) const {
    Owner owner{{home}, home};
    for (const control::ServerSet& set : versions_) {
      if (set.has(owner.server)) continue;
      const uint32_t next = set.stand_in(home, 0, owners).server;
      if (next != control::ServerSet::kNone) owner = {{home, set.epoch}, next};
    }
    return owner;
  }

 private:
  std::vector<control::ServerSet> versions_;  // that differ from the one at the job's start
};

}  // namespace herring::worker
