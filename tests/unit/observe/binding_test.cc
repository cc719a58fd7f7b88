// When a rank that is late is named, and how steady the judgement of what binds is.
#include <gtest/gtest.h>

#include "tests/unit/observe/monitored_job.h"

namespace herring::observe {
namespace {

// Also where steps vary so much that its mean alone would not tell after a few.
TEST_F(MonitorTest, ARankThatIsTheLastOneInTenStepsIsNamed) {
  uint32_t chance = 1;
  for (int i = 0; i < 11; ++i) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      chance = chance * 1664525 + 1013904223;
      work[rank] = (60 + (chance >> 16) % 40) * kMillisecond;
    }
    // It is late by little, and now and then by far.
    work[2] = (i % 5 == 4 ? 900 : 120) * kMillisecond;
    round_of_all();
    if (i < 10) {
      EXPECT_FALSE(monitor.picture(now).ranks[2].chronic) << i;
    }
    now = before[0] - kSecond;
    tell();
  }
  const Picture picture = monitor.picture(now);
  EXPECT_TRUE(picture.ranks[2].chronic);
  EXPECT_EQ(picture.binds_who, "rank 2 (host2)");
  ASSERT_FALSE(picture.findings.empty());
  EXPECT_NE(picture.findings.at(0).find(" in 11 of 11 steps: it computes longer"),
            std::string::npos)
      << picture.findings.at(0);
}

TEST_F(MonitorTest, AYoungJobIsToldOfTheRankForWhichEachStepWaits) {
  tail = 60 * kMillisecond;  // more servers would help, which a young job need not hear
  second();
  EXPECT_TRUE(monitor.due_lines(now).empty());
  work[2] += 80 * kMillisecond;
  for (int i = 0; i < 2; ++i) second();
  const auto lines = monitor.due_lines(now);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("rank 2 (host2) is late by 80 ms in ")) << lines[0];
  second();
  EXPECT_TRUE(monitor.due_lines(now).empty());  // not again so soon
}

TEST_F(MonitorTest, WhatBindsDoesNotTurnWithEveryReport) {
  // Ranks vary alike: each step waits for the last one for about a tenth of its time.
  uint32_t chance = 1;
  int turns = 0;
  Picture::Binds before = Picture::Binds::kNothing;
  for (int i = 0; i < 600; ++i) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      chance = chance * 1664525 + 1013904223;
      work[rank] = (80 + (chance >> 16) % 30) * kMillisecond;
    }
    round_of_all();
    if (i % 10 != 9) continue;
    tell();
    monitor.due_lines(now);
    const Picture picture = monitor.picture(now);
    const double ranks = static_cast<double>(picture.split.ranks) /
                         static_cast<double>(picture.split.step);
    if (i > 200) {
      EXPECT_NEAR(ranks, 0.1, 0.03) << i;  // where the judgement once turned
    }
    if (i > 30) {
      EXPECT_EQ(picture.binds, Picture::Binds::kCompute) << i;
    }
    turns += picture.binds != before;
    before = picture.binds;
  }
  EXPECT_LE(turns, 2);
}

TEST_F(MonitorTest, ARankThatIsLateAtTheLimitIsNamedOnceAndNotInTurn) {
  int turns = 0;
  bool named = false;
  for (int i = 0; i < 60; ++i) {
    work[2] = (90 + (i < 10 ? 16 : i % 2 == 0 ? 13 : 11)) * kMillisecond;
    second();
    monitor.due_lines(now);
    const bool now_named = !monitor.picture(now).binds_who.empty();
    turns += now_named != named;
    named = now_named;
  }
  EXPECT_TRUE(named);
  EXPECT_EQ(turns, 1);
  for (int i = 0; i < 30; ++i) {
    work[2] = 90 * kMillisecond;
    second();
    monitor.due_lines(now);
  }
  EXPECT_EQ(monitor.picture(now).binds, Picture::Binds::kCompute);
}

TEST_F(MonitorTest, RanksThatAreFarApartInTurnBindWithoutAName) {
  uint32_t chance = 1;
  for (int i = 0; i < 200; ++i) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      chance = chance * 1664525 + 1013904223;
      work[rank] = (20 + (chance >> 16) % 180) * kMillisecond;
    }
    round_of_all();
  }
  tell();
  const Picture picture = monitor.picture(now);
  EXPECT_EQ(picture.binds, Picture::Binds::kRank);
  EXPECT_EQ(picture.binds_who, "");
  EXPECT_NE(as_text(picture, false).find("one rank or another binds"), std::string::npos);
}

}  // namespace
}  // namespace herring::observe
