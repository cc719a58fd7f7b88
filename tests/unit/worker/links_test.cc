#include "worker/links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "../transport/pair.h"
#include "base/streams.h"
#include "transport/tcp/transport.h"

namespace herring::worker {
namespace {

using transport::Destinations;
using transport::DescriptorLoop;
using transport::Flow;
using transport::tcp::TcpFlow;
using transport::tcp::testing::connected_pair;

constexpr size_t kSegment = 1024;

// Answers every push with the same bytes, at once or when told to.
class Server : public transport::FlowHandler {
 public:
  Server(DescriptorLoop& loop, GuardedFd fd)
      : flow(std::make_unique<TcpFlow>(loop, std::move(fd), *this, "worker")) {}

  Status on_header(Flow&, const wire::FrameHeader& header, Destinations& out) override {
    payload.resize(header.payload);
    if (header.payload > 0) out.add(payload.data(), payload.size());
    return {};
  }
  Status on_frame(Flow&, const wire::FrameHeader& header) override {
    if (header.type == wire::FrameType::kTaken) ++taken_frames;
    if (header.type == wire::FrameType::kTaken || header.type == wire::FrameType::kData) {
      // The count never exceeds what was lent, and never decreases.
      const uint32_t fresh = header.taken - static_cast<uint32_t>(taken);
      EXPECT_LE(taken + fresh, lent);
      taken += fresh;
    }
    if (header.type != wire::FrameType::kData) return {};
    most_waiting = std::max<size_t>(most_waiting, waiting.size() + 1);
    waiting.emplace_back(header, payload);
    segments += header.segments;
    if (answering) answer();
    return {};
  }
  void on_closed(Flow&, const Status&) override {}
  void answer() {
    answering = true;
    for (auto& [pushed, bytes] : std::exchange(waiting, {})) {
      wire::FrameHeader header = pushed;
      header.type = wire::FrameType::kResult;
      header.flags = lending ? wire::kFlagLent : 0;
      header.workers = 1;
      if (lending) lent += header.segments;
      flow->send_owned(header, std::move(bytes));
    }
  }

  std::unique_ptr<TcpFlow> flow;
  std::string payload;
  std::vector<std::pair<wire::FrameHeader, std::string>> waiting;
  size_t most_waiting = 0;  // frames; the credit that was used
  uint32_t segments = 0;
  bool answering = false;
  bool lending = false;
  size_t lent = 0, taken = 0;  // segments
  int taken_frames = 0;
};

class LinksTest : public ::testing::Test, public TransferOwner {
 protected:
  void make(std::vector<double> weights) {
    LinksOptions options;
    options.segment_bytes = kSegment;
    options.credit_initial = 1;
    options.credit_fixed = true;
    options.credit_max = 128;
    options.weights = weights;
    options.failover = failover;
    links = std::make_unique<Links>(
        loop, options, [](uint32_t, const wire::FrameHeader&, std::string_view) {},
        [](uint32_t, const Status& why) { FAIL() << why.message(); });
    for (uint32_t s = 0; s < weights.size(); ++s) {
      auto [near, far] = connected_pair();
      servers.push_back(std::make_unique<Server>(loop, std::move(far)));
      links->add_flow(s, *transport::tcp::make_connection(std::move(near), "server"));
    }
    data.resize(96 * kSegment);
    std::iota(data.begin(), data.end(), 0);
    expected = data;
    transfer.key = {7, 0, 0};
    transfer.open.name = "test";
    transfer.send = transfer.receive = data.data();
    transfer.shards = plan::shard_layout(data.size(), weights);
    transfer.runs = plan::local_slice(transfer.shards, kSegment, 0, 1);
    transfer.owner = this;
  }
  void push() { EXPECT_TRUE(links->push(transfer).ok()); }
  void on_transfer_done(Transfer&) override {
    if (on_done) return on_done();
    done = true;
    loop.stop();
  }
  void when_all_is_taken() {
    if (servers[0]->taken == servers[0]->lent) return loop.stop();
    loop.post([this] { when_all_is_taken(); });
  }
  // With failover, pushes a transfer that may move to another server if it is one of a plan, or if
  // there is one flow.
  void check_moving(bool lockstep, int flows) {
    failover = true;
    make({1, 1});
    std::unique_ptr<Server> second;
    if (flows == 2) {
      auto [near, far] = connected_pair();
      second = std::make_unique<Server>(loop, std::move(far));
      second->answering = true;
      links->add_flow(0, *transport::tcp::make_connection(std::move(near), "server"));
    }
    transfer.lockstep = lockstep;
    servers[0]->answering = servers[1]->answering = true;
    loop.post([&] {
      push();
      EXPECT_EQ(links->can_move(), lockstep || flows == 1);
    });
    loop.run();
    EXPECT_TRUE(done);
    EXPECT_EQ(data, expected);
    EXPECT_TRUE(links->can_move());
    links.reset();
  }
  // Loses a server in a round of a partial all-reduce. `when` calls the function that it is given
  // after the push.
  void lose_a_server(std::function<void(std::function<void()>)> when) {
    make({1, 1});
    transfer.key.stream = wire::kPartialStreams;
    servers[0]->answering = true;
    loop.post([&] {
      push();
      when([this] { links->server_lost(1); });
    });
    loop.run();
    EXPECT_TRUE(done);
    EXPECT_EQ(transfer.fewest_workers, 0u);
    EXPECT_EQ(transfer.segments_left, 0u);
  }
  // Runs `then` once nothing moves any more. Everything runs in this thread, so pending work shows
  // within a few turns of the loop.
  void when_quiet(std::function<void()> then, uint32_t before = 0, int turns = 0) {
    uint32_t now = 0;
    for (const auto& server : servers) now += server->segments;
    turns = now == before && now > 0 ? turns + 1 : 0;
    if (turns == 1000) return then();
    loop.post([this, then, now, turns] { when_quiet(then, now, turns); });
  }

