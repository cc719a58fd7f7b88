#include "control/server_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace herring::control {
namespace {

std::vector<uint32_t> all(uint32_t servers) {
  std::vector<uint32_t> owners;
  for (uint32_t i = 0; i < servers; ++i) owners.push_back(i);
  return owners;
}

TEST(ServerSet, ServersSumTheirOwnShards) {
  const ServerSet set = ServerSet::all(3);
  for (uint32_t home = 0; home < 3; ++home) EXPECT_EQ(set.stand_in(home, 7, all(3)).server, home);
}

TEST(ServerSet, EachChangeIsAVersion) {
  ServerSet set = ServerSet::all(2);
  EXPECT_EQ(set.epoch, kFirstEpoch);
  set.lose(1);
  EXPECT_EQ(set.epoch, kFirstEpoch + 1);
  EXPECT_FALSE(set.has(1));
  set.add(1);
  EXPECT_TRUE(set.has(1));
  EXPECT_EQ(set.since, (std::vector<uint32_t>{0, kFirstEpoch + 2}));
}

TEST(ServerSet, NobodyStandsInIfNoOwnerServes) {
  ServerSet set = ServerSet::all(3);
  set.lose(0);
  set.lose(2);
  EXPECT_EQ(set.stand_in(0, 0, {0, 2}).server, ServerSet::kNone);
  EXPECT_EQ(set.stand_in(0, 0, {}).server, ServerSet::kNone);
  EXPECT_EQ(set.stand_in(5, 0, all(3)).server, 1u);  // a home beyond the set does not serve
}

TEST(ServerSet, OnlyTheShardsOfOneThatComesOrGoesMove) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const uint32_t servers = 2 + random() % 12;
    ServerSet before = ServerSet::all(servers), after;
    for (uint32_t s = 0; s < servers; ++s) before.serving[s] = random() % 4 != 0;
    after = before;
    const uint32_t changed = random() % servers;
    after.serving[changed] = !before.serving[changed];
    for (uint32_t home = 0; home < servers; ++home) {
      for (uint32_t buffer = 0; buffer < 20; ++buffer) {
        const uint32_t a = before.stand_in(home, buffer, all(servers)).server;
        const uint32_t b = after.stand_in(home, buffer, all(servers)).server;
        if (a == b) continue;
        EXPECT_TRUE(a == changed || b == changed || a == ServerSet::kNone || b == ServerSet::kNone)
            << home << " moved from " << a << " to " << b << " when " << changed << " changed";
      }
    }
  }
}

// All members compute the same epochs from the same version, whatever they have done before.
TEST(ServerSet, TheEpochIsThatInWhichTheServerBeganToStandIn) {
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    const uint32_t servers = 2 + random() % 8;
    ServerSet set = ServerSet::all(servers);
    std::vector<ServerSet::StandIn> now(servers);
    for (uint32_t home = 0; home < servers; ++home) now[home] = {home, 0};
    for (int change = 0; change < 30; ++change) {
      const uint32_t server = random() % servers;
      set.has(server) ? set.lose(server) : set.add(server);
      for (uint32_t home = 0; home < servers; ++home) {
        const ServerSet::StandIn next = set.stand_in(home, 5, all(servers));
        if (next.server == ServerSet::kNone) {
          EXPECT_EQ(std::count(set.serving.begin(), set.serving.end(), true), 0);
        } else if (next.server == now[home].server) {
          EXPECT_EQ(next.epoch, now[home].epoch);
        } else {
          EXPECT_EQ(next.epoch, set.epoch);
        }
        now[home] = next;
      }
    }
  }
}

TEST(ServerSet, TheBuffersOfOneHomeAreSpread) {
  ServerSet set = ServerSet::all(8);
  set.lose(3);
  std::vector<int> counts(8);
  for (uint32_t buffer = 0; buffer < 7000; ++buffer) {
    ++counts[set.stand_in(3, buffer, all(8)).server];
  }
  for (uint32_t server = 0; server < 8; ++server) {
    if (server == 3) {
      EXPECT_EQ(counts[server], 0);
    } else {
      EXPECT_NEAR(counts[server], 1000, 150);
    }
  }
}

}  // namespace
}  // namespace herring::control
