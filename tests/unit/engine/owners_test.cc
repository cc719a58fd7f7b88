// Who answers for names.
#include <gtest/gtest.h>

#include <random>

#include "engine/owners.h"

namespace herring::engine {
namespace {

const std::vector<uint32_t> kOwners{0, 1, 2};

TEST(Owners, HomesAnswerForTheirNamesFromTheStartOn) {
  const Owners owners;
  EXPECT_EQ(owners.of(kOwners, 2), (Owner{{2}, 2}));
  EXPECT_TRUE(owners.has(2));
}

TEST(Owners, NamesMoveOnlyIfTheirServerDies) {
  Owners owners;
  control::ServerSet set = control::ServerSet::all(3);
  set.lose(1);
  owners.serve(set);
  EXPECT_EQ(owners.of(kOwners, 0), (Owner{{0}, 0}));
  const Owner stands_in = owners.of(kOwners, 1);
  EXPECT_EQ(stands_in.reign, (Reign{1, set.epoch}));
  ASSERT_NE(stands_in.server, 1u);
  EXPECT_FALSE(owners.has(1));
  set.add(1);  // it has been replaced
  owners.serve(set);
  EXPECT_EQ(owners.of(kOwners, 1), stands_in);
  set.lose(stands_in.server);
  owners.serve(set);
  EXPECT_EQ(owners.of(kOwners, 1), (Owner{{1, set.epoch}, 1})) << "they return to their home";
}

TEST(Owners, TheLastOneStaysIfNoneIsLeft) {
  Owners owners;
  control::ServerSet set = control::ServerSet::all(4);
  for (const uint32_t server : kOwners) set.lose(server);
  owners.serve(set);
  EXPECT_EQ(owners.of(kOwners, 1), (Owner{{1}, 1}));
}

// Follows all versions of the set of servers in turn.
Owner after(const std::vector<control::ServerSet>& versions, const std::vector<uint32_t>& owners,
            uint32_t home) {
  Owner owner{{home}, home};
  for (const control::ServerSet& set : versions) {
    if (set.has(owner.server)) continue;
    const uint32_t next = set.stand_in(home, 0, owners).server;
    if (next != control::ServerSet::kNone) owner = {{home, set.epoch}, next};
  }
  return owner;
}

TEST(Owners, FollowAllVersions) {
  std::mt19937 random(1);
  for (int job = 0; job < 50; ++job) {
    const uint32_t servers = 2 + random() % 5;
    control::ServerSet set = control::ServerSet::all(servers);
    std::vector<control::ServerSet> versions;
    Owners owners;
    for (int version = 0; version < 30; ++version) {
      for (uint32_t changes = 1 + random() % 2; changes > 0; --changes) {
        const uint32_t server = random() % servers;
        set.has(server) ? set.lose(server) : set.add(server);
      }
      versions.push_back(set);
      owners.serve(set);
      std::vector<uint32_t> group;  // perhaps one that is formed only now
      for (uint32_t server = 0; server < servers; ++server) {
        EXPECT_EQ(owners.has(server), set.has(server));
        if (random() % 2 == 0) group.push_back(server);
      }
      for (const uint32_t home : group) {
        ASSERT_EQ(owners.of(group, home), after(versions, group, home));
      }
    }
  }
}

// A call takes no longer because of changes long ago.
TEST(Owners, AreFoundOnceForEachVersion) {
  control::ServerSet set = control::ServerSet::all(3);
  Owners owners;
  for (int change = 0; change < 100'000; ++change) {
    set.lose(change % 3);
    owners.serve(set);
    set.add(change % 3);
    owners.serve(set);
  }
  const Owner owner = owners.of(kOwners, 1);
  for (int call = 0; call < 100'000; ++call) ASSERT_EQ(owners.of(kOwners, 1), owner);
}

}  // namespace
}  // namespace herring::engine
