#include "links/ladder.h"

#include <gtest/gtest.h>

namespace herring::links {
namespace {

constexpr size_t kLadderFlows = 8;

// Rungs of 20 ms, unless said otherwise.
class LadderTest : public ::testing::Test {
 protected:
  void run(double goodput, Nanos takes = 20 * kMillisecond, bool full = false) {
    now += takes;
    ladder.add(goodput, {static_cast<size_t>(goodput * to_seconds(takes)), takes}, full, now);
    ladder.advance(false);
  }

  Ladder ladder{1, 128};
  Nanos now = 0;
};

TEST_F(LadderTest, TheSmallestWindowThatNoOtherBeatsPlainlyIsChosen) {
  for (const double goodput : {1e6, 2e6, 4e6, 7e6, 8e6, 8.1e6, 8e6, 8e6}) run(goodput);
  const Ladder::Choice choice = ladder.choose(kLadderFlows);
  EXPECT_EQ(choice.window, 8);
  EXPECT_EQ(choice.better, 16);
}

// Losses of a rung are reported 50 to 100 ms later, while another rung runs.
TEST_F(LadderTest, LossesCountForTheRungThatRanWhenTheyHappened) {
  for (const double goodput : {1e6, 2e6, 4e6, 6e6, 7e6}) run(goodput);  // 8 overruns, 60 to 80 ms
  ladder.lose(1000, 120 * kMillisecond);
  EXPECT_FALSE(ladder.overran(4));
  EXPECT_TRUE(ladder.overran(8));
  EXPECT_TRUE(ladder.overran(16));
  EXPECT_EQ(ladder.choose(kLadderFlows).window, 4);
  EXPECT_EQ(ladder.choose(kLadderFlows).better, 16);
}

TEST_F(LadderTest, AWindowThatOverrunsAPortMustMoveMuchMoreForLong) {
  for (const bool much : {false, true}) {
    for (const bool long_enough : {false, true}) {
      Ladder two(1, 2);
      two.add(1e6, {1'000'000, kSecond}, false, kSecond);
      two.advance(false);
      two.lose(1000, kSecond + 60 * kMillisecond);
      const Nanos busy = long_enough ? kSecond : 100 * kMillisecond;
      two.add(much ? 1.9e6 : 1.4e6, {1'000'000, busy}, false, kSecond + busy);
      EXPECT_EQ(two.choose(kLadderFlows).window, much && long_enough ? 2 : 1);
      EXPECT_EQ(two.choose(kLadderFlows).better, 2);
    }
  }
}

// The last window may fill the queues, so that TCP always has more to send behind a lost packet.
TEST_F(LadderTest, AfterTwoRuinousWindowsTheLastOneDecidesWhetherTheRestIsTried) {
  for (const bool last_is_ruinous : {true, false}) {
    Ladder each(1, 128);
    std::vector<int> windows;
    for (bool more = true; more;) {
      const uint16_t window = each.window();
      windows.push_back(window);
      now += 20 * kMillisecond;
      each.add(1e6, {20000, 20 * kMillisecond}, false, now);
      more = each.advance(window == 128 ? last_is_ruinous : window > 2);
    }
    EXPECT_EQ(windows, last_is_ruinous ? std::vector<int>({1, 2, 4, 8, 128})
                                       : std::vector<int>({1, 2, 4, 8, 128, 16, 32, 64}));
    EXPECT_EQ(each.rungs().back().window, 128);
    EXPECT_EQ(each.latest().window, windows.back());
  }
}

// A path of 0.1 % loss. The largest window recovers soonest, so it is not given up for a smaller
// one that moved about as much.
TEST_F(LadderTest, WherePacketsAreLostAtRandomALargerWindowIsChosen) {
  for (const double goodput : {1e6, 4e6, 7e6, 8e6, 7e6, 7.5e6, 8e6, 7.2e6}) {
    ladder.lose(static_cast<uint32_t>(goodput / 1e6 + 2), now + 500 * kMillisecond);
    run(goodput, kSecond);
  }
  EXPECT_EQ(ladder.choose(kLadderFlows).window, 128);
}

// A window that fills the link recovers while its queue drains.
TEST_F(LadderTest, WhereALinkIsFullALargerWindowIsNotChosenForRandomLosses) {
  for (const double goodput : {1e6, 4e6, 7e6, 8e6, 7e6, 7.5e6, 8e6, 7.2e6}) {
    ladder.lose(static_cast<uint32_t>(goodput / 1e6 + 2), now + 500 * kMillisecond);
    run(goodput, kSecond, ladder.window() >= 8);
  }
  EXPECT_EQ(ladder.choose(kLadderFlows).window, 8);
}

TEST_F(LadderTest, ALuckyRungIsCorrected) {
  for (const double goodput : {1e6, 2e6, 3e6}) run(goodput);
  EXPECT_EQ(ladder.choose(kLadderFlows).window, 4);
  EXPECT_FALSE(ladder.corrects(4, {400'000, 200 * kMillisecond, 1000}));  // too early to tell
  EXPECT_TRUE(ladder.corrects(4, {400'000, 400 * kMillisecond, 1000}));
  EXPECT_EQ(ladder.choose(kLadderFlows).window, 2);
}

TEST_F(LadderTest, WindowsBetweenRuinousOnesWereRuinous) {
  for (const double goodput : {1e6, 2e6, 4e6, 0.5e6, 0.4e6, 3.9e6}) run(goodput);
  EXPECT_FALSE(ladder.was_ruinous(2, 4));
  EXPECT_FALSE(ladder.was_ruinous(6, 4));
  for (const uint16_t window : {8, 12, 16}) EXPECT_TRUE(ladder.was_ruinous(window, 4));
  for (const uint16_t window : {24, 32, 64}) EXPECT_FALSE(ladder.was_ruinous(window, 4));
}

}  // namespace
}  // namespace herring::links
