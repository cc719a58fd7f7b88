#include "links/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace herring::links {
namespace {

TEST(Balance, HoldsWhoIsAheadUntilTheLastHasComeCloser) {
  Balance balance;
  EXPECT_TRUE(balance.empty());
  balance.set(0, 0);
  balance.set(5, 0.5);
  EXPECT_FALSE(balance.hold(0, 0.1));
  EXPECT_TRUE(balance.hold(5, 0.1));
  EXPECT_FALSE(balance.hold(5, 0.5)) << "exactly as far as is allowed";
  EXPECT_TRUE(balance.hold(5, 0.1));
  EXPECT_EQ(balance.release(), std::nullopt);
  balance.set(0, 0.25);
  EXPECT_EQ(balance.release(), std::nullopt);
  balance.set(0, 0.75);
  EXPECT_EQ(balance.release(), 5U);
  EXPECT_EQ(balance.release(), std::nullopt);
  EXPECT_TRUE(balance.hold(0, 0.125));
  balance.remove(5);
  EXPECT_EQ(balance.release(), 0U) << "nobody is behind it any more";
  balance.remove(0);
  EXPECT_TRUE(balance.empty());
  EXPECT_EQ(balance.release(), std::nullopt);
}

TEST(Balance, CountsTransfersInFullThatAreBetween) {
  Balance balance;
  balance.set(0, 1000000.0);
  balance.set(1, 1000002.125);
  EXPECT_TRUE(balance.hold(1, 2));
  EXPECT_FALSE(balance.hold(1, 2.125));
}

// Compares with the rule in its plain form: a link is held if it is ahead of any other by more than
// is allowed.
TEST(Balance, DoesWhatComparingAllWithAllDoes) {
  std::mt19937 random(11);
  for (int run = 0; run < 200; ++run) {
    Balance balance;
    const uint32_t links = 1 + random() % 12;
    std::map<uint32_t, double> positions;
    std::map<uint32_t, double> waiting;  // what each link was allowed
    const auto is_ahead = [&](uint32_t link, double allowed) {
      return std::any_of(positions.begin(), positions.end(), [&](const auto& other) {
        return positions[link] - allowed > other.second;
      });
    };
    for (int step = 0; step < 400; ++step) {
      const uint32_t link = random() % links;
      const auto at = positions.find(link);
      if (at == positions.end()) {
        positions[link] = static_cast<double>(random() % 8) / 4;
        balance.set(link, positions[link]);
      } else if (random() % 8 == 0) {
        positions.erase(at);
        waiting.erase(link);
        balance.remove(link);
      } else {
        const double allowed = static_cast<double>(1 + random() % 4) / 8;
        ASSERT_EQ(balance.hold(link, allowed), is_ahead(link, allowed));
        waiting.erase(link);
        if (is_ahead(link, allowed)) {
          waiting[link] = allowed;
        } else {
          at->second += static_cast<double>(1 + random() % 4) / 8;
          balance.set(link, at->second);
        }
      }
      while (const auto released = balance.release()) {
        ASSERT_EQ(waiting.count(*released), 1U);
        ASSERT_FALSE(is_ahead(*released, waiting[*released]));
        waiting.erase(*released);
      }
      for (const auto& [held, allowed] : waiting) ASSERT_TRUE(is_ahead(held, allowed));
      ASSERT_EQ(balance.empty(), positions.empty());
    }
  }
}

}  // namespace
}  // namespace herring::links
