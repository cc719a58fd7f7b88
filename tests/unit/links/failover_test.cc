// Links of a job that goes on when a server dies (links/failover.cc).
#include "base/streams.h"
#include "links_fixture.h"

namespace herring::links {
namespace {

using namespace testing;

// A worker has died, so the group is called off; then a server dies, whose answers never come.
TEST_F(LinksTest, WhatIsCalledOffDoesNotWaitForAServerThatIsLost) {
  failover = true;
  make({1, 1});
  control::ServerSet set = control::ServerSet::all(2);
  set.lose(1);
  uint32_t before = 0;
  loop.post([&] {
    push();
    when_quiet([&] {
      before = servers[0]->segments;
      links->call_off(0);
      links->serve(set);
      EXPECT_FALSE(done);  // the other server still has some of its bytes
      when_quiet([&] { servers[0]->answer(); });
    });
  });
  loop.run();
  EXPECT_TRUE(done);
  EXPECT_TRUE(transfer.called_off);
  EXPECT_EQ(servers[0]->segments, before);  // and does not get those of the server that is lost
}

// With several connections to a server, older results may be stuck on one of them, so nobody knows
// when results are not needed any more.
TEST_F(LinksTest, WhatCannotBeKeptCannotMove) { check_moving(false, 2); }
TEST_F(LinksTest, RoundsOfAPlanMoveBecauseTheyFollowEachOther) { check_moving(true, 2); }
TEST_F(LinksTest, WhatTheWindowBoundsMoves) { check_moving(false, 1); }

// The other way round: nothing of a group that is called off moves to another server.
TEST_F(LinksTest, WhatHasMovedIsCalledOff) {
  failover = true;
  make({1, 1});
  control::ServerSet set = control::ServerSet::all(2);
  set.lose(1);
  uint32_t before = 0;
  loop.post([&] {
    push();
    when_quiet([&] {
      links->serve(set);
      links->call_off(0);
      before = servers[0]->segments;
      when_quiet([&] { servers[0]->answer(); });
    });
  });
  loop.run();
  EXPECT_TRUE(done);
  EXPECT_LE(servers[0]->segments, before + 2);  // at most a segment of each stream was on its way
}

// The only server of a group dies, but not that of others.
TEST_F(LinksTest, AGroupWithoutServersWaitsForNobody) {
  failover = true;
  make({1, 1});
  links->add_group(5, {1}, true);
  transfer.key = {0, 0, 0, 5};
  transfer.shards = plan::shard_layout(data.size(), {0, 1});
  transfer.runs = plan::local_slice(transfer.shards, kSegment, 0, 1);
  control::ServerSet set = control::ServerSet::all(2);
  set.lose(1);
  int ends = 0;
  on_done = [&] {
    EXPECT_TRUE(transfer.called_off);
    // What comes later ends at once.
    const bool again = ++ends == 1;
    loop.post([&, again] {
      if (again) return push();
      on_done = {};
      transfer.key = {7, 0, 0};
      transfer.shards = plan::shard_layout(data.size(), {1, 0});
      transfer.runs = plan::local_slice(transfer.shards, kSegment, 0, 1);
      servers[0]->answering = true;
      push();
    });
  };
  loop.post([&] {
    push();
    when_quiet([&] {
      links->call_off(5);
      links->abandon(5);
      links->serve(set);
      EXPECT_EQ(ends, 1);
    });
  });
  loop.run();
  EXPECT_EQ(ends, 2);
  EXPECT_TRUE(done);
  EXPECT_FALSE(transfer.called_off) << "another group goes on";
  EXPECT_EQ(data, expected);
}

// With one server of two, the transfer is whole.
TEST_F(LinksTest, TheOtherServerDoesTheWorkOfOneThatIsLost) {
  failover = true;
  make({1, 1});
  control::ServerSet set = control::ServerSet::all(2);
  set.lose(1);
  servers[0]->answering = true;
  loop.post([&] {
    push();
    when_quiet([&] { links->serve(set); });
  });
  loop.run();
  EXPECT_TRUE(done);
  EXPECT_EQ(servers[0]->segments, 96u);
  EXPECT_EQ(data, expected);
}

// A reign that ends leaves results that nothing later in its stream settles.
TEST_F(LinksTest, AResultOfALaterReignSettlesAllEarlierOnes) {
  failover = true;
  make({1, 1});
  servers[0]->answering = servers[1]->answering = true;
  std::vector<size_t> kept;
  uint32_t epoch = 0;
  on_done = [&] {
    EXPECT_EQ(data, expected);
    loop.post([&] {
      kept.push_back(links->kept().size());
      if (++epoch == 5) return loop.stop();
      transfer.key.stream = stream_of({1, epoch}, 2);
      push();
    });
  };
  transfer.key.stream = stream_of({1, epoch}, 2);
  loop.post([&] { push(); });
  loop.run();
  EXPECT_EQ(kept, std::vector<size_t>(5, 1));
}

// Nothing follows in the stream of a plan that is closed.
TEST_F(LinksTest, WhatAllRanksHaveIsNotKept) {
  failover = true;
  make({1, 1});
  servers[0]->answering = servers[1]->answering = true;
  transfer.lockstep = true;
  transfer.key.round = 3;
  size_t kept = 0;
  loop.post([&] {
    EXPECT_TRUE(links->over().empty());
    push();
    EXPECT_TRUE(links->over().empty()) << "it is on its way";
  });
  loop.run();
  kept = links->bytes_kept();
  EXPECT_GE(kept, data.size());
  const std::vector<Links::StreamProgress> over = links->over();
  ASSERT_EQ(over.size(), 1u);
  EXPECT_EQ(over[0].stream, 7u);
  EXPECT_EQ(over[0].upto, wire::settled_at(transfer.key));
  // Another stream, another group, an earlier round.
  links->settle({0, 8, over[0].upto});
  links->settle({5, 7, over[0].upto});
  links->settle({0, 7, over[0].upto - 1});
  EXPECT_EQ(links->bytes_kept(), kept);
  EXPECT_EQ(links->over().size(), 1u);
  links->settle(over[0]);
  EXPECT_EQ(links->bytes_kept(), 0u);
  EXPECT_TRUE(links->kept().empty());
  EXPECT_TRUE(links->over().empty());
}

// A plan rests, is settled, and goes on. Then a server dies in a round.
TEST_F(LinksTest, AStreamGoesOnAfterItWasSettled) {
  failover = true;
  make({1, 1});
  servers[0]->answering = servers[1]->answering = true;
  transfer.lockstep = true;
  control::ServerSet set = control::ServerSet::all(2);
  set.lose(1);
  uint32_t rounds = 0;
  on_done = [&] {
    EXPECT_EQ(data, expected);
    loop.post([&] {
      if (++rounds == 3) return loop.stop();
      links->settle(links->over().at(0));
      EXPECT_EQ(links->bytes_kept(), 0u);
      ++transfer.key.round;
      if (rounds == 2) servers[1]->answering = false;
      push();
      if (rounds == 2) when_quiet([&] { links->serve(set); }, servers[0]->segments);
    });
  };
  loop.post([&] { push(); });
  loop.run();
  EXPECT_EQ(rounds, 3u);
  links->settle(links->over().at(0));
  EXPECT_EQ(links->bytes_kept(), 0u);
}

// A rank may have no share of a small buffer. The others wait until it says that it lacks nothing.
TEST_F(LinksTest, ARankWithoutAShareHasEverything) {
  failover = true;
  make({1, 1});
  transfer.lockstep = true;
  transfer.runs.clear();
  loop.post([&] { push(); });
  loop.run();
  ASSERT_EQ(links->over().size(), 1u);
  EXPECT_EQ(links->over()[0].upto, wire::settled_at(transfer.key));
  EXPECT_EQ(links->bytes_kept(), 0u);
}

TEST_F(LinksTest, NothingIsKeptOfAGroupThatIsDestroyed) {
  failover = true;
  make({1, 1});
  servers[0]->answering = servers[1]->answering = true;
  transfer.lockstep = true;
  links->add_group(5, {0, 1}, true);
  transfer.key.group = 5;
  loop.post([&] { push(); });
  loop.run();
  EXPECT_EQ(links->over().size(), 1u);
  links->remove_group(5);
  EXPECT_EQ(links->bytes_kept(), 0u);
  EXPECT_TRUE(links->over().empty());
}

// The results of a home say nothing about those of another home or group.
TEST_F(LinksTest, AResultOfALaterReignSettlesNothingOfOtherNames) {
  failover = true;
  make({1, 1});
  links->add_group(5, {0, 1}, true);
  servers[0]->answering = servers[1]->answering = true;
  // A plan's stream, two homes, a group, and a later reign of one of the homes.
  const std::vector<Key> keys{{8, 0}, {0, 0}, {1, 0}, {1, 0, 0, 5}, {stream_of({1, 3}, 2), 0}};
  size_t next = 0;
  on_done = [&] {
    loop.post([&] {
      if (next == keys.size()) return loop.stop();
      transfer.key = keys[next++];
      push();
    });
  };
  loop.post([&] { on_done(); });
  loop.run();
  EXPECT_EQ(links->kept(), (std::vector<Key>{{0, 0}, {1, 0, 0, 5}, {8, 0}, keys.back()}));
}

// A result that is on its way to another server although nobody lacks it any more is forgotten when
// that server is lost, too.
TEST_F(LinksTest, NothingIsKeptForAnAnswerThatNeverComes) {
  failover = true;
  make({1, 1, 1});
  for (const auto& server : servers) server->answering = true;
  control::ServerSet set = control::ServerSet::all(3);
  set.lose(0);
  const uint32_t heir = set.stand_in(0, 0, {0, 1, 2}).server;
  transfer.key.stream = 0;
  on_done = [&] {
    EXPECT_EQ(links->kept().size(), 1u);
    servers[heir]->answering = false;
    links->serve(set);  // the stand-in gets the results of server 0
    when_quiet([&] {
      EXPECT_EQ(servers[heir]->waiting.size(), 1u);
      transfer.key.stream = stream_of({0, 1}, 3);
      on_done = [] { ADD_FAILURE() << "a server has not answered"; };
      push();
      when_quiet([&] {
        EXPECT_EQ(links->kept(), (std::vector<Key>{{0, 0}}));  // until this is answered
        set.lose(heir);
        links->serve(set);
        EXPECT_TRUE(links->kept().empty());
        loop.stop();
      });
    });
  };
  loop.post([&] { push(); });
  loop.run();
}

// A rank may destroy a group at the moment in which a server is lost.
TEST_F(LinksTest, AGroupGoesWhileItsResultsAreGiven) {
  failover = true;
  make({1, 1});
  links->add_group(5, {0, 1}, true);
  for (const auto& server : servers) server->answering = true;
  control::ServerSet set = control::ServerSet::all(2);
  set.lose(0);
  transfer.key = {0, 0, 0, 5};
  on_done = [&] {
    servers[1]->answering = false;
    links->serve(set);
    when_quiet([&] {
      EXPECT_EQ(servers[1]->waiting.size(), 1u);  // more is queued
      links->remove_group(5);
      EXPECT_EQ(links->kept().size(), 1u);  // until this is answered
      const uint32_t before = servers[1]->segments;
      servers[1]->answer();
      when_quiet([&, before] {
        EXPECT_TRUE(links->kept().empty());
        EXPECT_EQ(servers[1]->segments, before);
        loop.stop();
      });
    });
  };
  loop.post([&] { push(); });
  loop.run();
}

TEST_F(LinksTest, AGroupGoesWithItsKeptResults) {
  failover = true;
  make({1, 1});
  links->add_group(5, {0, 1}, true);
  for (const auto& server : servers) server->answering = true;
  transfer.key = {0, 0, 0, 5};
  on_done = [&] {
    loop.post([&] {
      EXPECT_EQ(links->kept().size(), 1u);
      links->remove_group(5);
      EXPECT_TRUE(links->kept().empty());
      loop.stop();
    });
  };
  loop.post([&] { push(); });
  loop.run();
}

// A rank says how many workers are in a result only if it has some of it.
TEST_F(LinksTest, TheWorkersOfAnEarlierRoundAreNotThoseOfThisOne) {
  failover = true;
  make({1, 1});
  transfer.lockstep = true;
  servers[0]->acknowledging = true;
  servers[0]->answering = servers[1]->answering = true;
  on_done = [&] {
    EXPECT_EQ(transfer.workers, 1u);
    servers[0]->answering = servers[1]->answering = false;
    ++transfer.key.round;
    loop.post([&] {
      on_done = [] { ADD_FAILURE() << "no server has answered"; };
      push();
      when_quiet([&] {
        control::ServerSet set = control::ServerSet::all(2);
        set.lose(1);
        links->serve(set);
        when_quiet([&] { loop.stop(); });
      });
    });
  };
  loop.post([&] { push(); });
  loop.run();
  EXPECT_TRUE(servers[0]->opened.again);
  EXPECT_EQ(servers[0]->opened.result_workers, 0u);
  links.reset();
}

TEST_F(LinksTest, VersionsOfTheSetThatNobodyUsesAreForgotten) {
  failover = true;
  make({1, 1, 1});
  transfer.attempt = 0;
  control::ServerSet set = control::ServerSet::all(3);
  const auto change = [&] {
    set.lose(2);
    links->serve(set);
    set.add(2);
    links->serve(set);
  };
  on_done = [&] {
    loop.post([&] {
      change();
      EXPECT_LE(links->known_versions(), 256u);
      loop.stop();
    });
  };
  loop.post([&] {
    push();
    when_quiet([&] {
      for (int i = 0; i < 1000; ++i) change();
      EXPECT_EQ(links->known_versions(), 2001u) << "the transfer uses the first one";
      for (const auto& server : servers) {
        server->answering = true;
        server->answer();
      }
    });
  });
  loop.run();
}

class ReignsTest : public LinksTest {
 protected:
  // Pushes the transfer, and another one of a later reign, to servers that do not answer.
  void push_in_two_reigns() {
    failover = true;
    make({1, 1});
    transfer.key.stream = 0;
    later = transfer;
    later.key.stream = stream_of({0, 1}, 2);
    later_data = data;
    later.send = later.receive = later_data.data();
    on_done = [this] { done = later.segments_left == 0; };
    push();
    EXPECT_TRUE(links->push(later).ok());
  }
  // The number of frames of the later reign that servers have.
  size_t of_later_reign() const {
    size_t frames = 0;
    for (const auto& server : servers) {
      frames += static_cast<size_t>(std::ranges::count_if(server->waiting, [&](const auto& one) {
        return one.first.stream == later.key.stream;
      }));
    }
    return frames;
  }

