// The groups that are called off on this node. A group's memory is let go when each neighbour has
// said that it touches none of it any more, or has ended. Engine thread only.
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

  // False: it is called off already.
  bool add(const std::shared_ptr<const LocalGroup>& group);
  bool contains(uint32_t group) const { return groups_.contains(group); }
  // Null: it is not called off.
  std::shared_ptr<const LocalGroup> find(uint32_t group) const;
  std::vector<uint32_t> numbers() const;
  // Whether the neighbours are to be told that this rank touches nothing of it any more: once.
  bool tells(uint32_t group);
  // A neighbour has said so.
  void heard(uint32_t group, uint32_t local_rank);
  // No neighbour that lives touches memory of the group.
  bool untouched(uint32_t group) const;
  // This rank leaves the group. Neighbours that still have it will say that they let go of it, too:
  // until then it is known that nobody here waits for that.
  void forget(const LocalGroup& group);

  // The connection to a neighbour has ended.
  void lose(uint32_t local_rank);
  bool is_gone(uint32_t local_rank) const { return gone_[local_rank]; }

  // Groups of which something is kept.
  size_t known() const { return groups_.size() + said_.size() + forgotten_.size(); }
  void clear() { groups_.clear(); }

 private:
  struct Entry {
    std::shared_ptr<const LocalGroup> group;
    bool told = false;
  };
  const uint32_t local_rank_;
  std::map<uint32_t, Entry> groups_;
  std::map<uint32_t, std::set<uint32_t>> said_;       // by group: neighbours that said so
  std::map<uint32_t, std::set<uint32_t>> forgotten_;  // likewise: those that have still to
  std::vector<bool> gone_;                            // by local rank
};

}  // namespace herring
