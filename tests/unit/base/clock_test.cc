#include "base/clock.h"

#include <gtest/gtest.h>

#include <limits>

namespace herring {
namespace {

TEST(Clock, SecondsBecomeNanoseconds) {
  EXPECT_EQ(from_seconds(0), 0);
  EXPECT_EQ(from_seconds(0.5), 500 * kMillisecond);
  EXPECT_EQ(from_seconds(-2), -2 * kSecond);
  EXPECT_EQ(from_seconds(7 * 24 * 3600.0), 7 * 24 * 3600 * kSecond);
  EXPECT_EQ(from_seconds(1e-10), 0);
}

// Callers use these large numbers for "without end". Such a deadline must not pass at once, and
// adding the current time to it must not overflow.
TEST(Clock, WhatIsTooLongIsEndless) {
  constexpr double kThreadingTimeoutMax = 9223372036.0;  // Python's threading.TIMEOUT_MAX, 2^63 ns
  for (const double seconds :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::max(), 1e18, 1e10,
        kThreadingTimeoutMax, to_seconds(kEndless), to_seconds(kEndless) * (1 + 1e-15),
        std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(from_seconds(seconds), kEndless) << seconds;
  }
  EXPECT_LT(from_seconds(to_seconds(kEndless) * (1 - 1e-15)), kEndless);
  EXPECT_EQ(from_seconds(-std::numeric_limits<double>::infinity()), -kEndless);
  Nanos then = 0;
  EXPECT_FALSE(__builtin_add_overflow(monotonic_now(), kEndless, &then));
  EXPECT_FALSE(__builtin_add_overflow(2 * kEndless, kEndless / 2, &then));
}

}  // namespace
}  // namespace herring
