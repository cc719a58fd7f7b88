// Tests what servers measure: who comes last, how long sums take, and what waits for whom.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "coordinator_fixture.h"
#include "server/aggregator.h"
#include "server/view.h"

namespace herring::server {
namespace {

using observe::Lateness;
using observe::Moment;

void expect_same(const std::vector<Lateness>& found, const std::vector<Lateness>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t rank = 0; rank < found.size(); ++rank) {
    SCOPED_TRACE(concat("rank ", rank));
    EXPECT_EQ(found[rank].calls, expected[rank].calls);
    EXPECT_EQ(found[rank].last_calls, expected[rank].last_calls);
    EXPECT_EQ(found[rank].calls_waited, expected[rank].calls_waited);
    EXPECT_EQ(found[rank].segments, expected[rank].segments);
    EXPECT_EQ(found[rank].last_segments, expected[rank].last_segments);
    EXPECT_EQ(found[rank].segments_waited, expected[rank].segments_waited);
  }
}

// A slot table whose clock stands still unless a test moves it.
class Sums {
 public:
  Sums(uint32_t nodes, uint32_t per_node)
      : cluster(make_cluster(nodes, per_node)),
        groups(cluster),
        aggregator(cluster, groups, kSegment, 1000, [this](Slot& slot, std::span<const uint32_t>) {
          slot.op->handed = now;
          const auto answered = std::ranges::count_if(slot.contributions, [](const auto& one) {
            return one.state != Contribution::kLost;
          });
          for (int i = 0; i < answered; ++i) unread.push_back(&slot);
          if (reads) read();
        }, [this] { return now; }, recorder) {}

