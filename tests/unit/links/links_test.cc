#include <sys/ioctl.h>

#include "links_fixture.h"

namespace herring::links {
namespace {

using namespace testing;

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

// Other ranks of the node push to server 1, and learn the credit from it.
TEST_F(LinksTest, ServersThatGetNoDataAreToldTheCredit) {
  steers = true;
  credit = 8;
  make({1, 1});
  servers[0]->answering = true;
  transfer.runs = plan::local_slice(transfer.shards, kSegment, 0, 2);
  loop.post([&] { push(); });
  loop.run();
  ASSERT_TRUE(done);
  EXPECT_GT(servers[0]->segments, 8u);
  EXPECT_EQ(servers[1]->segments, 0u);
  loop.post([&] { when_quiet([&] { loop.stop(); }); });
  loop.run();
  EXPECT_EQ(servers[1]->told, std::vector<uint16_t>{8});  // once, while it does not change
  EXPECT_EQ(servers[1]->taken_frames, 1);
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

// A busy server may read what was lent to it only when its worker has long failed.
TEST_F(LinksTest, PushedMemoryIsLentUntilTheServerHasReadIt) {
  credit = 128;
  silent = true;
  make({1});
  const auto is_there = [this] {
    int bytes = 0;
    EXPECT_EQ(::ioctl(ends[0].get(), FIONREAD, &bytes), 0);
    return bytes >= static_cast<int>(Flow::kLeastLent);
  };
  const auto read = [this] {
    std::string all;
    char some[4096];
    for (ssize_t n; (n = ::recv(ends[0].get(), some, sizeof(some), MSG_DONTWAIT)) > 0;) {
      all.append(some, n);
    }
    return all;
  };
  loop.post([&] {
    push();
    when(is_there, [&] {
      links->stop();
      EXPECT_TRUE(links->lends()) << "the server has read nothing";
      EXPECT_NE(read().find(expected.substr(0, 8 * kSegment)), std::string::npos);
      EXPECT_TRUE(links->lends()) << "the server has not said so";
      ends.clear();
      when([&] { return !links->lends(); }, [&] { loop.stop(); });
    });
  });
  loop.run();
  EXPECT_FALSE(done);
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
}  // namespace herring::links
