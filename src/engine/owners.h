// Which server answers for the names of a home. Pure: all workers hear of the same versions of the
// set of servers in the same order, and so agree.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/streams.h"
#include "control/server_set.h"

namespace herring::engine {

struct Owner {
  Reign reign;
  uint32_t server = 0;
  auto operator<=>(const Owner&) const = default;
};

class Owners {
 public:
  // Adopts the next version of the set of servers.
  void serve(const control::ServerSet& set);
  bool has(uint32_t server) const {
    return changes_.empty() || (server < serving_.size() && serving_[server]);
  }

  // Returns who answers for `home`, one of the `owners` of a group. A server that stands in goes on
  // when the home has been replaced. So names never leave a living server, which knows what waits
  // for whom: a replacement can make no call fail. If no owner is left, the last one stays.
  Owner of(const std::vector<uint32_t>& owners, uint32_t home) const;

 private:
  // A server has come or gone. A group that is formed later follows all changes since the job's
  // start, because its members agree on nothing else.
  struct Change {
    uint32_t epoch, server;
  };
  Owner find(const std::vector<uint32_t>& owners, uint32_t home) const;

  std::vector<Change> changes_;
  std::vector<bool> serving_;  // now; at the start all serve
  // What was found since the last change, by the owners of a group and the home.
  mutable std::map<std::vector<uint32_t>, std::map<uint32_t, Owner>> found_;
};

}  // namespace herring::engine
