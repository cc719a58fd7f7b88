#include "observe/looks.h"

#include <gtest/gtest.h>

namespace herring::observe {
namespace {

constexpr Nanos kUsual = 60 * kMillisecond;

TEST(Looks, NothingSeenExplainsNothing) {
  Looks looks;
  EXPECT_EQ(looks.reason(kSecond, 2 * kUsual, kUsual).cause, "");
  looks.add("input", "train.py:3", kSecond);
  EXPECT_EQ(looks.reason(60 * kSecond, 2 * kUsual, kUsual).cause, "");  // long ago
}

TEST(Looks, InputExplainsWhereverItIsInTheStep) {
  Looks looks;
  for (int i = 0; i < 20; ++i) looks.add(i % 2 == 0 ? "input" : "compute", "at", kSecond);
  EXPECT_EQ(looks.reason(kSecond, 2 * kUsual, kUsual).cause, "input");
  // A tenth of the time that is input does not explain a step that is twice as long.
  Looks few;
  for (int i = 0; i < 20; ++i) {
    few.add(i % 10 == 0 ? "input" : "compute", i % 10 == 0 ? "load" : "model", kSecond);
  }
  EXPECT_EQ(few.reason(kSecond, 2 * kUsual, kUsual).cause, "compute");
  EXPECT_EQ(few.reason(kSecond, 2 * kUsual, kUsual).stack, "model");
  // It does if the step is a little longer only.
  EXPECT_EQ(few.reason(kSecond, kUsual + kUsual / 9, kUsual).cause, "input");
}

TEST(Looks, UnknownTimesLeaveHalfOfTheLooks) {
  Looks looks;
  looks.add("checkpoint", "save", kSecond);
  looks.add("compute", "model", kSecond);
  EXPECT_EQ(looks.reason(kSecond, 0, 0).cause, "checkpoint");
  looks.add("compute", "model", kSecond);
  EXPECT_EQ(looks.reason(kSecond, 0, 0).cause, "compute");
}

TEST(Looks, TheStackIsThatOfTheLatestLookOfTheCause) {
  Looks looks;
  looks.add("input", "the first", kSecond);
  looks.add("input", "the last", kSecond + 1);
  looks.add("compute", "model", kSecond + 2);
  EXPECT_EQ(looks.reason(kSecond + 2, 0, 0).stack, "the last");
}

TEST(Looks, TheMostFrequentOtherCauseCounts) {
  Looks looks;
  for (const char* const cause : {"gc", "input", "compute", "input", "gc", "input"}) {
    looks.add(cause, cause, kSecond);
  }
  EXPECT_EQ(looks.reason(kSecond, kUsual + kUsual / 2, kUsual).cause, "input");
}

TEST(Looks, WhatIsForgottenExplainsNothing) {
  Looks looks;
  for (int i = 0; i < 64; ++i) looks.add("input", "load", kSecond);
  for (int i = 0; i < 64; ++i) looks.add("compute", "model", kSecond);
  EXPECT_EQ(looks.reason(kSecond, 0, 0).cause, "compute") << "it remembers 64";
  looks.add("input", "load", 2 * kSecond);
  EXPECT_EQ(looks.reason(3 * kSecond + 1, 0, 0).cause, "input") << "and 2 s";
}

TEST(Looks, ALookWithoutACauseExplainsNothing) {
  Looks looks;
  looks.add("", "somewhere", kSecond);
  EXPECT_EQ(looks.reason(kSecond, 2 * kUsual, kUsual).cause, "");
}

}  // namespace
}  // namespace herring::observe
