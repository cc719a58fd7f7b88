// What a receiver acknowledges, and when.
#include "virtual/receiver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace herring::transport::virtual_time {
namespace {

constexpr uint64_t kFull = 8948;

// A receiver for which all packets are full.
class Arrivals {
 public:
  bool take(uint64_t number, bool push = false) {
    if (receiver.on_packet(number, push, now, now)) {
      receiver.set_total(receiver.packets() * kFull);
    }
    return receiver.wants_ack(now);
  }
  Ack ack(bool with_data = false) {
    Ack ack;
    receiver.fill(&ack);
    receiver.acknowledged(with_data, now);
    return ack;
  }
  // Passes the acknowledgements that are sent at once at the start.
  uint64_t begin() {
    uint64_t number = 0;
    for (; number < 16; ++number) {
      EXPECT_TRUE(take(number));
      ack();
    }
    return number;
  }

  StreamSettings settings;
  Receiver receiver{settings, settings.delayed_ack};
  Nanos now = kSecond;
};

TEST(Receiver, AcknowledgesEverySecondPacketOrSoon) {
  Arrivals arrivals;
  uint64_t number = arrivals.begin();
  for (int pair = 0; pair < 5; ++pair) {
    EXPECT_FALSE(arrivals.take(number++));
    EXPECT_EQ(arrivals.receiver.deadline(), arrivals.now + 40 * kMillisecond);
    EXPECT_TRUE(arrivals.take(number++));
    EXPECT_EQ(arrivals.ack().cumulative, number);
    EXPECT_EQ(arrivals.receiver.deadline(), kNever);
  }
  EXPECT_FALSE(arrivals.take(number++));
  arrivals.now += 40 * kMillisecond;
  arrivals.receiver.on_deadline();
  EXPECT_TRUE(arrivals.receiver.wants_ack(arrivals.now));
}

TEST(Receiver, WaitsForAnAnswerWhereThereAreAnswers) {
  Arrivals arrivals;
  uint64_t number = arrivals.begin();
  // Data that was read completely is acknowledged.
  EXPECT_FALSE(arrivals.take(number++, true));
  EXPECT_TRUE(arrivals.receiver.on_read());
  arrivals.ack(true);
  // Now the receiver expects that data goes back.
  EXPECT_FALSE(arrivals.take(number++, true));
  EXPECT_FALSE(arrivals.receiver.on_read());
  // It no longer does after data has not come in time once.
  arrivals.now += 40 * kMillisecond;
  arrivals.receiver.on_deadline();
  arrivals.ack();
  EXPECT_FALSE(arrivals.take(number++, true));
  EXPECT_TRUE(arrivals.receiver.on_read());
}

TEST(Receiver, ReportsTheLatestRunsFirst) {
  Arrivals arrivals;
  for (uint64_t number : {2, 5, 6, 9, 12, 13}) {
    EXPECT_TRUE(arrivals.take(number));
    arrivals.ack();
  }
  auto runs = [](const Ack& ack) {
    std::vector<std::pair<uint64_t, uint64_t>> all;
    for (uint32_t i = 0; i < ack.count; ++i) {
      all.push_back({ack.cumulative + ack.blocks[i].begin, ack.cumulative + ack.blocks[i].end});
    }
    return all;
  };
  using Runs = std::vector<std::pair<uint64_t, uint64_t>>;
  arrivals.take(3);  // extends [2, 3)
  EXPECT_EQ(runs(arrivals.ack()), (Runs{{2, 4}, {12, 14}, {9, 10}}));
  arrivals.take(4);  // joins [2, 4) and [5, 7)
  EXPECT_EQ(runs(arrivals.ack()), (Runs{{2, 7}, {12, 14}, {9, 10}}));
  arrivals.take(9);  // a second copy, whose report takes the place of a run
  Ack again = arrivals.ack();
  EXPECT_TRUE(again.duplicate);
  EXPECT_EQ(runs(again), (Runs{{2, 7}, {12, 14}}));
  arrivals.take(0);
  arrivals.take(1);
  Ack ack = arrivals.ack();
  EXPECT_EQ(ack.cumulative, 7u);
  EXPECT_EQ(runs(ack), (Runs{{12, 14}, {9, 10}}));
}

TEST(Receiver, PutsEverythingInOrderWhateverComesFirst) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    constexpr uint64_t kPackets = 300;
    std::vector<uint64_t> order(kPackets);
    std::iota(order.begin(), order.end(), 0);
    const uint64_t apart = 1 + random() % 100;
    for (size_t i = 0; i + apart < kPackets; ++i) std::swap(order[i], order[i + random() % apart]);
    for (int i = 0; i < 50; ++i) order.insert(order.begin() + random() % kPackets, order[i]);
    Arrivals arrivals;
    std::set<uint64_t> here;
    for (uint64_t number : order) {
      const bool again = !here.insert(number).second;
      arrivals.take(number);
      uint64_t in_order = 0;
      while (here.count(in_order)) ++in_order;
      const Ack ack = arrivals.ack();
      ASSERT_EQ(ack.cumulative, in_order);
      ASSERT_EQ(ack.duplicate, again);
      for (uint32_t i = 0; i < ack.count; ++i) {
        const uint64_t begin = in_order + ack.blocks[i].begin, end = in_order + ack.blocks[i].end;
        ASSERT_LT(begin, end);
        for (uint64_t one = begin; one < end; ++one) ASSERT_EQ(here.count(one), 1u);
        ASSERT_EQ(here.count(begin - 1) + here.count(end), 0u);
      }
      if (!again && number > in_order) {
        ASSERT_LE(in_order + ack.blocks[0].begin, number);
        ASSERT_GT(in_order + ack.blocks[0].end, number);
      }
    }
    ASSERT_EQ(arrivals.receiver.total(), kPackets * kFull);
  }
}

}  // namespace
}  // namespace herring::transport::virtual_time
