#include "control/cluster.h"

#include <algorithm>

#include "base/lists.h"

namespace herring::control {

uint32_t Cluster::local_size(uint32_t node) const {
  return static_cast<uint32_t>(std::count_if(
      workers.begin(), workers.end(), [&](const WorkerInfo& w) { return w.node == node; }));
}

std::vector<uint32_t> Cluster::ranks_of(uint32_t node) const {
  std::vector<uint32_t> ranks(local_size(node));
  for (const WorkerInfo& worker : workers) {
    if (worker.node == node) ranks[worker.local_rank] = worker.rank;
  }
  return ranks;
}

std::string Cluster::describe_rank(uint32_t rank) const {
  if (rank >= workers.size()) return concat("rank ", rank);
  return concat("rank ", rank, " (", workers[rank].host, ", pid ", workers[rank].pid, ")");
}

std::string Cluster::describe_ranks(const std::vector<uint32_t>& ranks) const {
  return list_of(ranks, [this](uint32_t rank) { return describe_rank(rank); });
}

std::optional<uint32_t> Cluster::rank_with(const ServerInfo& server) const {
  if (server.dedicated) return {};
  const std::vector<uint32_t> ranks = ranks_of(server.node);
  return ranks.empty() ? std::nullopt : std::optional(ranks.front());
}

std::string Cluster::describe_server(uint32_t index) const {
  if (index >= servers.size()) return concat("server ", index);
  const ServerInfo& server = servers[index];
  std::string beside;  // a colocated server dies with its worker, so the worker is named
  if (!server.dedicated) {
    const auto rank = rank_with(server);
    beside = rank ? concat(", in the process of ", describe_rank(*rank))
                  : concat(", in node ", server.node);
  }
  return concat("server ", index, " (", server.address, beside, ")");
}

}  // namespace herring::control
