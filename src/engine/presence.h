// Which processes of the job are gone for this worker, and which servers come. The roof
// (src/worker) keeps it up to date. Engine thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "control/cluster.h"

namespace herring::engine {

struct Presence {
  // A replacement that does not serve yet: its number, and the definitions of groups that it has
  // yet to answer.
  struct Coming {
    uint32_t number = 0;
    std::set<uint64_t> unanswered;
  };

  bool comes(uint32_t server) const { return coming.contains(server); }
  bool has_ended(uint32_t server) const { return ended_servers.contains(server); }
  bool has_left(uint32_t rank) const { return std::ranges::find(left, rank) != left.end(); }

  std::vector<control::Loss> lost;  // those that some groups survive
  std::vector<uint32_t> left;       // ranks, in the order in which they left
  std::set<uint32_t> ended_servers;
  std::map<uint32_t, Coming> coming;  // by server
};

}  // namespace herring::engine