  Transfer later;
  std::string later_data;
};

TEST_F(ReignsTest, NothingIsPushedBeforeAllOfEarlierReignsIsHere) {
  loop.post([&] {
    push_in_two_reigns();
    when_quiet([&] {
      EXPECT_EQ(servers[0]->segments + servers[1]->segments, 2u);
      EXPECT_EQ(of_later_reign(), 0u);
      EXPECT_TRUE(links->busy(0));
      servers[0]->answer();
      when_quiet([&] {  // server 1 has one segment of the first transfer
        EXPECT_EQ(servers[0]->segments, 48u);
        EXPECT_EQ(of_later_reign(), 0u);
        servers[1]->answer();
        when_quiet([&] { loop.stop(); });
      });
    });
  });
  loop.run();
  EXPECT_TRUE(done);
  EXPECT_EQ(servers[0]->segments + servers[1]->segments, 2 * 96u);
  EXPECT_EQ(data, expected);
  EXPECT_EQ(later_data, expected);
}

TEST_F(ReignsTest, WhatWaitsForAnEarlierReignMoves) {
  loop.post([&] {
    push_in_two_reigns();
    when_quiet([&] {
      control::ServerSet set = control::ServerSet::all(2);
      set.lose(1);
      links->serve(set);
      when_quiet([&] {
        EXPECT_EQ(of_later_reign(), 0u);
        servers[0]->answer();
        when_quiet([&] { loop.stop(); });
      });
    });
  });
  loop.run();
  EXPECT_TRUE(done);
  EXPECT_EQ(servers[0]->segments, 2 * 96u);
  EXPECT_EQ(data, expected);
  EXPECT_EQ(later_data, expected);
}

TEST_F(ReignsTest, WhatWaitsForAnEarlierReignIsCalledOffAtOnce) {
  loop.post([&] {
    push_in_two_reigns();
    when_quiet([&] {
      links->call_off(0);
      EXPECT_TRUE(later.called_off);
      EXPECT_EQ(later.segments_left, 0u);
      EXPECT_GT(transfer.segments_left, 0u);  // servers have some of its bytes
      servers[0]->answer();
      servers[1]->answer();
      when_quiet([&] { loop.stop(); });
    });
  });
  loop.run();
  EXPECT_FALSE(links->busy(0));
  EXPECT_EQ(servers[0]->segments + servers[1]->segments, 2u);
}

// Where nobody keeps results, nothing moves back to a server that serves again: one rank may have a
// result that another one still waits for.
TEST_F(LinksTest, WhatNobodyKeepsStaysWithTheStandIn) {
  failover = several_flows = true;
  make({1, 1});
  control::ServerSet set = control::ServerSet::all(2);
  auto [near, far] = connected_pair();
  Server second(loop, std::move(far));
  links->add_flow(0, *transport::tcp::make_connection(std::move(near), "server"));
  loop.post([&] {
    set.lose(1);
    links->serve(set);
    push();
    when_quiet([&] {
      auto [here, there] = connected_pair();
      servers[1] = std::make_unique<Server>(loop, std::move(there));
      std::vector<std::unique_ptr<transport::Connection>> connections;
      connections.push_back(transport::tcp::make_connection(std::move(here), "server"));
      links->server_replaced(1, std::move(connections));
      set.add(1);
      links->serve(set);
      second.answering = true;
      servers[0]->answer();
      second.answer();
    });
  });
  loop.run();
  EXPECT_TRUE(done);
  EXPECT_EQ(data, expected);
  EXPECT_EQ(servers[1]->segments, 0u);
  EXPECT_EQ(servers[0]->segments + second.segments, 96u);
  links.reset();
}

// Links of servers with different loads wait for each other. What is pushed again to a server that
// came back takes no part in that, and what is queued behind it does.
TEST_F(LinksTest, UnequalServersStayInStepWhenOneComesBack) {
  failover = true;
  make({3, 1});
  control::ServerSet set = control::ServerSet::all(2);
  set.lose(1);
  Transfer next = transfer;
  next.key.round = 1;
  std::string more = data;
  next.send = next.receive = more.data();
  uint32_t left = 2;
  on_done = [&] {
    if (--left == 0) loop.stop();
  };
  const auto come_back = [&] {
    auto [near, far] = connected_pair();
    servers[1] = std::make_unique<Server>(loop, std::move(far));
    std::vector<std::unique_ptr<transport::Connection>> connections;
    connections.push_back(transport::tcp::make_connection(std::move(near), "server"));
    links->server_replaced(1, std::move(connections));
    set.add(1);
    links->serve(set);
    EXPECT_TRUE(links->push(next).ok());
    servers[0]->answer();
    when_quiet([&] { servers[1]->answer(); });
  };
  loop.post([&] {
    push();
    when_quiet([&] {
      links->serve(set);
      when_quiet(come_back);
    });
  });
  loop.run();
  EXPECT_EQ(left, 0u);
  EXPECT_EQ(data, expected);
  EXPECT_EQ(more, expected);
}

}  // namespace
}  // namespace herring::links
