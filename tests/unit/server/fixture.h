// A cluster that does not exist, and values for it.
#pragma once

#include <initializer_list>
#include <string>

#include "control/cluster.h"

namespace herring::server {

inline constexpr uint32_t kIncarnation = 7;
inline constexpr size_t kSegment = 1024;

inline std::string floats(std::initializer_list<float> values) {
  return {reinterpret_cast<const char*>(std::data(values)), values.size() * sizeof(float)};
}

inline control::Cluster make_cluster(uint32_t nodes, uint32_t per_node = 1) {
  control::Cluster cluster;
  cluster.incarnation = kIncarnation;
  cluster.nodes = nodes;
  cluster.size = nodes * per_node;
  for (uint32_t rank = 0; rank < cluster.size; ++rank) {
    cluster.workers.push_back({rank, rank / per_node, rank % per_node, "10.0.0.1", 100 + rank, ""});
  }
  cluster.servers.push_back({0, true, ~0u, "10.0.0.2:7000", 1.0});
  return cluster;
}

}  // namespace herring::server
