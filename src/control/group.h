// A group: some ranks of a cluster that take part in operations together, and how they lie on
// nodes. Never changed once made. Group 0 is all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "control/cluster.h"

namespace herring::control {

class Group {
 public:
  static constexpr uint32_t kWorld = 0;
  static constexpr uint32_t kNobody = ~0u;
  // Instead of a number: of a group that is being formed.
  static constexpr uint32_t kForming = ~0u;

  // All ranks of the cluster.
  explicit Group(const Cluster& cluster);
  // `ranks`: checked.
  Group(uint32_t id, const Cluster& cluster, std::vector<uint32_t> ranks, std::string name);
  // kInvalidArgument unless `ranks` are ascending, each once, and of the cluster; at least one.
  static Status check(const Cluster& cluster, const std::vector<uint32_t>& ranks);

  uint32_t id() const { return id_; }
  bool is_world() const { return id_ == kWorld; }
  uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  uint32_t nodes() const { return nodes_; }
  // Ascending. A rank's place here is its index: who it is inside the group.
  const std::vector<uint32_t>& ranks() const { return ranks_; }
  uint32_t index_of(uint32_t rank) const;  // kNobody: no member
  bool has(uint32_t rank) const { return index_of(rank) != kNobody; }
  // Nodes of the group are numbered from 0 in the order of the cluster's.
  uint32_t node_of(uint32_t index) const { return node_of_[index]; }
  // Indices of the members on one of the group's nodes, ascending by local rank.
  std::vector<uint32_t> members_on(uint32_t node) const;
  uint32_t most_on_a_node() const { return most_on_a_node_; }

  const std::string& name() const { return name_; }
  // "" for all ranks, else " of group 'name' (ranks 0-3, 6)": follows what an operation is called.
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

// "rank 3", "ranks 0-3, 6".
std::string list_ranks(const std::vector<uint32_t>& ranks);

// Who owns what of a group: which server sums which share of each buffer, and which answers for a
// name. Never changed; when owners move, a map with a higher version takes its place.
struct ShardMap {
  uint32_t version = 1;
  std::vector<double> weights;   // by server of the cluster; 0: sums nothing of this group
  std::vector<uint32_t> owners;  // servers that answer for names

  uint32_t owner_of(const std::string& name) const;
  bool uses(uint32_t server) const;
};

// Of the world: as the cluster says. Of a group: dedicated servers, and the colocated ones of its
// own nodes, with the loads of a job that has just these nodes; on a single node that has a server,
// that one alone. So a group needs no process on nodes that are not its own.
ShardMap shard_map(const Cluster& cluster, const Group& group);

}  // namespace herring::control
