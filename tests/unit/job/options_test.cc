#include "job/options.h"

#include <gtest/gtest.h>

#include "plan/plan.h"

namespace herring::job {
namespace {

constexpr uint64_t kGbit = 1'000'000'000;

TEST(Proxies, AreAsManyAsTheLinkKeepsBusy) {
  EXPECT_EQ(proxies_for({64, kGbit}, 32), 1u);
  EXPECT_EQ(proxies_for({64, 10 * kGbit}, 32), 2u);
  EXPECT_EQ(proxies_for({64, 25 * kGbit}, 32), 4u);
  EXPECT_EQ(proxies_for({64, 100 * kGbit}, 32), 15u);
  EXPECT_EQ(proxies_for({64, 400 * kGbit}, 32), 16u);
  EXPECT_EQ(proxies_for({64, ~0ull / 2}, 32), 16u);
  EXPECT_EQ(proxies_for({64, 0}, 32), 8u) << "as in the paper, where the rate is not known";
}

TEST(Proxies, AreNoMoreThanNodesOrHalfOfTheCores) {
  EXPECT_EQ(proxies_for({64, 100 * kGbit}, 2), 2u);
  EXPECT_EQ(proxies_for({64, 100 * kGbit}, 8), 8u);
  EXPECT_EQ(proxies_for({64, 0}, 1), 1u);
  EXPECT_EQ(proxies_for({2, 100 * kGbit}, 64), 1u);
  EXPECT_EQ(proxies_for({8, 0}, 64), 4u);
  EXPECT_EQ(proxies_for({1, 0}, 0), 1u);
}

TEST(NodeThreads, AreHalfOfAWorkersShareOfTheCores) {
  EXPECT_EQ(node_threads_for(2, 2), 1u);
  EXPECT_EQ(node_threads_for(7, 2), 1u);
  EXPECT_EQ(node_threads_for(8, 2), 2u);
  EXPECT_EQ(node_threads_for(16, 2), 4u);
  EXPECT_EQ(node_threads_for(64, 8), 4u);
  EXPECT_EQ(node_threads_for(8, 64), 1u);
  EXPECT_EQ(node_threads_for(512, 1), 4u);
  EXPECT_EQ(node_threads_for(1, 0), 1u);
}

TEST(Defaults, AreThoseOfTheTable) {
  control::Cluster cluster;
  cluster.size = cluster.nodes = 1;
  cluster.workers.resize(1);
  const Settings settings;
  const server::DataPlaneOptions given, made = data_plane(settings, cluster, {});
  EXPECT_EQ(given.segment_bytes, made.segment_bytes);
  EXPECT_EQ(given.frame_max, made.frame_max);
  EXPECT_EQ(given.small_bytes, made.small_bytes);
  EXPECT_EQ(given.flows, made.flows);
  EXPECT_EQ(plan::kDefaultSegmentBytes, made.segment_bytes);
  EXPECT_EQ(plan::kAlignment, find_setting("segment_bytes")->limits.multiple_of);
  const engine::EngineOptions engine;
  EXPECT_EQ(engine.timeout, settings.get_seconds("timeout"));
  EXPECT_EQ(engine.warn_after, settings.get_seconds("warn_after"));
  EXPECT_EQ(engine.observe, settings.get_bool("observe"));
  EXPECT_EQ(engine.node_threads, 1u) << "in a process that shares its cores with a simulated job";
  EXPECT_EQ(control::Timings().connect_timeout, 60 * kSecond);
}

TEST(EngineOptions, SayWhetherTheJobObserves) {
  control::Cluster cluster;
  cluster.size = cluster.nodes = 1;
  cluster.workers.resize(1);
  for (const char* text : {"true", "false"}) {
    const auto shared = adopt({{"observe", text}});
    ASSERT_TRUE(shared.ok());
    const auto engine = engine_options(cluster, 0, data_plane(*shared, cluster, {}), *shared);
    EXPECT_EQ(engine.observe, text == std::string("true"));
  }
}

TEST(Doors, AreOneForEachFlowToEachServer) {
  control::Cluster cluster;
  cluster.size = 3;
  cluster.incarnation = 77;
  cluster.servers.push_back({0, true, ~0u, "10.0.0.1:400", 1});
  cluster.servers.push_back({1, false, 0, "10.0.0.2:500", 1});
  const auto doors = doors_of(cluster, 2, 2);
  ASSERT_TRUE(doors.ok());
  ASSERT_EQ(doors->size(), 4u);
  for (uint32_t i = 0; i < 4; ++i) {
    const Door& door = (*doors)[i];
    EXPECT_EQ(door.server, i / 2);
    EXPECT_EQ(door.address.to_string(), cluster.servers[i / 2].address);
    EXPECT_EQ(door.hello.role, wire::Role::kWorker);
    EXPECT_EQ(door.hello.rank, 2u);
    EXPECT_EQ(door.hello.flow, i % 2);
    EXPECT_EQ(door.hello.incarnation, 77u);
  }
  cluster.servers[1].address = "nowhere";
  EXPECT_FALSE(doors_of(cluster, 2, 2).ok());
}

}  // namespace
}  // namespace herring::job