  transport::EpollLoop loop;
  std::vector<std::unique_ptr<Server>> servers;
  std::unique_ptr<Links> links;
  std::string data, expected;
  Transfer transfer;
  bool done = false, failover = false;
  std::function<void()> on_done;
};

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

TEST_F(LinksTest, TheRoundTripToEachServerIsKnown) {
  make({1, 1});
  servers[0]->answering = servers[1]->answering = true;
  std::vector<transport::PathInfo> paths;
  loop.post([&] { push(); });
  loop.run();
  paths = links->paths();
  ASSERT_EQ(paths.size(), 2u);
  for (const transport::PathInfo& path : paths) {
    EXPECT_GT(path.min_rtt, 0);
    EXPECT_LE(path.min_rtt, path.rtt);
    EXPECT_LT(path.rtt, 60 * kSecond);
  }
}

// A credit of one segment hands a transfer to the flow piece by piece.
TEST_F(LinksTest, ATransferIsPushedWhenItsLastBytesAreHandedToTheFlows) {
  make({1, 1});
  observe::Recorder recorder;
  transfer.mark = {&recorder, recorder.begin({})};
  const auto pushed = [&] { return recorder.latest(1).front().when(observe::Moment::kPushed); };
  servers[0]->answering = true;
  loop.post([&] {
    push();
    when_quiet([&] {
      EXPECT_FALSE(done);
      EXPECT_EQ(pushed(), 0);  // server 1 has not answered, and lacks most of its shard
      servers[1]->answer();
    });
  });
  loop.run();
  EXPECT_TRUE(done);
  EXPECT_GE(pushed(), transfer.pushed_at);
  EXPECT_LE(pushed(), loop.now());
}

TEST_F(LinksTest, ALightServerDoesNotRunAheadOfAHeavyOne) {
  make({3, 1});  // 72 and 24 segments
  servers[1]->answering = true;
  uint32_t light = 0, heavy = 0;
  loop.post([&] {
    push();
    when_quiet([&] {
      heavy = servers[0]->segments;
      light = servers[1]->segments;
      servers[0]->answer();
    });
  });
  loop.run();
  // The heavy server has three times the bytes and three times the credit. The light server stops a
  // few frames ahead.
  EXPECT_EQ(servers[0]->most_waiting, 3u);
  EXPECT_EQ(heavy, 3u);
  EXPECT_GE(light, 2u);
  EXPECT_LE(light, 5u);
  EXPECT_TRUE(done);
  EXPECT_EQ(servers[0]->segments, 72u);
  EXPECT_EQ(servers[1]->segments, 24u);
  EXPECT_EQ(data, expected);
}

// The server may reuse the memory of lent results only when it is told so. Later pushes tell it
// along the way, and a frame of its own tells it in the end.
TEST_F(LinksTest, AllThatWasLentIsGivenBack) {
  make({1});
  Server& server = *servers[0];
  server.answering = server.lending = true;
  int rounds = 0;
  on_done = [&] {
    if (++rounds < 70) {
      ++transfer.key.round;
      return push();
    }
    when_all_is_taken();
  };
  loop.post([&] { push(); });
  loop.run();
  EXPECT_EQ(server.lent, 70u * 96);
  EXPECT_EQ(server.taken, server.lent);
  EXPECT_EQ(server.taken_frames, 1);
  EXPECT_EQ(data, expected);
}

// However the transfer ends, its memory belongs to the caller again. Late results are dropped.
TEST_F(LinksTest, NothingTouchesATransferThatWasForgotten) {
  for (const bool finishes : {true, false}) {
    servers.clear();
    done = false;
    make({1, 1});
    servers[0]->answering = servers[1]->answering = false;
    auto owned = std::make_shared<int>();
    const std::weak_ptr<int> share = owned;
    loop.post([&] {
      EXPECT_TRUE(links->push(transfer, std::move(owned)).ok());
      EXPECT_FALSE(links->push(transfer).ok()) << "in flight already";
      when_quiet([&] {
        EXPECT_FALSE(share.expired());
        finishes ? links->finish() : links->clear();
        EXPECT_TRUE(share.expired());
        data.assign(data.size(), 'x');
        expected = data;
        servers[0]->answer();
        servers[1]->answer();
        loop.call_after(20 * kMillisecond, [&] { loop.stop(); });
      });
    });
    loop.run();
    EXPECT_FALSE(done);
    EXPECT_EQ(data, expected);
  }
}

TEST_F(LinksTest, APartialRoundIsNotWholeWithoutAServerThatWasPushedTo) {
  lose_a_server([this](auto lose) { when_quiet(lose); });
}

TEST_F(LinksTest, APartialRoundIsNotWholeWithoutAServerThatHadItInAQueue) {
  lose_a_server([](auto lose) { lose(); });
}

TEST_F(LinksTest, EqualServersDoNotWaitForEachOther) {
  make({1, 1});
  servers[1]->answering = true;
  uint32_t free_one = 0, stuck = 0;
  loop.post([&] {
    push();
    when_quiet([&] {
      stuck = servers[0]->segments;
      free_one = servers[1]->segments;
      servers[0]->answer();
    });
  });
  loop.run();
  EXPECT_EQ(stuck, 1u);
  EXPECT_EQ(free_one, 48u);
  EXPECT_TRUE(done);
  EXPECT_EQ(data, expected);
}

}  // namespace
}  // namespace herring::worker
