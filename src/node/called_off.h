// The groups that are called off on this node. A group's memory is released when each neighbour has
// said that it no longer accesses any of it, or has ended. Engine thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "node/local_group.h"

namespace herring {

class CalledOffGroups {
 public:
  CalledOffGroups(uint32_t local_rank, uint32_t local_size)
      : local_rank_(local_rank), gone_(local_size, false) {}

  // Returns false if the group is already called off.
  bool add(const std::shared_ptr<const LocalGroup>& group);
  bool contains(uint32_t group) const { return groups_.contains(group); }
  // Returns null if the group is not called off.
  std::shared_ptr<const LocalGroup> find(uint32_t group) const;
  std::vector<uint32_t> numbers() const;
  // Returns whether to tell the neighbours that this rank no longer accesses memory of the group.
  // Returns true only once.
  bool tells(uint32_t group);
  // Records that a neighbour has said that it no longer accesses memory of the group.
  void heard(uint32_t group, uint32_t local_rank);
  // Returns whether no living neighbour accesses memory of the group.
  bool untouched(uint32_t group) const;
  // Handles this rank leaving the group. Neighbours that still have the group will also say that
  // they let go of it. Until then, this object remembers that nobody here waits for that.
  void forget(const LocalGroup& group);

  // Handles the end of the connection to a neighbour.
  void lose(uint32_t local_rank);
  bool is_gone(uint32_t local_rank) const { return gone_[local_rank]; }

  // Returns the number of groups with a record.
  size_t known() const { return groups_.size() + said_.size() + forgotten_.size(); }
  void clear() { groups_.clear(); }

 private:
  struct Entry {
    std::shared_ptr<const LocalGroup> group;
    bool told = false;
  };
  const uint32_t local_rank_;
  std::map<uint32_t, Entry> groups_;
  std::map<uint32_t, std::set<uint32_t>> said_;       // by group: neighbours that have let go
  std::map<uint32_t, std::set<uint32_t>> forgotten_;  // by group: neighbours that have not
  std::vector<bool> gone_;                            // by local rank
};

}  // namespace herring