  // Lets the workers read all results.
  void read() {
    for (Slot* slot : std::exchange(unread, {})) aggregator.result_sent(*slot);
  }
  Status open(const Key& key, uint32_t rank, uint32_t segments,
              wire::Participants participants = wire::Participants::kNodes) {
    wire::Open open;
    open.participants = participants;
    open.workers = 1;
    open.shard_bytes = segments * kSegment;
    open.deadline = {60'000, 60'000, 60'000};
    open.name = "op";
    return aggregator.open(key, open, rank);
  }
  Slot* begin(const Key& key, uint32_t rank, uint32_t segment) {
    wire::FrameHeader header;
    header.type = wire::FrameType::kData;
    header.group = key.group;
    header.stream = key.stream;
    header.round = key.round;
    header.buffer = key.buffer;
    header.first_segment = segment;
    header.segments = 1;
    header.payload = kSegment;
    transport::Destinations out;
    Slot* slot = nullptr;
    const auto begun = aggregator.begin(header, rank, nullptr, out, &slot);
    EXPECT_TRUE(begun.ok() && *begun == Aggregator::Begun::kTaken) << begun.status().to_string();
    std::memset(out.pieces[0].iov_base, 0, kSegment);
    return slot;
  }
  void push(const Key& key, uint32_t rank, uint32_t segment) {
    aggregator.arrived(*begin(key, rank, segment), rank, now);
  }
  ServerView view() {
    ServerView view;
    aggregator.report(now, view);
    view.arrange();
    return view;
  }
  observe::Entry entry() const { return recorder.latest(1).front(); }

  Nanos now = 1000;
  bool reads = true;
  std::vector<Slot*> unread;
  control::Cluster cluster;
  GroupTable groups;
  observe::Recorder recorder;
  Aggregator aggregator;
};

// Every segment with several contributors has one that is last, and the second last waits for it.
TEST(Lateness, OfSegmentsThatComeInAnyOrder) {
  std::mt19937 random(1);
  for (int attempt = 0; attempt < 200; ++attempt) {
    const uint32_t nodes = 1 + random() % 12, per_node = 1 + random() % 3;
    const uint32_t segments = 1 + random() % 6;
    SCOPED_TRACE(concat(nodes, " nodes of ", per_node, " ranks, ", segments, " segments"));
    Sums sums(nodes, per_node);
    const Key whole{0, 0, 0}, partial{wire::kPartialStreams, 0, 0};
    struct Push {
      Key key;
      uint32_t rank, segment;
    };
    std::vector<Push> order;
    for (uint32_t rank = 0; rank < nodes * per_node; ++rank) {
      ASSERT_TRUE(sums.open(whole, rank, segments).ok());
      ASSERT_TRUE(sums.open(partial, rank, segments, wire::Participants::kRanks).ok());
      for (uint32_t s = 0; s < segments; ++s) order.push_back({partial, rank, s});
    }
    for (uint32_t node = 0; node < nodes; ++node) {
      for (uint32_t s = 0; s < segments; ++s) {
        order.push_back({whole, static_cast<uint32_t>(node * per_node + random() % per_node), s});
      }
    }
    std::ranges::shuffle(order, random);
    std::vector<Lateness> expected(nodes * per_node);
    std::map<uint32_t, std::vector<Nanos>> came;  // by segment
    for (const Push& push : order) {
      sums.now += random() % 1000;
      sums.push(push.key, push.rank, push.segment);
      if (push.key != whole || nodes == 1) continue;
      auto& times = came[push.segment];
      times.push_back(sums.now);
      ++expected[push.rank].segments;
      if (times.size() < nodes) continue;
      ++expected[push.rank].last_segments;
      expected[push.rank].segments_waited += times[nodes - 1] - times[nodes - 2];
    }
    const ServerView view = sums.view();
    expect_same(view.ranks, expected);
    uint64_t last = 0;
    for (const Lateness& one : view.ranks) last += one.last_segments;
    EXPECT_EQ(last, nodes > 1 ? segments : 0);
    EXPECT_EQ(view.sums, 2u);
    EXPECT_EQ(view.in_flight, 0u);
  }
}

TEST(Lateness, NobodyIsLastWhereARankIsLost) {
  Sums sums(2, 1);
  ASSERT_TRUE(sums.open({}, 0, 1).ok());
  sums.push({}, 0, 0);
  sums.aggregator.rank_gone(1, false);
  const ServerView view = sums.view();
  EXPECT_EQ(view.ranks[0].segments, 1u);
  EXPECT_EQ(view.ranks[0].last_segments, 0u);
  EXPECT_EQ(view.sums, 0u);
  EXPECT_TRUE(view.missing.empty());
  EXPECT_TRUE(sums.entry().ended);
  EXPECT_EQ(sums.entry().outcome, Code::kPeerLost);
}

TEST(Lateness, WhatArrivesAfterALossKeptNobodyWaiting) {
  Sums sums(2, 1);
  ASSERT_TRUE(sums.open({}, 0, 1).ok());
  Slot* slot = sums.begin({}, 0, 0);
  sums.aggregator.rank_gone(1, false);
  sums.now += 10;
  sums.aggregator.arrived(*slot, 0, sums.now);
  EXPECT_EQ(sums.view().in_flight, 0u);
  EXPECT_EQ(sums.view().ranks[0].segments, 1u);
  EXPECT_EQ(sums.view().ranks[0].last_segments, 0u);
}

TEST(Lateness, AShardPassesAllMomentsOfASum) {
  Sums sums(2, 1);
  sums.reads = false;
  const Key key{3, 7, 2};
  ASSERT_TRUE(sums.open(key, 1, 2).ok());
  sums.now = 2000;
  ASSERT_TRUE(sums.open(key, 0, 2).ok());
  sums.now = 3000;
  sums.push(key, 0, 0);
  sums.push(key, 1, 0);
  sums.push(key, 1, 1);
  EXPECT_EQ(sums.entry().when(Moment::kSummed), 0);
  sums.now = 4000;
  sums.push(key, 0, 1);
  EXPECT_FALSE(sums.entry().ended);
  for (Slot* slot : sums.unread) slot->op->handed = 4500;
  sums.now = 9000;
  sums.read();
  const observe::Entry entry = sums.entry();
  EXPECT_EQ(entry.kind, observe::Kind::kSum);
  EXPECT_EQ(entry.title(), "op");
  EXPECT_EQ((std::array{entry.group, entry.stream, entry.round, entry.buffer}),
            (std::array{0u, 3u, 7u, 2u}));
  EXPECT_EQ(entry.bytes, 2 * kSegment);
  EXPECT_EQ(entry.when(Moment::kCalled), 1000);
  EXPECT_EQ(entry.when(Moment::kReady), 2000);
  EXPECT_EQ(entry.when(Moment::kSummed), 4000);
  EXPECT_EQ(entry.when(Moment::kDone), 9000);
  EXPECT_TRUE(entry.ended);
  EXPECT_EQ(entry.outcome, Code::kOk);
  // A worker that reads its results late does not make the server slow.
  EXPECT_EQ(sums.view().sums, 1u);
  EXPECT_EQ(sums.view().sum_time, 500);
}

TEST(Lateness, ASumThatNobodyComesToTimesOut) {
  Sums sums(2, 1);
  ASSERT_TRUE(sums.open({}, 0, 1).ok());
  sums.now += 61 * kSecond;
  ASSERT_EQ(sums.aggregator.overdue(sums.now).size(), 1u);
  EXPECT_EQ(sums.entry().outcome, Code::kTimeout);
  // The record of the failure still says who was missing.
  ASSERT_EQ(sums.view().missing.size(), 1u);
  EXPECT_EQ(sums.view().missing[0].ranks, std::vector<uint32_t>{1});
}

TEST(Lateness, APartialRoundIsReadyWithoutRanksThatAreLost) {
  Sums sums(3, 1);
  const Key first{wire::kPartialStreams, 0, 0}, second{wire::kPartialStreams, 1, 0};
  ASSERT_TRUE(sums.open(first, 0, 1, wire::Participants::kRanks).ok());
  ASSERT_TRUE(sums.open(first, 1, 1, wire::Participants::kRanks).ok());
  EXPECT_EQ(sums.entry().when(Moment::kReady), 0);
  sums.aggregator.rank_gone(2, false);
  EXPECT_EQ(sums.entry().when(Moment::kReady), sums.now);
  ASSERT_TRUE(sums.open(second, 0, 1, wire::Participants::kRanks).ok());
  EXPECT_EQ(sums.entry().when(Moment::kReady), 0);
  sums.now += kSecond;
  for (const observe::Missing& one : sums.view().missing) {
    EXPECT_EQ(one.ranks, one.what == "'op' (round 0)" ? (std::vector<uint32_t>{0, 1})
                                                      : std::vector<uint32_t>{1});
  }
  ASSERT_TRUE(sums.open(second, 1, 1, wire::Participants::kRanks).ok());
  EXPECT_EQ(sums.entry().when(Moment::kReady), sums.now);
  for (const Key& key : {first, second}) {
    for (const uint32_t rank : {0, 1}) sums.push(key, rank, 0);
  }
  for (const observe::Entry& one : sums.recorder.latest(2)) EXPECT_EQ(one.outcome, Code::kOk);
  EXPECT_EQ(sums.view().sums, 2u);
}

TEST(Lateness, RanksAreMissingUntilTheyComeAndWhileTheyAreBehind) {
  Sums sums(3, 1);
  for (const uint32_t buffer : {0, 1}) {
    ASSERT_TRUE(sums.open({0, 7, buffer}, 0, 2).ok());
    ASSERT_TRUE(sums.open({0, 7, buffer}, 2, 2).ok());
  }
  EXPECT_TRUE(sums.view().missing.empty());
  sums.now += 600 * kMillisecond;
  auto missing = sums.view().missing;
  ASSERT_EQ(missing.size(), 1u) << "shards of one round are listed once";
  EXPECT_EQ(missing[0].what, "'op' (round 7)");
  EXPECT_EQ(missing[0].age, 600 * kMillisecond);
  EXPECT_EQ(missing[0].ranks, std::vector<uint32_t>{1});
  for (const uint32_t buffer : {0, 1}) {
    ASSERT_TRUE(sums.open({0, 7, buffer}, 1, 2).ok());
    for (const uint32_t rank : {0, 1, 2}) sums.push({0, 7, buffer}, rank, 0);
    for (const uint32_t rank : {0, 2}) sums.push({0, 7, buffer}, rank, 1);
  }
  EXPECT_TRUE(sums.view().missing.empty()) << "bytes are coming";
  sums.now += 600 * kMillisecond;
  missing = sums.view().missing;
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0].age, 600 * kMillisecond);
  EXPECT_EQ(missing[0].ranks, std::vector<uint32_t>{1});
  for (const uint32_t buffer : {0, 1}) sums.push({0, 7, buffer}, 1, 1);
  EXPECT_TRUE(sums.view().missing.empty());
}

