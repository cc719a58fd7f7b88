// For whom others wait: what the monitor makes of reports that are of different times.
#include "tests/unit/observe/monitored_job.h"

namespace herring::observe {
namespace {

// A rank that was late goes on, and so do those who waited for it. Some reports are older.
TEST_F(MonitorTest, WhoComputesAgainIsNotMissing) {
  for (int i = 0; i < 3; ++i) second();
  for (uint32_t rank : {0u, 2u, 3u}) {
    reports[rank].where = "waits in 'm' (round 30)";
    reports[rank].age = 1100 * kMillisecond;
  }
  reports[1].age = 1160 * kMillisecond;
  // Rank 0 is on the node of rank 1, so that a server waits for both.
  server_reports[0].missing.push_back({"'m' (round 30)", 1100 * kMillisecond, {0, 1}});
  tell();
  ASSERT_EQ(monitor.picture(now).missing.size(), 1u);
  EXPECT_EQ(monitor.picture(now).missing[0].ranks, std::vector<uint32_t>{1});
  now += 150 * kMillisecond;
  for (uint32_t rank : {0u, 2u}) {
    reports[rank].where.clear();
    reports[rank].age = 40 * kMillisecond;
    monitor.report({false, rank}, reports[rank], now);
  }
  for (const Missing& one : monitor.picture(now).missing) {
    EXPECT_EQ(one.ranks, std::vector<uint32_t>{1});
  }
  reports[1].age = 0;
  monitor.report({false, 1}, reports[1], now);
  EXPECT_TRUE(monitor.picture(now).missing.empty());
}

// Between two reports a rank may have come.
TEST_F(MonitorTest, OnlyKnownAbsenceCounts) {
  second();
  reports[0].where = "waits in 'm' (round 10)";
  reports[0].age = 550 * kMillisecond;
  for (uint32_t rank : {1u, 2u, 3u}) reports[rank].age = kSecond;
  server_reports[0].missing.push_back({"'m' (round 10)", 550 * kMillisecond, {1, 2, 3}});
  tell();
  now += 500 * kMillisecond;
  reports[0].age = server_reports[0].missing[0].age = 1050 * kMillisecond;
  monitor.report({false, 0}, reports[0], now);
  monitor.report({true, 0}, server_reports[0], now);
  monitor.report({false, 3}, reports[3], now);  // computes since
  const Picture picture = monitor.picture(now);
  ASSERT_EQ(picture.missing.size(), 1u);
  EXPECT_EQ(picture.missing[0].ranks, std::vector<uint32_t>{3});
}

TEST_F(MonitorTest, UsualWaitsAreNotTold) {
  for (int i = 0; i < 30; ++i) {
    // One rank after the other comes 1.5 s after the others.
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      work[rank] = (rank == i % kRanks ? 5000 : 3500) * kMillisecond;
    }
    round_of_all();
  }
  tell();
  const auto wait = [&](Nanos age) {
    for (uint32_t rank : {0u, 1u, 2u}) {
      reports[rank].where = "waits in 'm' (round 30)";
      reports[rank].age = age;
    }
    reports[3].age = 3500 * kMillisecond + age;
    server_reports[0].missing = {{"'m' (round 30)", age, {3}}};
    tell();
    return monitor.picture(now);
  };
  Picture picture = wait(1400 * kMillisecond);
  EXPECT_TRUE(picture.missing.empty());
  EXPECT_FALSE(picture.ranks[3].outlier);
  picture = wait(5 * kSecond);
  EXPECT_EQ(picture.missing.size(), 1u);
  EXPECT_TRUE(picture.ranks[3].outlier);
}

TEST_F(MonitorTest, TheFirstLongStepIsNotHeldAgainstARank) {
  tell();
  const auto wait = [&](Nanos age) {
    for (uint32_t rank : {0u, 1u, 2u}) {
      reports[rank].where = "waits in 'm' (round 0)";
      reports[rank].age = age;
    }
    reports[3].age = 4 * kSecond + age;
    server_reports[0].missing = {{"'m' (round 0)", age, {3}}};
    tell();
    return monitor.picture(now).missing;
  };
  EXPECT_TRUE(wait(1500 * kMillisecond).empty());
  EXPECT_EQ(wait(2500 * kMillisecond).size(), 1u);
}

TEST_F(MonitorTest, OnlyTheAbsentAreBlamed) {
  second();
  for (uint32_t rank : {0u, 1u, 2u}) {
    reports[rank].where = "waits in 'm' (round 10)";
    reports[rank].age = 5 * kSecond;
  }
  reports[3].age = 5 * kSecond;
  reports[3].cause = "input";
  // Rank 2 is on the node of rank 3, so that a server waits for both.
  server_reports[0].missing.push_back({"'m' (round 10)", 5 * kSecond, {2, 3}});
  second();
  Picture picture = monitor.picture(now);
  ASSERT_EQ(picture.missing.size(), 1u);
  EXPECT_EQ(picture.missing[0].ranks, std::vector<uint32_t>{3});
  EXPECT_TRUE(picture.ranks[3].outlier);
  EXPECT_EQ(picture.ranks[3].cause, "input");
  for (uint32_t rank : {0u, 1u, 2u}) EXPECT_FALSE(picture.ranks[rank].outlier);
  // On a single node no server sees it.
  server_reports[0].missing.clear();
  second();
  picture = monitor.picture(now);
  ASSERT_EQ(picture.missing.size(), 1u);
  EXPECT_EQ(picture.missing[0].ranks, std::vector<uint32_t>{3});
  EXPECT_EQ(picture.missing[0].what, "'m' (round 10)");
}

TEST_F(MonitorTest, GroupsOfOtherRanksConcernNobodyElse) {
  second();
  reports[0].where = "waits in allreduce 'x' of ranks 0-1";
  for (Report& report : reports) report.age = 5 * kSecond;
  second();
  EXPECT_TRUE(monitor.picture(now).missing.empty());
}

}  // namespace
}  // namespace herring::observe
