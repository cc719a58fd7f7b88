#include "engine/pauses.h"

#include <gtest/gtest.h>

namespace herring::engine {
namespace {

constexpr Nanos kPeriod = 50 * kMillisecond;

TEST(Pauses, ATimeInWhichTheThreadStoodStillDoesNotCount) {
  Nanos now = 100 * kSecond;
  Pauses pauses(kPeriod, now);
  EXPECT_EQ(pauses.at(now += kPeriod), 0);
  EXPECT_EQ(pauses.at(now += kPeriod + 3 * kSecond), 3 * kSecond);
  EXPECT_EQ(pauses.at(now += kPeriod + kSecond), 4 * kSecond - kPeriod / 10);
}

TEST(Pauses, AreForgottenSlowly) {
  Nanos now = kSecond;
  Pauses pauses(kPeriod, now);
  pauses.at(now += kPeriod + kSecond);
  for (int i = 1; i < 200; ++i) {
    EXPECT_EQ(pauses.at(now += kPeriod), kSecond - i * (kPeriod / 10));
  }
  EXPECT_EQ(pauses.at(now += kPeriod), 0);
}

TEST(Pauses, DoNotHideDeadlinesFromAThreadThatIsAlwaysLate) {
  Nanos now = kSecond;
  Pauses pauses(kPeriod, now);
  for (int i = 0; i < 1000; ++i) pauses.at(now += kSecond);
  EXPECT_EQ(pauses.at(now += kSecond), 60 * kSecond);
}

}  // namespace
}  // namespace herring::engine