TEST(Lateness, OnlyTheOldestAreListed) {
  Sums sums(2, 1);
  for (uint32_t round = 0; round < 100; ++round) {
    ASSERT_TRUE(sums.open({0, 99 - round, 0}, 0, 1).ok());
    ++sums.now;
  }
  sums.now += kSecond;
  const ServerView view = sums.view();
  EXPECT_EQ(view.in_flight, 100u);
  ASSERT_EQ(view.missing.size(), ServerView::kMostMissing);
  EXPECT_EQ(view.missing.front().what, "'op' (round 99)");
  EXPECT_TRUE(std::ranges::is_sorted(view.missing, std::greater(), &observe::Missing::age));
}

TEST(Lateness, PathsOfARankAreOne) {
  ServerView view;
  view.paths = {{4, 20, 20, 1}, {2, 5, 5, 7}, {4, 30, 30, 2}, {4, 10, 10, 0}};
  view.arrange();
  ASSERT_EQ(view.paths.size(), 2u);
  EXPECT_EQ(view.paths[0].index, 2u);
  EXPECT_EQ(view.paths[1].rtt, 30);
  EXPECT_EQ(view.paths[1].retransmits, 3u);
}

class LatenessOfCalls : public CoordinatorTest {
 protected:
  ServerView view(Nanos now) {
    ServerView view;
    coordinator.report(now, view);
    view.arrange();
    return view;
  }
};

