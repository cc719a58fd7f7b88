#include "base/reminders.h"

#include <gtest/gtest.h>

#include <vector>

namespace herring {
namespace {

TEST(InSeconds, IsRounded) {
  EXPECT_EQ(in_seconds(0), "0 s");
  EXPECT_EQ(in_seconds(from_seconds(59.7502)), "60 s");
  EXPECT_EQ(in_seconds(from_seconds(4.00346)), "4 s");
  EXPECT_EQ(in_seconds(from_seconds(4.14)), "4.1 s");
  EXPECT_EQ(in_seconds(250 * kMillisecond), "0.25 s");
  EXPECT_EQ(in_seconds(100 * kMillisecond), "0.1 s");
  EXPECT_EQ(in_seconds(20 * kMillisecond), "20 ms");
  EXPECT_EQ(in_seconds(1500 * kMicrosecond), "1.5 ms");
  EXPECT_EQ(in_seconds(from_seconds(9.99)), "10 s");
  EXPECT_EQ(in_seconds(1800 * kSecond), "1800 s");
  EXPECT_EQ(in_seconds(604800 * kSecond), "604800 s");
}

TEST(Reminders, PausesDouble) {
  Reminders reminders(100 * kSecond, 5 * kSecond, 100 * kSecond);
  std::vector<Nanos> said;
  for (Nanos now = 100 * kSecond; now < 200 * kSecond; now += kSecond / 2) {
    if (reminders.due(now)) said.push_back((now - reminders.since()) / kSecond);
  }
  EXPECT_EQ(said, (std::vector<Nanos>{5, 15, 35, 75}));
}

TEST(Reminders, WhoLooksSeldomIsTold) {
  Reminders reminders(0, 5 * kSecond, 0);
  EXPECT_TRUE(reminders.due(40 * kSecond));  // the reminders for 5, 15 and 35 s, as one
  EXPECT_FALSE(reminders.due(74 * kSecond));
  EXPECT_TRUE(reminders.due(75 * kSecond));
}

TEST(Reminders, WhatWasSaidBeforeIsNotRepeated) {
  Reminders reminders(0, 5 * kSecond, 20 * kSecond);
  EXPECT_EQ(reminders.next(), 35 * kSecond);
}

TEST(Reminders, OthersMayTakeAsLongToStartAsWhoWaitsHasTaken) {
  EXPECT_EQ(usual_start(kSecond, 60 * kSecond), 5 * kSecond);
  EXPECT_EQ(usual_start(20 * kSecond, 60 * kSecond), 20 * kSecond);
  EXPECT_EQ(usual_start(3600 * kSecond, 60 * kSecond), 30 * kSecond);
  EXPECT_EQ(usual_start(20 * kSecond, 10 * kSecond), 10 * kSecond);
  EXPECT_EQ(usual_start(20 * kSecond, kSecond), kSecond);
}

TEST(Reminders, TheFirstComesWithinFiveSeconds) {
  EXPECT_EQ(first_reminder(60 * kSecond), 5 * kSecond);
  EXPECT_EQ(first_reminder(kSecond), kSecond);
}

}  // namespace
}  // namespace herring
