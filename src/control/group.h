// A group: some ranks of a cluster that take part in operations together, and their distribution
// over nodes. Immutable. Group 0 is all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/lists.h"
#include "base/status.h"
#include "control/cluster.h"

namespace herring::control {

class Group {
 public:
  static constexpr uint32_t kWorld = 0;
  static constexpr uint32_t kNobody = ~0u;
  // Stands for the number of a group that is being formed.
  static constexpr uint32_t kForming = ~0u;

  // Makes the group of all ranks of the cluster.
  explicit Group(const Cluster& cluster);
  // `ranks` must have passed check().
  Group(uint32_t id, const Cluster& cluster, std::vector<uint32_t> ranks, std::string name);
  // Returns kInvalidArgument unless `ranks` has at least one rank, is ascending without duplicates,
  // and has only ranks of the cluster.
  static Status check(const Cluster& cluster, const std::vector<uint32_t>& ranks);

  uint32_t id() const { return id_; }
  bool is_world() const { return id_ == kWorld; }
  uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  uint32_t nodes() const { return nodes_; }
  // Ascending. A rank's position here is its index, which identifies the rank inside the group.
  const std::vector<uint32_t>& ranks() const { return ranks_; }
  uint32_t index_of(uint32_t rank) const;  // kNobody if the rank is not a member
  bool has(uint32_t rank) const { return index_of(rank) != kNobody; }
  // Nodes of the group are numbered from 0 in the order of the cluster's nodes.
  uint32_t node_of(uint32_t index) const { return node_of_[index]; }
  // Returns the indices of the members on one of the group's nodes, ascending by local rank.
  std::vector<uint32_t> members_on(uint32_t node) const;
  uint32_t most_on_a_node() const { return most_on_a_node_; }
  // Returns whether all of its nodes have the same number of members.
  bool even() const { return most_on_a_node_ * nodes_ == size(); }

  const std::string& name() const { return name_; }
  // Returns "" for all ranks, else " of group 'name' (ranks 0-3, 6)", after an operation's name.
  std::string suffix() const;

 private:
  void place(const Cluster& cluster);

  uint32_t id_ = kWorld;
  std::vector<uint32_t> ranks_;
  std::vector<uint32_t> node_of_;      // by index
  std::vector<uint32_t> local_ranks_;  // by index
  uint32_t nodes_ = 0, most_on_a_node_ = 0;
  std::string name_;
};


// Who serves a group: which server sums which share of each buffer, and which server answers for a
// name. Immutable; if owners move, a map with a higher version replaces this one.
struct ShardMap {
  uint32_t version = 1;
  std::vector<double> weights;   // by server of the cluster; 0: sums nothing of this group
  std::vector<uint32_t> owners;  // servers that answer for names

  uint32_t owner_of(const std::string& name) const;
  bool uses(uint32_t server) const;
};

// Returns the map of a group. For the world, it has the weights of the cluster. Another group uses
// dedicated servers and the colocated servers of its own nodes. Unless weights were given, its
// loads are those of a job that has only these nodes. A group on a single node that has a server
// uses only that server. So a group needs no worker process outside its own nodes.
ShardMap shard_map(const Cluster& cluster, const Group& group);

}  // namespace herring::control
