#include "node/local_group.h"

namespace herring {

LocalGroup::LocalGroup(const control::Cluster& cluster, control::Group members, uint32_t rank)
    : members_(std::move(members)), index_(members_.index_of(rank)) {
  for (const uint32_t index : members_.members_on(members_.node_of(index_))) {
    if (index == index_) local_index_ = local_size();
    locals_.push_back(cluster.workers[members_.ranks()[index]].local_rank);
  }
}

}  // namespace herring
