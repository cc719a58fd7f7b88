#include "links/route.h"

#include <gtest/gtest.h>

#include "transfers.h"

namespace herring::links {
namespace {

using namespace testing;

class RouteTest : public ::testing::Test {
 protected:
  RouteTest() {
    for (uint32_t server = 0; server < 3; ++server) route.add_server(server);
  }
  void choose(Transfer& transfer) {
    for (uint32_t run = 0; run < transfer.runs.size(); ++run) {
      const auto now = route.stand_in(transfer, run);
      transfer.ways[run].server = now.server;
      transfer.ways[run].since = now.epoch;
    }
  }

  Route route{LinksOptions{}};
  control::ServerSet set = control::ServerSet::all(3);
};

TEST_F(RouteTest, RunsBelongToTheirHomesAtFirst) {
  Transfer transfer = to_servers(3, {7, 0, 0});
  choose(transfer);
  for (uint32_t run = 0; run < 3; ++run) {
    EXPECT_EQ(server_of(transfer, run), home_of(transfer, run));
    EXPECT_EQ(stream_id(transfer, run), (StreamId{0, 7, 0, 0}));
  }
}

TEST_F(RouteTest, AnotherServerStandsInForOneThatIsLost) {
  Transfer transfer = to_servers(3, {7, 0, 0});
  set.lose(1);
  EXPECT_EQ(route.serve(set), std::vector<uint32_t>{1});
  EXPECT_EQ(route.serve(set), std::vector<uint32_t>{}) << "it is lost once";
  choose(transfer);
  EXPECT_NE(server_of(transfer, 1), 1u);
  EXPECT_EQ(stream_id(transfer, 1), (StreamId{0, 7, 2, set.epoch}))
      << "a stream of its own, so that ranks push in one order there, too";
  EXPECT_EQ(server_of(transfer, 0), 0u);
}

TEST_F(RouteTest, WhatIsKeptReturnsToItsHomeAndTheRestDoesNot) {
  Transfer kept = to_servers(3, {7, 0, 0}), other = to_servers(3, {8, 0, 0});
  other.lockstep = false;
  other.open.participants = wire::Participants::kRanks;
  set.lose(1);
  route.serve(set);
  set.add(1);
  route.serve(set);
  choose(kept);
  choose(other);
  EXPECT_EQ(server_of(kept, 1), 1u);
  EXPECT_NE(server_of(other, 1), 1u) << "some ranks may have its results and others not";
}

TEST_F(RouteTest, AnAttemptUsesTheVersionThatItNames) {
  Transfer transfer = to_servers(3, {7, 0, 0});
  transfer.lockstep = false;
  transfer.open.participants = wire::Participants::kRanks;
  transfer.attempt = 0;
  set.lose(1);
  route.serve(set);
  choose(transfer);
  EXPECT_EQ(server_of(transfer, 1), 1u);
  EXPECT_TRUE(route.is_gone(transfer, 1));
  EXPECT_FALSE(route.is_gone(transfer, 0));
  transfer.attempt = set.epoch;
  choose(transfer);
  EXPECT_NE(server_of(transfer, 1), 1u);
  EXPECT_FALSE(route.is_gone(transfer, 1));
}

TEST_F(RouteTest, TheWindowSettlesIfAllPushTheSameOnOneConnection) {
  route.add_group(5, {0, 2}, false);
  route.add_group(6, {0, 2}, true);
  EXPECT_TRUE(route.window_settles(0));
  EXPECT_FALSE(route.window_settles(5));
  EXPECT_TRUE(route.window_settles(6));
  EXPECT_EQ(route.servers_of(6), (std::vector<uint32_t>{0, 2}));
  LinksOptions options;
  options.flows = 2;
  EXPECT_FALSE(Route(options).window_settles(0));
}

TEST_F(RouteTest, VersionsAreForgottenThatNobodyUses) {
  for (int change = 0; change < 400; ++change) {
    change % 2 == 0 ? set.lose(1) : set.add(1);
    route.serve(set);
  }
  route.forget_versions(0);
  EXPECT_EQ(route.known_versions(), 401u);
  route.forget_versions(route.lost_in());
  EXPECT_EQ(route.known_versions(), 256u);
}

TEST_F(RouteTest, WhatIsLostIsNotAwaited) {
  Transfer transfer = to_servers(3, {7, 0, 0});
  lose(transfer, 1);
  EXPECT_EQ(transfer.fewest_workers, 0u);
  EXPECT_EQ(transfer.segments_left, transfer.runs[0].count + transfer.runs[2].count);
  lose(transfer, 1);
  EXPECT_FALSE(is_over(transfer));
  transfer.on_the_way[0] = 3;
  call_off(transfer);
  EXPECT_EQ(transfer.segments_left, 3u);
  lose(transfer, 0);
  EXPECT_TRUE(is_over(transfer));
}

}  // namespace
}  // namespace herring::links
