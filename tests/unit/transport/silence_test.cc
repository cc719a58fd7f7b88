#include "transport/silence.h"

#include <gtest/gtest.h>

namespace herring::transport {
namespace {

constexpr Nanos kLook = 250 * kMillisecond;

PathInfo path_with(uint32_t unacknowledged, Nanos acknowledged_ago) {
  PathInfo path;
  path.unacknowledged = unacknowledged;
  path.acknowledged_ago = acknowledged_ago;
  return path;
}

TEST(Silence, AQuietHourIsNone) {
  Silence silence;
  Nanos now = 100 * kSecond, sent = now;
  for (; now < sent + 3600 * kSecond; now += kLook) {
    ASSERT_EQ(silence.at(path_with(0, now - sent), now), 0);
  }
  EXPECT_LE(silence.at(path_with(1, now - sent), now), kLook);
  now += kLook;
  EXPECT_EQ(silence.at(path_with(0, 0), now), 0);
}

TEST(Silence, BeginsWhenSomethingWaits) {
  Silence silence;
  Nanos now = 100 * kSecond;
  const Nanos cut = now;
  EXPECT_EQ(silence.at(path_with(0, 0), now), 0);
  for (int i = 1; i <= 20; ++i) {
    now += kLook;
    EXPECT_EQ(silence.at(path_with(3, now - cut), now), i * kLook);
  }
}

TEST(Silence, IsNoneWhereAnswersCome) {
  Silence silence;
  for (Nanos now = 100 * kSecond; now < 200 * kSecond; now += kLook) {
    EXPECT_LE(silence.at(path_with(9, kMillisecond), now), kMillisecond);
  }
}

TEST(Silence, BeginsAnewAfterThisProcessStoodStill) {
  Silence silence;
  Nanos now = 100 * kSecond;
  EXPECT_EQ(silence.at(path_with(1, kSecond), now), 0);  // the first look
  now += kLook;
  EXPECT_EQ(silence.at(path_with(1, 2 * kSecond), now), kLook);
  now += 30 * kSecond;
  EXPECT_EQ(silence.at(path_with(1, 32 * kSecond), now), 0);
}

}  // namespace
}  // namespace herring::transport
