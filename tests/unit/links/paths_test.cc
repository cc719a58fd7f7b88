#include "links/paths.h"

#include <gtest/gtest.h>

namespace herring::links {
namespace {

Path way(size_t outstanding, Nanos rtt) {
  Path made;
  made.outstanding = outstanding;
  made.carried = true;
  made.report(rtt);
  return made;
}

// Returns how `frames` frames of `segments` each spread over `paths` if nothing is answered
// meanwhile.
std::vector<size_t> spread(std::vector<Path> paths, int frames, size_t segments) {
  std::vector<size_t> taken(paths.size());
  for (int i = 0; i < frames; ++i) {
    const size_t chosen = soonest(paths);
    paths[chosen].outstanding += segments;
    ++taken[chosen];
  }
  return taken;
}

TEST(Paths, TakesTheLeastLoadedOfEqualOnes) {
  EXPECT_EQ(soonest({way(4, kMillisecond), way(2, kMillisecond), way(3, kMillisecond)}), 1u);
}

TEST(Paths, SpreadsEvenlyWhileNothingIsKnown) {
  EXPECT_EQ(spread(std::vector<Path>(4), 12, 1), (std::vector<size_t>{3, 3, 3, 3}));
}

TEST(Paths, SharesByWhatEachCanAnswer) {
  EXPECT_EQ(spread({way(0, 3 * kMillisecond), way(0, kMillisecond)}, 40, 1),
            (std::vector<size_t>{10, 30}));
}

// One path is far slower than the others. Waiting for a fast path takes less time than using the
// slow one.
TEST(Paths, LeavesABrokenOneAlone) {
  EXPECT_EQ(spread({way(0, kMillisecond), way(0, 50 * kMillisecond), way(0, kMillisecond)}, 40,
                   1),
            (std::vector<size_t>{20, 0, 20}));
}

TEST(Paths, WhatAnIdleFlowReportsIsOld) {
  Path one = way(0, kMillisecond);
  one.report(80 * kMillisecond);
  EXPECT_EQ(one.rtt, kMillisecond);
  one.carried = true;
  one.report(80 * kMillisecond);
  EXPECT_EQ(one.rtt, 80 * kMillisecond);
}

TEST(Paths, ASlowOneIsTriedAgainMoreAndMoreSeldom) {
  std::vector<Path> paths{way(0, kMillisecond), way(0, kMillisecond)};
  Nanos now = 100 * kSecond;
  retry_slow_paths(paths, now);
  std::vector<Nanos> tried;
  for (Nanos last = now; now < 400 * kSecond; now += 50 * kMillisecond) {
    // The path is as slow as before whenever it is tried.
    if (soonest(paths) == 1 || paths[1].rtt <= 2 * paths[0].rtt) {
      tried.push_back((now - last) / kSecond);
      last = now;
      paths[1].carried = true;
      paths[1].report(100 * kMillisecond);
    }
    retry_slow_paths(paths, now);
  }
  EXPECT_EQ(tried, (std::vector<Nanos>{0, 1, 2, 4, 8, 16, 32, 60, 60, 60}));
}

TEST(Paths, OneThatKeepsUpAgainIsForgiven) {
  std::vector<Path> paths{way(0, kMillisecond), way(0, 100 * kMillisecond)};
  for (Nanos now = 0; now < 200 * kSecond; now += kSecond) {
    retry_slow_paths(paths, now);
    paths[1].carried = true;
    paths[1].report(100 * kMillisecond);
  }
  EXPECT_GT(paths[1].rest, 30 * kSecond);
  paths[1].carried = true;
  paths[1].report(2 * kMillisecond);
  retry_slow_paths(paths, 200 * kSecond);
  EXPECT_EQ(paths[1].rest, kSecond);
}

TEST(Paths, NothingKnownIsNotSlow) {
  std::vector<Path> paths(3);
  retry_slow_paths(paths, 5 * kSecond);
  for (const Path& one : paths) EXPECT_EQ(one.rtt, 0);
}

}  // namespace
}  // namespace herring::links
