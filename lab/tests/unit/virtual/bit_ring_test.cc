// Compares a moving window of bits with a plain set.
#include "virtual/bit_ring.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace herring::transport::virtual_time {
namespace {

TEST(BitRing, IsASetOfNumbersInAMovingWindow) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 random(seed);
    BitRing ring;
    std::set<uint64_t> expected;
    uint64_t first = random() % 1000, end = first;
    const uint64_t width = 1 + random() % 700;
    for (int step = 0; step < 3000; ++step) {
      if (random() % 4 == 0) {  // the window moves
        uint64_t to = std::min(end, first + random() % 40);
        for (; first < to; ++first) {
          if (expected.erase(first)) ring.clear(first);
        }
      }
      uint64_t number = first + random() % width;
      if (number >= end) {
        end = number + 1;
        ring.reserve(first, end);
      }
      if (random() % 8 == 0) {
        ring.clear(number);
        expected.erase(number);
      } else {
        ring.set(number);
        expected.insert(number);
      }
      uint64_t from = first + random() % (end - first + 1);
      ASSERT_EQ(from < end && ring.test(from), expected.count(from) == 1);
      auto set = expected.lower_bound(from);
      ASSERT_EQ(ring.next_set(from, end), set == expected.end() ? end : *set);
      uint64_t clear = from;
      while (clear < end && expected.count(clear)) ++clear;
      ASSERT_EQ(ring.next_clear(from, end), clear);
      uint64_t begin = from;
      while (begin > first && expected.count(begin - 1)) --begin;
      ASSERT_EQ(ring.run_begin(from, first), begin);
    }
  }
}

TEST(BitRing, AnEmptyOneHasNothing) {
  BitRing ring;
  EXPECT_FALSE(ring.test(5));
  EXPECT_EQ(ring.next_set(3, 100), 100u);
  EXPECT_EQ(ring.next_clear(3, 100), 3u);
}

}  // namespace
}  // namespace herring::transport::virtual_time
