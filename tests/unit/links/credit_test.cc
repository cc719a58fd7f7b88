#include "links/credit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "model_path.h"

namespace herring::links {
namespace {

TEST(CreditController, StaysSmallOnALinkThatIsFull) {
  ModelPath path;
  path.run(120 * kSecond, [](uint16_t) { return 25e6; });
  EXPECT_EQ(path.controller.base(), 1);
  EXPECT_GT(path.controller.trials(), 3u);  // the controller has tried larger windows
}

// A transfer takes a second or less. The ladder tries one window per transfer, and then the right
// one is known.
TEST(CreditController, TheLadderTakesATransferARung) {
  for (const int best : {1, 4, 128}) {
    ModelPath path;
    for (int transfer = 0; transfer < 25; ++transfer) {  // at 128, a transfer lasts 4 ms
      path.controller.on_start(path.now);
      path.transfer(12 << 20, [&](uint16_t credit) { return 25e6 * std::min<int>(credit, best); });
    }
    EXPECT_EQ(path.controller.base(), best);
  }
}

// A worse window lies between one that is just right and one so large that only TCP shares the
// port.
TEST(CreditController, AWorseWindowBetweenTwoDoesNotEndTheLadder) {
  ModelPath path;
  path.run(30 * kSecond, [](uint16_t credit) {
    return credit == 1 ? 15e6 : credit < 32 ? 5e6 : 24e6;
  });
  EXPECT_EQ(path.controller.base(), 32);
}

// On a full link, a second window only lengthens the queue and larger ones lose packets. The ladder
// of eight windows must end early.
TEST(CreditController, TheLadderEndsWhereOneWindowFillsALinkAndTheNextMovesNoMore) {
  ModelPath path;
  uint16_t largest = 0;
  path.run(60 * kSecond, [&](uint16_t credit) {
    largest = std::max(largest, credit);
    return path.queues_for(0.5, credit <= 2 ? 25e6 : 5e6);
  });
  EXPECT_EQ(path.controller.base(), 1);
  EXPECT_EQ(largest, 2);
  EXPECT_EQ(path.controller.ladder().rungs().size(), 2u);
}

// The ladder goes on while packets are lost, or while the next window moves more.
TEST(CreditController, TheLadderGoesOnWhereALinkIsNotFullOrLosesPackets) {
  for (const bool loses : {false, true}) {
    ModelPath path;
    path.run(30 * kSecond, [&](uint16_t credit) {
      if (loses && path.controller.climbing()) path.controller.on_losses(1, path.now);
      const double goodput = loses ? (credit < 32 ? 15e6 : 24e6) : 5e6 * std::min<int>(credit, 4);
      return path.queues_for(0.5, goodput);
    });
    EXPECT_EQ(path.controller.base(), loses ? 32 : 4);
  }
}

// A window that no transfer fills shows nothing that a smaller one does not.
TEST(CreditController, SmallTransfersEndTheLadderToo) {
  ModelPath path;
  for (int transfer = 0; transfer < 4000; ++transfer) {
    path.controller.on_start(path.now);
    path.transfer(64 << 10, [](uint16_t) { return 25e6; });
  }
  EXPECT_EQ(path.controller.credit(), 1);
}

TEST(CreditController, GrowsWhileMoreMovesMore) {
  ModelPath path;
  path.run(20 * kSecond, [](uint16_t credit) { return 50e6 * std::min<int>(credit, 32); });
  EXPECT_EQ(path.controller.base(), 32);
}

// Memory bounds the window of a long path. On a short path nothing beyond the ladder is tried.
TEST(CreditController, BeyondTheLadderAPathAllowsWhatItCanHold) {
  for (const size_t allowed : {0, 64, 512, 1 << 20}) {
    ModelPath path(2048, false, 128);
    path.run(20 * kSecond, [](uint16_t credit) { return 50e6 * std::min<int>(credit, 32); });
    EXPECT_EQ(path.controller.base(), 32);
    path.controller.allow(allowed * kPathSegment);
    path.run(600 * kSecond, [](uint16_t credit) { return 2e6 * credit; });
    EXPECT_EQ(path.controller.base(), std::clamp<size_t>(allowed, 128, 2048));
  }
}

// Where processors are the limit, each doubling saves a little, and other work makes noise.
TEST(CreditController, FindsASmallGainAmidNoise) {
  ModelPath path(64);
  std::mt19937 random(3);
  std::normal_distribution<double> noise(1, 0.3);  // per segment; about 0.01 per interval
  path.run(30 * kSecond, [&](uint16_t credit) {
    return 1e9 * std::pow(1.025, std::log2(credit)) * std::max(0.2, noise(random));
  });
  EXPECT_EQ(path.controller.base(), 64);
}

// On a full link, a small gain counts only if it shows every time.
TEST(CreditController, AGainOnAFullLinkShowsInEveryPair) {
  for (const bool steady : {true, false}) {
    ModelPath path(64);
    path.controller.on_queueing(2 * kMillisecond);
    std::mt19937 random(3);
    std::bernoulli_distribution better(0.5);
    Nanos until = 0;
    double gain = 1.04;
    path.run(30 * kSecond, [&](uint16_t credit) {
      if (!steady && path.now >= until) {
        until = path.now + kSecond;
        gain = better(random) ? 1.12 : 0.96;
      }
      return credit > 1 ? 25e6 * gain : 25e6;
    });
    EXPECT_EQ(path.controller.base() > 1, steady);
  }
}

TEST(CreditController, ALargeGainIsWorthAQueue) {
  ModelPath path(64);
  path.run(30 * kSecond, [&](uint16_t credit) {
    return path.queues_for(0.5, 25e6 * std::pow(std::min<int>(credit, 4), 0.15));
  });
  EXPECT_EQ(path.controller.base(), 4);
}

// Packets queue for more than a millisecond, but processes spend most of the time waiting for a
// processor.
TEST(CreditController, ASmallGainCountsWhereProcessorsAreTheLimit) {
  ModelPath path;
  path.run(30 * kSecond, [&](uint16_t credit) {
    return path.queues_for(0.15, 125e6 * std::pow(1.05, std::log2(credit)));
  });
  EXPECT_EQ(path.controller.base(), 128);
}

// Gradients come in bursts, and chance decides which window meets a burst.
TEST(CreditController, BurstsAreNoGain) {
  ModelPath path;
  std::mt19937 random(3);
  std::bernoulli_distribution burst(0.5);
  // Each pace lasts as long as an interval, so an interval either meets a burst or does not.
  double pace = 0;
  Nanos until = 0;
  path.run(600 * kSecond, [&](uint16_t) {
    if (path.now >= until) {
      until = path.now + 30 * kMillisecond;
      pace = burst(random) ? 25e6 : 12e6;
    }
    return path.queues_for(0.8, pace);
  });
  EXPECT_EQ(path.controller.base(), 1);
  EXPECT_GT(path.controller.trials(), 3u);
  // Other traffic leaves the link, and the controller must find the larger window.
  path.run(120 * kSecond, [&](uint16_t credit) {
    return path.queues_for(0.1, 25e6 * std::min<int>(credit, 8));
  });
  EXPECT_GE(path.controller.base(), 8);
}

// Connections and memory warm up: later transfers move more, with either window.
TEST(CreditController, ADriftIsNoGain) {
  ModelPath path;
  path.run(150 * kSecond, [&](uint16_t) { return 25e6 * std::exp(0.02 * to_seconds(path.now)); });
  EXPECT_EQ(path.controller.base(), 1);
  EXPECT_GT(path.controller.trials(), 3u);
}

// A round trip of 100 ms varies by more than a queue on a short path would last. The controller
// must try larger windows all the same. The path holds a window of 16 segments without a queue.
TEST(CreditController, ALongPathIsTriedThoughItsRoundTripVaries) {
  constexpr Nanos kShortest = 100 * kMillisecond;
  for (const Nanos queueing : {10 * kMillisecond, 20 * kMillisecond}) {
    ModelPath path;
    path.run(600 * kSecond, [&](uint16_t credit) {
      path.controller.on_queueing(queueing);
      const double window = kPathFlows * kPathSegment * std::min<int>(credit, 16);
      return window / to_seconds(kShortest + queueing);
    });
    EXPECT_EQ(path.controller.base(), 16) << queueing / kMillisecond << " ms";
  }
}

// Ranks do not begin an all-reduce at the same time. The wait of the first rank must not count as a
// gain of any window.
TEST(CreditController, WaitingForTheLastRankIsNotCounted) {
  ModelPath path;
  std::mt19937 random(3);
  std::uniform_int_distribution<Nanos> late(0, 400 * kMillisecond);
  while (path.now < 60 * kSecond) {
    path.controller.on_start(path.now);
    const Nanos begins = path.now + late(random);
    path.run(1, [&](uint16_t) { return kPathSegment / to_seconds(begins - path.now + 1); });
    path.run(20 * kMillisecond, [](uint16_t) { return 250e6; });
  }
  EXPECT_EQ(path.controller.base(), 1);
  EXPECT_GT(path.controller.trials(), 3u);
}

// Where no link is full, a trial does not end after a first pair that lost a little.
TEST(CreditController, MorePairsSettleADoubt) {
  ModelPath path(2);
  int times_larger = 0;
  uint16_t before = 1;
  path.run(20 * kSecond, [&](uint16_t credit) {
    times_larger += credit > before;  // the first time is on the ladder
    before = credit;
    return credit == 1 ? 100e6 : times_larger <= 2 ? 95e6 : 105e6;
  });
  EXPECT_EQ(path.controller.base(), 2);
  EXPECT_EQ(path.controller.trials(), 1u);
}

TEST(CreditController, NoiseIsNoGain) {
  ModelPath path;
  std::mt19937 random(3);
  std::normal_distribution<double> noise(1, 0.1);
  path.run(120 * kSecond, [&](uint16_t) { return 25e6 * std::max(0.2, noise(random)); });
  EXPECT_LE(path.controller.base(), 2);
  EXPECT_GT(path.controller.trials(), 3u);
}

TEST(CreditController, StopsAtItsMaximum) {
  ModelPath path(16);
  path.run(20 * kSecond, [](uint16_t credit) { return 50e6 * credit; });
  EXPECT_EQ(path.controller.credit(), 16);
}

TEST(CreditController, OneNoisyIntervalIsNoEvidence) {
  ModelPath path;
  int call = 0;
  // The first 40 of every 2000 segments run at three times the pace, whatever the window.
  path.run(30 * kSecond, [&](uint16_t) { return ++call % 2000 < 40 ? 75e6 : 25e6; });
  EXPECT_LE(path.controller.base(), 2);
}

// The link becomes slower, so the window that was right now overruns a switch.
TEST(CreditController, CongestionHalvesTheWindowWhereHalfMovesAsMuch) {
  ModelPath path;
  std::mt19937 random(3);
  std::bernoulli_distribution lost(0.02);
  path.run(20 * kSecond, [](uint16_t credit) { return 5e6 * std::min<int>(credit, 32); });
  ASSERT_EQ(path.controller.base(), 32);
  const auto slower = [&](uint16_t credit) {
    if (credit > 8 && lost(random)) path.controller.on_losses(1, path.now);
    return 5e6 * std::min<int>(credit, 8);
  };
  path.run(20 * kSecond, slower);
  EXPECT_LE(path.controller.base(), 8);
}

// Packets that overtake each other occasionally look like a loss.
TEST(CreditController, ALoneLossChangesNothing) {
  ModelPath path;
  for (int second = 0; second < 60; ++second) {
    path.run(kSecond, [](uint16_t credit) { return 50e6 * std::min<int>(credit, 32); });
    const uint16_t before = path.controller.credit();
    path.controller.on_losses(1, path.now);
    EXPECT_EQ(path.controller.credit(), before);
  }
  EXPECT_EQ(path.controller.base(), 32);
}

// Other packets also make a queue. While twice the window moves twice as much, the window is too
// small.
TEST(CreditController, TwiceTheGoodputIsWorthAnyQueue) {
  ModelPath path;
  path.controller.on_queueing(20 * kMillisecond);
  path.run(20 * kSecond, [](uint16_t credit) { return 50e6 * std::min<int>(credit, 16); });
  EXPECT_EQ(path.controller.base(), 16);
}

// One packet in a thousand is lost, whatever the window.
TEST(CreditController, LossesThatNoWindowAvoidsAreTolerated) {
  ModelPath path;
  std::mt19937 random(3);
  std::bernoulli_distribution lost(1e-3);
  const auto lossy = [&](uint16_t credit) {
    if (lost(random)) path.controller.on_losses(1, path.now);
    return 1e6 * std::min<int>(credit, 32);
  };
  path.run(30 * kSecond, lossy);
  int small = 0;
  for (int i = 0; i < 300; ++i) {
    path.run(100 * kMillisecond, lossy);
    small += path.controller.credit() < 32;
  }
  EXPECT_LE(small, 45);
}

// Twice the window overruns a switch and stalls. Trying it once a minute is enough.
TEST(CreditController, TrialsThatFailCostLittle) {
  ModelPath path;
  Nanos trying = 0;
  path.run(300 * kSecond, [&](uint16_t credit) {
    const double goodput = credit == 1 ? 25e6 : 2e6;
    if (credit > 1) trying += static_cast<Nanos>(kPathSegment / goodput * 1e9);
    return goodput;
  });
  EXPECT_EQ(path.controller.base(), 1);
  EXPECT_GT(path.controller.trials(), 3u);
  EXPECT_LT(trying, 10 * kSecond);  // half of this is the ladder
}

TEST(CreditController, FixedIsFixed) {
  ModelPath path(128, true);
  path.run(5 * kSecond, [](uint16_t credit) { return 50e6 * credit; });
  path.controller.on_losses(5, path.now);
  EXPECT_EQ(path.controller.credit(), 1);
}

}  // namespace
}  // namespace herring::links
