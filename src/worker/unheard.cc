// How Links finds out that a server does not answer any more.
#include <algorithm>

#include "worker/links.h"

namespace herring::worker {

Nanos Links::unheard(uint32_t server) const {
  Nanos longest = 0;
  for (const auto& flow : links_[server].flows) {
    if (flow->flow->closed()) continue;
    const transport::PathInfo path = flow->flow->path_info();
    if (path.unacknowledged > 0) longest = std::max(longest, path.acknowledged_ago);
  }
  return longest;
}

}  // namespace herring::worker
