#include "control/server_set.h"

#include <gtest/gtest.h>

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
  const ServerSet set{1, {true, true, true}};
  for (uint32_t home = 0; home < 3; ++home) EXPECT_EQ(set.stand_in(home, 7, all(3)), home);
}

TEST(ServerSet, NobodyStandsInIfNoOwnerServes) {
  const ServerSet set{2, {false, true, false}};
  EXPECT_EQ(set.stand_in(0, 0, {0, 2}), ServerSet::kNone);
  EXPECT_EQ(set.stand_in(0, 0, {}), ServerSet::kNone);
  EXPECT_EQ(set.stand_in(5, 0, all(3)), 1u);  // a home beyond the set does not serve
}

TEST(ServerSet, OnlyTheShardsOfOneThatComesOrGoesMove) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const uint32_t servers = 2 + random() % 12;
    ServerSet before{1, std::vector<bool>(servers)}, after;
    for (uint32_t s = 0; s < servers; ++s) before.serving[s] = random() % 4 != 0;
    after = before;
    const uint32_t changed = random() % servers;
    after.serving[changed] = !before.serving[changed];
    for (uint32_t home = 0; home < servers; ++home) {
      for (uint32_t buffer = 0; buffer < 20; ++buffer) {
        const uint32_t a = before.stand_in(home, buffer, all(servers));
        const uint32_t b = after.stand_in(home, buffer, all(servers));
        if (a == b) continue;
        EXPECT_TRUE(a == changed || b == changed || a == ServerSet::kNone || b == ServerSet::kNone)
            << home << " moved from " << a << " to " << b << " when " << changed << " changed";
      }
    }
  }
}

TEST(ServerSet, TheBuffersOfOneHomeAreSpread) {
  ServerSet set{2, std::vector<bool>(8, true)};
  set.serving[3] = false;
  std::vector<int> counts(8);
  for (uint32_t buffer = 0; buffer < 7000; ++buffer) ++counts[set.stand_in(3, buffer, all(8))];
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
