#include "control/group.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "plan/plan.h"

namespace herring::control {
namespace {

// Makes a cluster with `dedicated` servers, followed by one colocated server on each node.
Cluster make_cluster(uint32_t nodes, uint32_t per_node, uint32_t dedicated) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.size = nodes * per_node;
  for (uint32_t rank = 0; rank < cluster.size; ++rank) {
    cluster.workers.push_back({rank, rank / per_node, rank % per_node, "10.0.0.1", 100 + rank, ""});
  }
  const std::vector<double> weights = plan::server_weights(nodes, dedicated);
  for (uint32_t i = 0; i < weights.size(); ++i) {
    const bool is_dedicated = i < dedicated;
    cluster.servers.push_back({i, is_dedicated, is_dedicated ? ~0u : i - dedicated, "a:1",
                               weights[i]});
  }
  return cluster;
}

TEST(Group, TheWorldIsAllRanks) {
  const Cluster cluster = make_cluster(3, 2, 0);
  const Group world(cluster);
  EXPECT_TRUE(world.is_world());
  EXPECT_EQ(world.size(), 6u);
  EXPECT_EQ(world.nodes(), 3u);
  EXPECT_EQ(world.most_on_a_node(), 2u);
  for (uint32_t rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(world.index_of(rank), rank);
    EXPECT_EQ(world.node_of(rank), rank / 2);
  }
  EXPECT_EQ(world.index_of(6), Group::kNobody);
  EXPECT_EQ(world.suffix(), "");
}

TEST(Group, RanksAndNodesAreNumberedInside) {
  const Cluster cluster = make_cluster(4, 3, 0);
  const Group group(7, cluster, {1, 2, 6, 11}, "g");
  EXPECT_EQ(group.size(), 4u);
  EXPECT_EQ(group.nodes(), 3u);  // nodes 0, 2 and 3
  EXPECT_EQ(group.most_on_a_node(), 2u);
  EXPECT_EQ(group.index_of(6), 2u);
  EXPECT_EQ(group.index_of(0), Group::kNobody);
  EXPECT_EQ(group.index_of(7), Group::kNobody);
  EXPECT_EQ(group.node_of(1), 0u);
  EXPECT_EQ(group.node_of(2), 1u);
  EXPECT_EQ(group.node_of(3), 2u);
  EXPECT_EQ(group.members_on(0), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(group.members_on(2), (std::vector<uint32_t>{3}));
  EXPECT_EQ(group.suffix(), " of group 'g' (ranks 1-2, 6, 11)");
}

TEST(Group, ImpossibleListsAreRefused) {
  const Cluster cluster = make_cluster(2, 2, 0);
  EXPECT_TRUE(Group::check(cluster, {0}).ok());
  EXPECT_TRUE(Group::check(cluster, {0, 1, 2, 3}).ok());
  for (const std::vector<uint32_t>& ranks :
       {std::vector<uint32_t>{}, {4}, {1, 1}, {2, 1}, {0, ~0u}}) {
    EXPECT_EQ(Group::check(cluster, ranks).code(), Code::kInvalidArgument);
  }
}

TEST(ShardMap, TheWorldsIsTheClusters) {
  const Cluster cluster = make_cluster(4, 1, 2);
  const ShardMap map = shard_map(cluster, Group(cluster));
  ASSERT_EQ(map.weights.size(), 6u);
  for (uint32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(map.weights[i], cluster.servers[i].weight);
    EXPECT_TRUE(map.uses(i));
  }
  EXPECT_EQ(map.owners.size(), 6u);
}

TEST(ShardMap, AGroupUsesDedicatedServersAndThoseOfItsOwnNodes) {
  const Cluster cluster = make_cluster(8, 1, 3);
  const ShardMap map = shard_map(cluster, Group(1, cluster, {1, 2, 5, 7}, "g"));
  // The weights are those of a job of four nodes with three dedicated servers.
  const std::vector<double> alone = plan::server_weights(4, 3);
  const std::vector<uint32_t> own = {0, 1, 2, 3 + 1, 3 + 2, 3 + 5, 3 + 7};
  for (size_t i = 0; i < own.size(); ++i) EXPECT_DOUBLE_EQ(map.weights[own[i]], alone[i]);
  EXPECT_EQ(map.owners, own);
  EXPECT_FALSE(map.uses(3));
  EXPECT_FALSE(map.uses(3 + 6));
}

TEST(ShardMap, WhereDedicatedServersAreEnoughForAGroupTheyDoItAlone) {
  const Cluster cluster = make_cluster(8, 1, 3);
  const ShardMap map = shard_map(cluster, Group(1, cluster, {1, 2}, "g"));
  EXPECT_EQ(map.owners, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_DOUBLE_EQ(map.weights[0], 1.0 / 3);
}

TEST(ShardMap, AGroupOnOneNodeUsesThatNodesServerIfItHasOne) {
  const Cluster mixed = make_cluster(4, 2, 2);
  EXPECT_EQ(shard_map(mixed, Group(1, mixed, {4, 5}, "g")).owners, std::vector<uint32_t>{2 + 2});
  const Cluster dedicated = make_cluster(4, 2, 4);
  EXPECT_EQ(shard_map(dedicated, Group(1, dedicated, {4, 5}, "g")).owners,
            (std::vector<uint32_t>{0, 1, 2, 3}));
}

TEST(ShardMap, GivenWeightsStay) {
  Cluster cluster = make_cluster(4, 1, 0);
  const double given[] = {1, 0, 3, 0};
  for (uint32_t i = 0; i < 4; ++i) cluster.servers[i].weight = given[i];
  const ShardMap map = shard_map(cluster, Group(1, cluster, {0, 1, 2}, "g"));
  EXPECT_EQ(map.weights, (std::vector<double>{1, 0, 3, 0}));
  EXPECT_EQ(map.owners, (std::vector<uint32_t>{0, 2}));
  // The servers on the group's own nodes own nothing, so every server that owns something is used.
  EXPECT_EQ(shard_map(cluster, Group(2, cluster, {1, 3}, "h")).owners,
            (std::vector<uint32_t>{0, 2}));
}

// These properties hold for any group of any job. Some server owns something, and names have owners
// that own something. Servers on nodes without a member are used only if weights were given.
TEST(ShardMap, PropertiesOfRandomGroups) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const uint32_t nodes = 1 + random() % 9, per_node = 1 + random() % 3;
    const Cluster cluster = make_cluster(nodes, per_node, random() % 11);
    std::vector<uint32_t> ranks;
    for (uint32_t rank = 0; rank < cluster.size; ++rank) {
      if (random() % 3 == 0) ranks.push_back(rank);
    }
    if (ranks.empty()) ranks.push_back(random() % cluster.size);
    const Group group(1, cluster, ranks, "g");
    const ShardMap map = shard_map(cluster, group);
    ASSERT_EQ(map.weights.size(), cluster.servers.size());
    EXPECT_NEAR(std::accumulate(map.weights.begin(), map.weights.end(), 0.0), 1.0, 1e-9);
    ASSERT_FALSE(map.owners.empty());
    for (const uint32_t owner : map.owners) {
      EXPECT_GT(map.weights[owner], 0);
      const ServerInfo& server = cluster.servers[owner];
      if (server.dedicated) continue;
      bool own_node = false;
      for (const uint32_t rank : ranks) own_node |= cluster.workers[rank].node == server.node;
      EXPECT_TRUE(own_node);
    }
  }
}

}  // namespace
}  // namespace herring::control
