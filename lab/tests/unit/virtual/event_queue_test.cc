// Events come out in the order of their times; equal times keep the order in which events went in.
#include "virtual/event_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace herring::transport::virtual_time {
namespace {

TEST(EventQueue, IsInTheOrderOfTimeWhateverTheLane) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 random(seed);
    constexpr size_t kLanes = 7;
    EventQueue<uint64_t> queue(kLanes);
    std::vector<std::pair<Nanos, uint64_t>> expected, found;  // time, and number of the event
    Nanos lanes[kLanes] = {};
    Nanos now = 0;
    const uint64_t astray = 1 + random() % 50;  // one in so many is earlier than its lane's last
    for (uint64_t number = 0; number < 5000; ++number) {
      size_t lane = random() % kLanes;
      Nanos time = lanes[lane] = std::max(lanes[lane], now) + static_cast<Nanos>(random() % 5);
      if (random() % astray == 0) time = now + static_cast<Nanos>(random() % 20);
      queue.push(lane, time, number);
      expected.push_back({time, number});
      for (uint64_t takes = random() % 3; takes > 0 && !queue.empty(); --takes) {
        ASSERT_GE(queue.time(), now);
        now = queue.time();
        found.push_back({now, queue.top()});
        queue.pop();
      }
      ASSERT_EQ(queue.size(), expected.size() - found.size());
    }
    while (!queue.empty()) {
      found.push_back({queue.time(), queue.top()});
      queue.pop();
    }
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(found, expected) << "seed " << seed;
  }
}

}  // namespace
}  // namespace herring::transport::virtual_time
