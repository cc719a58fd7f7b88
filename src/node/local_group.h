// A group from the point of view of one node: which of its members are on this node.
#pragma once

#include <cstdint>
#include <vector>

#include "control/group.h"

namespace herring {

class LocalGroup {
 public:
  // `rank`: this worker's rank in the job; it must be a member.
  LocalGroup(const control::Cluster& cluster, control::Group members, uint32_t rank);

  const control::Group& members() const { return members_; }
  uint32_t id() const { return members_.id(); }
  uint32_t index() const { return index_; }  // this worker's place inside the group
  // Local ranks of the members on this worker's node, in ascending order. local_index() is this
  // worker's place among them.
  const std::vector<uint32_t>& locals() const { return locals_; }
  uint32_t local_index() const { return local_index_; }
  uint32_t local_size() const { return static_cast<uint32_t>(locals_.size()); }

 private:
  const control::Group members_;
  const uint32_t index_;
  std::vector<uint32_t> locals_;
  uint32_t local_index_ = 0;
};

}  // namespace herring