TEST_F(LatenessOfCalls, WhoCallsLastHasKeptTheSecondLastWaiting) {
  std::mt19937 random(2);
  std::vector<Lateness> expected(3);
  Nanos now = 0;
  for (int call = 0; call < 100; ++call) {
    std::array<uint32_t, 3> order{0, 1, 2};
    std::ranges::shuffle(order, random);
    Nanos before = 0;
    for (const uint32_t rank : order) {
      before = now;
      now += random() % 1000;
      say(rank, small(1, floats({1})), now);
      ++expected[rank].calls;
    }
    ++expected[order[2]].last_calls;
    expected[order[2]].calls_waited += now - before;
  }
  expect_same(view(now).ranks, expected);
  EXPECT_EQ(view(now).announced, 0u);
}

TEST_F(LatenessOfCalls, NobodyIsLateWhereACallFailsOrARankJoins) {
  say(0, small(1, floats({1})), 0);
  say(1, small(1, floats({1})), 10);
  leave(2);
  Lateness once;
  once.calls = 1;
  expect_same(view(10).ranks, {once, once, {}});
}

TEST_F(LatenessOfCalls, ARankThatHasJoinedIsNotLate) {
  Call join = small(9, "");
  join.message.name = wire::kJoinName;
  join.message.what = wire::Join{};
  join.message.arrays.clear();
  say(2, join, 0);
  say(0, small(1, floats({1})), 10);
  EXPECT_EQ(say(1, small(1, floats({1})), 30).size(), 2u) << "they go on without rank 2";
  const auto ranks = view(30).ranks;
  EXPECT_EQ(ranks[2].calls, 0u);
  EXPECT_EQ(ranks[1].last_calls, 1u);
  EXPECT_EQ(ranks[1].calls_waited, 20);
  say(0, join, 40);
  say(1, join, 50);
  expect_same(view(50).ranks, ranks);
}

TEST_F(LatenessOfCalls, CallsThatWaitAreListedWithTheMissingRanks) {
  say(1, small(1, floats({1})), 5);
  EXPECT_EQ(view(10).announced, 1u);
  EXPECT_TRUE(view(10).missing.empty());
  const auto missing = view(kSecond).missing;
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0].what, "allreduce 'x'");
  EXPECT_EQ(missing[0].age, kSecond - 5);
  EXPECT_EQ(missing[0].ranks, (std::vector<uint32_t>{0, 2}));
}

}  // namespace
}  // namespace herring::server
