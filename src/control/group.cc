#include "control/group.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/hash.h"
#include "plan/plan.h"

namespace herring::control {
namespace {

// Returns whether the weights differ from what a job of these nodes would choose by itself.
bool weights_were_given(const Cluster& cluster, uint32_t dedicated) {
  const std::vector<double> chosen = plan::server_weights(cluster.nodes, dedicated);
  if (chosen.size() != cluster.servers.size()) return true;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (std::abs(cluster.servers[i].weight - chosen[i]) > 1e-9) return true;
  }
  return false;
}

}  // namespace

Group::Group(const Cluster& cluster) : ranks_(cluster.size) {
  std::iota(ranks_.begin(), ranks_.end(), 0u);
  place(cluster);
}

Group::Group(uint32_t id, const Cluster& cluster, std::vector<uint32_t> ranks, std::string name)
    : id_(id), ranks_(std::move(ranks)), name_(std::move(name)) {
  place(cluster);
}

Status Group::check(const Cluster& cluster, const std::vector<uint32_t>& ranks) {
  if (ranks.empty()) return {Code::kInvalidArgument, "a group needs at least one rank"};
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] >= cluster.size) {
      return {Code::kInvalidArgument, concat("rank ", ranks[i], " cannot be in a group; the job's "
                                             "ranks are 0 to ", cluster.size - 1)};
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      return {Code::kInvalidArgument, concat("the ranks of a group must ascend; ", ranks[i],
                                             " follows ", ranks[i - 1])};
    }
  }
  return {};
}

void Group::place(const Cluster& cluster) {
  std::vector<uint32_t> used;
  for (const uint32_t rank : ranks_) used.push_back(cluster.workers[rank].node);
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  nodes_ = static_cast<uint32_t>(used.size());
  std::vector<uint32_t> members(nodes_, 0);
  for (const uint32_t rank : ranks_) {
    const auto place = std::lower_bound(used.begin(), used.end(), cluster.workers[rank].node);
    node_of_.push_back(static_cast<uint32_t>(place - used.begin()));
    local_ranks_.push_back(cluster.workers[rank].local_rank);
    most_on_a_node_ = std::max(most_on_a_node_, ++members[node_of_.back()]);
  }
}

uint32_t Group::index_of(uint32_t rank) const {
  if (rank < ranks_.size() && ranks_[rank] == rank) return rank;
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  return found == ranks_.end() || *found != rank ? kNobody
                                                 : static_cast<uint32_t>(found - ranks_.begin());
}

std::vector<uint32_t> Group::members_on(uint32_t node) const {
  std::vector<uint32_t> members;
  for (uint32_t index = 0; index < size(); ++index) {
    if (node_of_[index] == node) members.push_back(index);
  }
  std::sort(members.begin(), members.end(),
            [this](uint32_t a, uint32_t b) { return local_ranks_[a] < local_ranks_[b]; });
  return members;
}

std::string Group::suffix() const {
  if (is_world()) return {};
  return concat(" of group '", name_, "' (", list_ranks(ranks_), ")");
}

uint32_t ShardMap::owner_of(const std::string& name) const {
  return owners[fnv1a(name) % owners.size()];
}

bool ShardMap::uses(uint32_t server) const {
  return weights[server] > 0 || std::find(owners.begin(), owners.end(), server) != owners.end();
}

ShardMap shard_map(const Cluster& cluster, const Group& group) {
  ShardMap map;
  const auto servers = static_cast<uint32_t>(cluster.servers.size());
  std::vector<uint32_t> dedicated, colocated;
  std::vector<bool> own_node(cluster.nodes, false);
  for (const uint32_t rank : group.ranks()) own_node[cluster.workers[rank].node] = true;
  for (const ServerInfo& server : cluster.servers) {
    if (server.dedicated) {
      dedicated.push_back(server.index);
    } else if (server.node < cluster.nodes && own_node[server.node]) {
      colocated.push_back(server.index);
    }
  }
  const auto given = [&](const std::vector<uint32_t>& from) {
    map.weights.assign(servers, 0.0);
    double sum = 0;
    for (const uint32_t i : from) sum += map.weights[i] = cluster.servers[i].weight;
    return sum > 0;
  };
  std::vector<uint32_t> all(servers);
  std::iota(all.begin(), all.end(), 0u);
  if (group.is_world()) {
    given(all);
    map.owners = all;
    return map;
  }
  std::vector<uint32_t> own = dedicated;
  own.insert(own.end(), colocated.begin(), colocated.end());
  if (group.nodes() == 1 && !colocated.empty()) own = colocated;
  if (weights_were_given(cluster, static_cast<uint32_t>(dedicated.size()))) {
    if (!given(own) && !given(all)) map.weights.assign(servers, 1.0);
  } else {
    map.weights.assign(servers, 0.0);
    const auto k = static_cast<uint32_t>(own == colocated ? 0 : dedicated.size());
    const std::vector<double> loads = plan::server_weights(group.nodes(), k);
    // With enough dedicated servers, these come first and are the only ones used.
    for (size_t i = 0; i < loads.size() && i < own.size(); ++i) map.weights[own[i]] = loads[i];
  }
  for (uint32_t i = 0; i < servers; ++i) {
    if (map.weights[i] > 0) map.owners.push_back(i);
  }
  return map;
}

}  // namespace herring::control
