// The part of Links that follows the set of servers.
#include "worker/links.h"

namespace herring::worker {

void Links::server_replaced(uint32_t server,
                            std::vector<std::unique_ptr<transport::Connection>> flows) {
  Link& link = links_[server];
  for (auto& flow : link.flows) flow->flow->abandon();
  link.flows.clear();
  link.paths.clear();
  for (const auto& connection : flows) add_flow(server, *connection);
}

void Links::serve(const control::ServerSet& set) {
  for (uint32_t server = 0; server < links_.size(); ++server) {
    if (set.has(server)) continue;
    for (auto& flow : links_[server].flows) flow->flow->abandon();
  }
  serving_ = set;
}

bool Links::can_move() const { return transfers_.empty(); }

}  // namespace herring::worker
