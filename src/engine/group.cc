#include "engine/group.h"

namespace herring::engine {

Group::Group(const control::Cluster& cluster, control::Group members, uint32_t rank)
    : LocalGroup(cluster, std::move(members), rank),
      shards_(control::shard_map(cluster, this->members())),
      next_stream_(2 * static_cast<uint32_t>(cluster.servers.size())) {
  for (const control::ServerInfo& server : cluster.servers) {
    if (server.dedicated || shards_.uses(server.index)) servers_.push_back(server.index);
  }
}

Status Group::failure() const {
  std::lock_guard lock(mutex_);
  return left_.ok() ? called_off_ : left_;
}

Status Group::called_off() const {
  std::lock_guard lock(mutex_);
  return called_off_;
}

void Group::leave(const Status& why) {
  std::lock_guard lock(mutex_);
  if (called_off_.ok() && left_.ok()) left_ = why;
}

bool Group::call_off(const Status& why) {
  std::lock_guard lock(mutex_);
  if (!called_off_.ok()) return false;
  called_off_ = why;
  return true;
}

}  // namespace herring::engine
