#include "worker/group.h"

#include <algorithm>

namespace herring::worker {

Group::Group(const control::Cluster& cluster, control::Group members, uint32_t rank)
    : members_(std::move(members)),
      shards_(control::shard_map(cluster, members_)),
      index_(members_.index_of(rank)),
      next_stream_(2 * static_cast<uint32_t>(cluster.servers.size())) {
  for (const uint32_t index : members_.members_on(members_.node_of(index_))) {
    if (index == index_) local_index_ = local_size();
    locals_.push_back(cluster.workers[members_.ranks()[index]].local_rank);
  }
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

}  // namespace herring::worker
