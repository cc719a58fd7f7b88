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

// Rank 2 has never sent a message for which rank 3 waits. Rank 1 asked for another one long ago,
// and computes.
TEST_F(MonitorTest, WhoNeverSentAMessageIsMissing) {
  tell();
  reports[3].where = "waits in receive 'receive 2' (rank 2)";
  for (uint32_t rank = 0; rank < kRanks; ++rank) reports[rank].age = 5 * kSecond;
  server_reports[1].missing = {{"receive from rank 0 (tag 0)", 9 * kSecond, {0}, 1},
                               {"receive from rank 2 (tag 1)", 9 * kSecond, {2}, 3},
                               {"receive from rank 2 (tag 7)", 5 * kSecond, {2}, 3}};
  tell();
  const Picture picture = monitor.picture(now);
  ASSERT_EQ(picture.missing.size(), 1u);
  EXPECT_EQ(picture.missing[0].what, "receive from rank 2 (tag 7)");
  EXPECT_EQ(picture.missing[0].ranks, std::vector<uint32_t>{2});
  EXPECT_EQ(picture.missing[0].by, 3u);
  EXPECT_EQ(picture.missing[0].age, 5 * kSecond);
  EXPECT_TRUE(picture.ranks[2].outlier);
  ASSERT_FALSE(picture.findings.empty());
  EXPECT_EQ(picture.findings[0],
            "rank 2 (host2) never sent the message for which rank 3 (host3) has waited 5 s: "
            "receive from rank 2 (tag 7); rank 2 has been computing for 5 s");
}

TEST_F(MonitorTest, TheCauseOfAChainOfMessagesComesFirst) {
  tell();
  reports[2].where = "waits in receive 'receive 1' (rank 1)";
  reports[3].where = "waits in send 'send 2' (rank 2)";
  for (uint32_t rank = 0; rank < kRanks; ++rank) reports[rank].age = 8 * kSecond;
  reports[2].age = 6 * kSecond;
  server_reports[0].missing = {{"send to rank 2 (tag 0)", 8 * kSecond, {2}, 3},
                               {"receive from rank 1 (any tag)", 6 * kSecond, {1}, 2}};
  tell();
  const Picture picture = monitor.picture(now);
  ASSERT_EQ(picture.missing.size(), 2u);
  EXPECT_EQ(picture.missing[0].ranks, std::vector<uint32_t>{1});
  EXPECT_EQ(picture.findings[1],
            "rank 2 (host2) never received the message for which rank 3 (host3) has waited 8 s: "
            "send to rank 2 (tag 0); rank 2 waits in receive 'receive 1' (rank 1)");
  EXPECT_FALSE(picture.ranks[2].outlier);
}

TEST_F(MonitorTest, AMessageFromAnyRankAccusesNobody) {
  tell();
  reports[3].where = "waits in receive 'receive any'";
  for (uint32_t rank = 0; rank < kRanks; ++rank) reports[rank].age = 5 * kSecond;
  server_reports[0].missing = {{"receive from any rank (tag 0)", 5 * kSecond, {}, 3}};
  tell();
  Picture picture = monitor.picture(now);
  ASSERT_EQ(picture.missing.size(), 1u);
  EXPECT_TRUE(picture.missing[0].ranks.empty());
  EXPECT_EQ(picture.findings.at(0), "no rank has sent the message for which rank 3 (host3) has "
                                    "waited 5 s: receive from any rank (tag 0)");
  for (const Picture::Rank& rank : picture.ranks) EXPECT_FALSE(rank.outlier);
  // The rank goes on, which a server tells later.
  reports[3].where.clear();
  reports[3].age = 100 * kMillisecond;
  monitor.report({false, 3}, reports[3], now);
  EXPECT_TRUE(monitor.picture(now).missing.empty());
}

}  // namespace
}  // namespace herring::observe
