// What the controller does where packets are lost: in virtual time, on a modelled switch port.
#include "links/credit.h"

#include <gtest/gtest.h>

#include "model_path.h"

namespace herring::links {
namespace {

// A window of 16 moves half as much again for 60 ms, and then nothing for 400 ms. Its rung is over
// before that, and before its losses are reported.
TEST(CreditLosses, AWindowThatOverrunsAPortIsNotChosenAlthoughItWasFastForAWhile) {
  PortPath path(100e6, 8);
  path.run(2 * kSecond);
  EXPECT_GE(path.run(3 * kSecond), 0.9 * 800e6);
  EXPECT_LE(path.controller.base(), 8);
}

// Twice the window overruns the port, and half as much again fits. Transfers last 40 ms or 2 s.
TEST(CreditLosses, AWindowBetweenTwoIsFound) {
  for (const auto& [pace, bytes] : {std::pair(100e6, 12 << 20), std::pair(10e6, 60 << 20)}) {
    PortPath path(pace, 3);
    path.run(10 * kSecond, bytes);
    EXPECT_EQ(path.controller.base(), 3);
    EXPECT_GE(path.run(60 * kSecond, bytes), 0.95 * 3 * pace);
  }
}

// Also while larger windows are tried from time to time, each of which costs a timeout.
TEST(CreditLosses, NoWindowCollapses) {
  for (const int fits : {1, 2, 4, 8, 16, 32, 64}) {
    PortPath path(25e6, fits);
    path.run(5 * kSecond);
    EXPECT_GE(path.run(60 * kSecond), 0.95 * 25e6 * fits) << fits;
  }
}

// Packets are lost at random, and larger windows recover sooner. Timeouts make every measurement
// noisy, so half of a window often seems to move as much.
TEST(CreditLosses, RandomLossesDoNotShrinkTheWindow) {
  int smaller = 0, all = 0;
  for (unsigned seed = 1; seed <= 6; ++seed) {
    PortPath path(0.5e6, 128, seed);
    path.lose_one_in(50);
    path.stop_after_loss(16);
    path.run(15 * kSecond, 4 << 20);
    for (; all < 30 * static_cast<int>(seed); ++all) {
      path.run(5 * kSecond, 4 << 20);
      smaller += path.controller.base() < 128;
    }
  }
  EXPECT_LE(smaller, all / 20);
}

// A link is full, and some packets are lost with every window.
TEST(CreditLosses, AGainInEveryPairCountsOnAFullLinkThatLosesPackets) {
  ModelPath path;
  path.run(60 * kSecond, [&, due = Nanos{0}](uint16_t credit) mutable {
    if (path.now >= due) path.controller.on_losses(1, path.now);
    if (path.now >= due) due = path.now + 200 * kMillisecond;
    return path.queues_for(0.5, credit == 1 ? 20e6 : 23e6);
  });
  EXPECT_EQ(path.controller.base(), 2);
}

}  // namespace
}  // namespace herring::links
