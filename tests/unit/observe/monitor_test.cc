#include "observe/monitor.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "observe/json.h"
#include "tests/unit/observe/monitored_job.h"

namespace herring::observe {
namespace {

TEST_F(MonitorTest, AHealthyJobIsNotTalkedAbout) {
  for (int i = 0; i < 20; ++i) {
    second();
    EXPECT_TRUE(monitor.due_lines(now).empty());
  }
  const Picture picture = monitor.picture(now);
  EXPECT_TRUE(picture.findings.empty());
  EXPECT_EQ(picture.binds, Picture::Binds::kCompute);
  EXPECT_TRUE(monitor.rank_texts(now).empty());
}

TEST_F(MonitorTest, ALateRankIsNamedWithItsCause) {
  work[2] += 31 * kMillisecond;
  for (int i = 0; i < 6; ++i) second();
  const auto lines = monitor.due_lines(now);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "rank 2 (host2) is late by 31 ms in 100 % of the steps: it computes longer");
  EXPECT_TRUE(monitor.due_lines(now + kSecond).empty());  // not again so soon
  const Picture picture = monitor.picture(now);
  EXPECT_EQ(picture.binds, Picture::Binds::kRank);
  EXPECT_EQ(picture.binds_who, "rank 2 (host2)");
  const RankTexts texts = monitor.rank_texts(now);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0].rank, 2u);
  EXPECT_EQ(texts[0].text, "");
  EXPECT_NEAR(to_seconds(texts[0].late), 0.031, 0.001);
}

TEST_F(MonitorTest, CodeExplainsLateness) {
  work[1] += 40 * kMillisecond;
  reports[1].cause = "input";
  reports[1].stack = "train.py:40 in load";
  for (int i = 0; i < 3; ++i) second();
  EXPECT_EQ(monitor.picture(now).findings.at(0),
            "rank 1 (host1) is late by 40 ms in 100 % of the steps: it waits for its input "
            "(train.py:40 in load)");
}

TEST_F(MonitorTest, SwappingExplainsLateness) {
  work[3] += 40 * kMillisecond;
  for (int i = 0; i < 4; ++i) {
    reports[3].resources.major_faults += 500;
    second();
  }
  EXPECT_EQ(monitor.picture(now).ranks[3].cause, "swapping");
}

TEST_F(MonitorTest, LackOfProcessorsExplainsLateness) {
  work[3] += 40 * kMillisecond;
  for (int i = 0; i < 4; ++i) {
    reports[3].resources.run_delay += 300 * kMillisecond;
    second();
  }
  EXPECT_EQ(monitor.picture(now).ranks[3].cause, "starved");
}

TEST_F(MonitorTest, ALittleDelayDoesNotExplainALongStep) {
  work[3] += 200 * kMillisecond;
  for (int i = 0; i < 4; ++i) {
    reports[3].resources.run_delay += 200 * kMillisecond;
    second();
  }
  EXPECT_EQ(monitor.picture(now).ranks[3].cause, "compute");
}

TEST_F(MonitorTest, OnceIsToldApartFromAlways) {
  for (int i = 0; i < 5; ++i) second();
  work[0] += 3 * kSecond;
  second();
  work[0] -= 3 * kSecond;
  // Ten rounds of that second were late; a share of 10 in 60.
  second();
  const Picture picture = monitor.picture(now);
  EXPECT_FALSE(picture.ranks[0].chronic);
  EXPECT_TRUE(picture.ranks[0].once);
  EXPECT_EQ(picture.findings.at(0).find("rank 0 (host0) was late by 3 s in round 5"), 0u)
      << picture.findings.at(0);
}

TEST_F(MonitorTest, TheCauseOfOneLateRoundIsKept) {
  for (int i = 0; i < 5; ++i) second();
  // During the stall its code was seen.
  reports[1].age = kSecond;
  reports[1].cause = "checkpoint";
  reports[1].stack = "train.py:9 in save";
  tell();
  reports[1].age = 0;
  reports[1].cause.clear();
  reports[1].stack.clear();
  work[1] += 2 * kSecond;
  round_of_all();
  work[1] -= 2 * kSecond;
  tell();
  reports[1].cause = "compute";
  for (int i = 0; i < 5; ++i) second();
  EXPECT_EQ(monitor.picture(now).findings.at(0).find(
                "rank 1 (host1) was late by 2 s in round 50: it writes a checkpoint (train.py:9 in "
                "save)"),
            0u)
      << monitor.picture(now).findings.at(0);
}

TEST_F(MonitorTest, AStoppedRankIsTold) {
  for (int i = 0; i < 2; ++i) second();
  silent[1] = true;
  reports[0].where = "'m' (round 20)";
  reports[0].age = 2 * kSecond;
  for (int i = 0; i < 3; ++i) second();
  EXPECT_EQ(monitor.picture(now).ranks[1].state, State::kStopped);
  const RankTexts texts = monitor.rank_texts(now);
  const auto found = std::find_if(texts.begin(), texts.end(), [](const auto& text) {
    return text.rank == 1;
  });
  ASSERT_NE(found, texts.end());
  EXPECT_NE(found->text.find("is stopped or starved"), std::string::npos);
  unreachable[1] = true;
  second();
  second();
  EXPECT_EQ(monitor.picture(now).ranks[1].state, State::kUnreachable);
}

TEST_F(MonitorTest, ARankThatComputesWhileOthersWaitIsTold) {
  second();
  for (uint32_t rank : {0u, 1u, 2u}) {
    reports[rank].where = "'m' (round 10)";
    reports[rank].age = 5 * kSecond;
  }
  reports[3].age = 5 * kSecond;
  reports[3].stack = "train.py:7 in save";
  reports[3].cause = "checkpoint";
  server_reports[0].missing.push_back({"'m' (round 10)", 5 * kSecond, {3}});
  second();
  const RankTexts texts = monitor.rank_texts(now);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0].rank, 3u);
  EXPECT_EQ(texts[0].text, "has been computing for 5 s, in its checkpoint (train.py:7 in save)");
  EXPECT_EQ(monitor.picture(now).findings.at(0),
            "'m' (round 10) has waited 5 s for rank 3 (host3); rank 3 has been computing for 5 s, "
            "in its checkpoint (train.py:7 in save)");
}

TEST_F(MonitorTest, ASlowLinkIsToldByServers) {
  tail = 200 * kMillisecond;
  for (int i = 0; i < 5; ++i) {
    for (Report& server : server_reports) {
      if (server.lateness.empty()) {
        for (uint32_t rank = 0; rank < kRanks; ++rank) server.lateness.push_back({rank, {}});
      }
      for (auto& [rank, late] : server.lateness) {
        late.segments += 1000;
        late.last_segments += rank == 2 ? 940 : 20;
        late.segments_waited += rank == 2 ? 300 * kMillisecond : kMillisecond;
      }
    }
    second();
  }
  const Picture picture = monitor.picture(now);
  EXPECT_TRUE(picture.ranks[2].chronic);
  EXPECT_EQ(picture.ranks[2].cause, "link");
  for (uint32_t rank : {0u, 1u, 3u}) EXPECT_FALSE(picture.ranks[rank].chronic);
}

TEST_F(MonitorTest, CallsTellWhoIsLateWithoutRounds) {
  for (int i = 0; i < 4; ++i) {
    now += kSecond;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      reports[rank].calls += 20;
      monitor.report({false, rank}, reports[rank], now);
      monitor.heard({false, rank}, now, now);
    }
    Report& server = server_reports[0];
    if (server.lateness.empty()) {
      for (uint32_t rank = 0; rank < kRanks; ++rank) server.lateness.push_back({rank, {}});
    }
    for (auto& [rank, late] : server.lateness) {
      late.calls += 20;
      late.last_calls += rank == 1 ? 20 : 0;
      late.calls_waited += rank == 1 ? 400 * kMillisecond : 0;
    }
    monitor.report({true, 0}, server, now);
    for (uint32_t index : {0u, 1u}) monitor.heard({true, index}, now, now);
    monitor.tick(now);
  }
  EXPECT_EQ(monitor.picture(now).findings.at(0),
            "rank 1 (host1) is late by 20 ms in 100 % of the calls: it computes longer");
}

TEST_F(MonitorTest, RanksThatVaryAlikeAreNotAccused) {
  uint32_t chance = 1;
  for (int i = 0; i < 3000; ++i) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      chance = chance * 1664525 + 1013904223;
      work[rank] = (60 + (chance >> 16) % 40) * kMillisecond;
    }
    round_of_all();
    if (i % 10 == 9) tell();
    const Picture picture = monitor.picture(now);
    for (const Picture::Rank& rank : picture.ranks) EXPECT_FALSE(rank.outlier) << i;
    EXPECT_EQ(picture.binds_who, "");
  }
}

TEST_F(MonitorTest, ARankThatBecomesLateIsSeenEarly) {
  for (int i = 0; i < 15; ++i) second();
  work[2] += 31 * kMillisecond;
  second();
  EXPECT_FALSE(monitor.picture(now).ranks[1].chronic);
  second();
  const Picture picture = monitor.picture(now);
  EXPECT_TRUE(picture.ranks[2].chronic);
  EXPECT_EQ(picture.ranks[2].cause, "compute");
}

TEST_F(MonitorTest, TheLatestCauseCounts) {
  work[1] += 40 * kMillisecond;
  reports[1].cause = "compile";
  for (int i = 0; i < 20; ++i) second();
  EXPECT_EQ(monitor.picture(now).ranks[1].cause, "compile");
  reports[1].cause = "input";
  for (int i = 0; i < 2; ++i) second();
  EXPECT_EQ(monitor.picture(now).ranks[1].cause, "input");
}

TEST_F(MonitorTest, RoundTripsTellWhoseLinkIsSlow) {
  tail = 50 * kMillisecond;
  const auto links = [&](uint32_t slow_rank, uint32_t slow_server) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      reports[rank].paths.clear();
      for (uint32_t server : {0u, 1u}) {
        const bool slow = rank == slow_rank || server == slow_server;
        const Nanos rtt = slow ? 40 * kMillisecond : 300 * kMicrosecond;
        reports[rank].paths.push_back({server, rtt, rtt, 0});
      }
    }
    for (int i = 0; i < 4; ++i) second();
  };
  links(2, ~0u);
  Picture picture = monitor.picture(now);
  EXPECT_EQ(picture.ranks[2].cause, "link");
  EXPECT_EQ(picture.findings.at(0), "rank 2 (host2) has a slow link: a round trip takes 40 ms, and "
                                    "one of the others 0.3 ms");
  for (uint32_t rank : {0u, 1u, 3u}) EXPECT_FALSE(picture.ranks[rank].outlier);
  for (const Picture::Server& server : picture.servers) EXPECT_FALSE(server.outlier);
  links(~0u, 1);
  picture = monitor.picture(now);
  for (const Picture::Rank& rank : picture.ranks) EXPECT_FALSE(rank.outlier);
  EXPECT_EQ(picture.servers[0].cause, "");
  EXPECT_EQ(picture.servers[1].cause, "link");
  links(~0u, ~0u);
  for (const Picture::Server& server : monitor.picture(now).servers) EXPECT_FALSE(server.outlier);
}

// With few hosts, most paths have an end at a slow one.
TEST_F(MonitorTest, RoundTripsTellOfSlowLinksThatAreNotFew) {
  tail = 50 * kMillisecond;
  Roster roster = roster_of(kRanks, kRanks);
  for (uint32_t i = 0; i < kRanks; ++i) {
    roster.servers[i] = {concat("host", i), false, i, 100 + i, 0.25};
  }
  for (const std::vector<uint32_t>& slow : {std::vector<uint32_t>{2}, {1, 2}}) {
    Monitor judge(roster, options(), now);
    const auto is_slow = [&slow](uint32_t host) {
      return std::find(slow.begin(), slow.end(), host) != slow.end();
    };
    for (int i = 0; i < 4; ++i) {
      for (int n = 0; n < 10; ++n) round_of_all();
      now += kSecond;
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        Report& report = reports[rank];
        report.paths.clear();
        for (uint32_t server = 0; server < kRanks; ++server) {
          // The queue of a slow link delays what goes through it.
          const Nanos rtt = is_slow(rank) || is_slow(server) ? 20 * kMillisecond : kMillisecond;
          report.paths.push_back({server, rtt + (server + rank) % 3 * kMillisecond, rtt, 0});
        }
        judge.report({false, rank}, report, now);
        report.samples.clear();
        judge.heard({false, rank}, now, now);
        judge.heard({true, rank}, now, now);
      }
      judge.tick(now);
    }
    const Picture picture = judge.picture(now);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(picture.ranks[rank].cause, is_slow(rank) ? "link" : "") << rank;
    }
  }
}

TEST_F(MonitorTest, IdlePathsTellNothingOfALink) {
  tail = 50 * kMillisecond;
  for (int i = 0; i < 4; ++i) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      // Everything goes to server 1.
      const Nanos rtt = (rank == 2 ? 40 : 1) * kMillisecond + i * kMicrosecond;
      reports[rank].paths = {{0, kMillisecond, kMillisecond, 0}, {1, rtt, rtt, 0}};
    }
    second();
  }
  const Picture picture = monitor.picture(now);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(picture.ranks[rank].cause, rank == 2 ? "link" : "") << rank;
  }
}

TEST_F(MonitorTest, ASlowLinkIsToldInCalls) {
  for (int i = 0; i < 4; ++i) {
    now += kSecond;
    Report& server = server_reports[0];
    if (server.lateness.empty()) {
      for (uint32_t rank = 0; rank < kRanks; ++rank) server.lateness.push_back({rank, {}});
    }
    for (auto& [rank, late] : server.lateness) {
      late.segments += 100;
      late.last_segments += rank == 1 ? 100 : 0;
      late.segments_waited += rank == 1 ? 400 * kMillisecond : 0;
    }
    monitor.report({true, 0}, server, now);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const Nanos rtt = rank == 1 ? 40 * kMillisecond : kMillisecond;
      reports[rank].calls += 20;
      reports[rank].paths = {{0, rtt, rtt, 0}, {1, rtt, rtt, 0}};
      monitor.report({false, rank}, reports[rank], now);
      monitor.heard({false, rank}, now, now);
    }
    for (uint32_t index : {0u, 1u}) monitor.heard({true, index}, now, now);
    monitor.tick(now);
  }
  const Picture picture = monitor.picture(now);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(picture.ranks[rank].cause, rank == 1 ? "link" : "");
  }
}

TEST_F(MonitorTest, AServerForWhichNobodyWaitsIsNotSlow) {
  const auto run = [&] {
    for (int i = 0; i < 4; ++i) {
      server_reports[1].resources.run_delay += 400 * kMillisecond;
      second();
    }
    return monitor.picture(now).servers[1].cause;
  };
  tail = 3 * kMillisecond;
  EXPECT_EQ(run(), "");
  tail = 60 * kMillisecond;
  for (int i = 0; i < 3; ++i) run();
  EXPECT_EQ(run(), "starved");
}

TEST_F(MonitorTest, ResultsThatComeLateAreNoFaultOfARank) {
  pull[3] = 12 * kMillisecond;
  for (int i = 0; i < 3; ++i) second();
  EXPECT_EQ(monitor.picture(now).ranks[3].cause, "link");  // round trips are not known
  for (Report& report : reports) report.paths = {{0, kMillisecond, kMillisecond, 0}};
  for (int i = 0; i < 4; ++i) second();
  EXPECT_FALSE(monitor.picture(now).ranks[3].outlier);
  reports[3].paths[0].rtt = 20 * kMillisecond;
  for (int i = 0; i < 4; ++i) second();
  EXPECT_EQ(monitor.picture(now).ranks[3].cause, "link");
}

TEST_F(MonitorTest, WhoIsLateNoMoreIsNotNamed) {
  work[2] += 60 * kMillisecond;
  for (int i = 0; i < 8; ++i) second();
  EXPECT_TRUE(monitor.picture(now).ranks[2].chronic);
  work[2] -= 60 * kMillisecond;
  for (int i = 0; i < 2; ++i) second();
  EXPECT_GT(monitor.picture(now).ranks[2].late_share, 0.7);
  EXPECT_FALSE(monitor.picture(now).ranks[2].outlier);
}

TEST_F(MonitorTest, ALateRankThatComputesForLongLearnsHowLongOthersCompute) {
  work[2] = 180 * kMillisecond;
  second();
  second();
  for (const uint32_t rank : {0u, 1u, 3u}) {
    reports[rank].where = "waits in 'm' (round 20)";
    reports[rank].age = kSecond;
  }
  reports[2].age = kSecond;
  tell();
  const RankTexts texts = monitor.rank_texts(now);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0].rank, 2u);
  EXPECT_EQ(texts[0].text, "has been computing for 1 s");
  EXPECT_EQ(texts[0].usual, 90 * kMillisecond);
  EXPECT_NEAR(static_cast<double>(texts[0].late), 90e6, 1e6);
}

TEST_F(MonitorTest, ThoseWhoWaitForAServerSaySo) {
  second();
  for (Report& report : reports) {
    report.where = "waits in 'm' (round 10)";
    report.age = 2 * kSecond;
  }
  second();
  now += kSecond + kSecond / 2;
  for (uint32_t rank = 0; rank < kRanks; ++rank) monitor.heard({false, rank}, now, now);
  monitor.heard({true, 0}, now, now);
  monitor.heard({true, 1}, 0, now);
  const RankTexts texts = monitor.rank_texts(now);
  ASSERT_EQ(texts.size(), kRanks);
  EXPECT_EQ(texts[0].text.find("waits for server 1 (server1), which is stopped or starved"), 0u)
      << texts[0].text;
}

TEST_F(MonitorTest, ARankThatStopsBeforeItReportsHasStoodStillForATime) {
  silent[1] = true;
  for (int i = 0; i < 3; ++i) second();
  const Picture picture = monitor.picture(now);
  ASSERT_EQ(picture.ranks[1].state, State::kStopped);
  EXPECT_FALSE(picture.ranks[1].reported);
  EXPECT_EQ(picture.ranks[1].age(), 3 * kSecond);
  EXPECT_NE(as_text(picture, false).find("stopped for 3 s"), std::string::npos);
  EXPECT_NE(as_json(picture).find("\"where\":null,\"for\":3,"), std::string::npos)
      << as_json(picture);
  EXPECT_NE(as_metrics(picture).find("herring_rank_state_seconds{job=\"test\",rank=\"1\","
                                     "node=\"1\",host=\"host1\"} 3\n"),
            std::string::npos)
      << as_metrics(picture);
}

TEST_F(MonitorTest, ACutLinkIsNotAStoppedProcess) {
  second();
  // Both fall silent, the process a little earlier than its system.
  const Nanos cut = now;
  monitor.heard({false, 1}, cut - 200 * kMillisecond, cut);
  for (now = cut; now < cut + 2 * kSecond; now += 50 * kMillisecond) {
    EXPECT_NE(monitor.picture(now).ranks[1].state, State::kStopped);
  }
  EXPECT_EQ(monitor.picture(now).ranks[1].state, State::kUnreachable);
}

TEST(ColocatedServers, AreJudgedWithTheirRank) {
  Roster roster = roster_of(2, 2);
  for (uint32_t i : {0u, 1u}) roster.servers[i] = {concat("host", i), false, i, 100 + i, 0.5};
  Nanos now = 1000 * kSecond;
  Monitor monitor(roster, {}, now);
  for (uint32_t i : {0u, 1u}) {
    for (const bool is_server : {false, true}) monitor.report({is_server, i}, {}, now);
  }
  now += 3 * kSecond;
  for (const bool is_server : {false, true}) {
    monitor.heard({is_server, 0}, now, now);
    monitor.heard({is_server, 1}, now - 2 * kSecond, now);
  }
  const Picture picture = monitor.picture(now);
  EXPECT_EQ(picture.ranks[1].cause, "stopped");
  EXPECT_FALSE(picture.servers[1].outlier);
}

TEST_F(MonitorTest, ANetworkThatBindsGetsAdvice) {
  tail = 300 * kMillisecond;
  for (int i = 0; i < 3; ++i) second();
  const Picture picture = monitor.picture(now);
  EXPECT_EQ(picture.binds, Picture::Binds::kNetwork);
  EXPECT_NE(picture.findings.at(0).find("the network binds 77 % of the step (0.39 s); 2 more "
                                        "servers would make a step"),
            std::string::npos)
      << picture.findings.at(0);
}

TEST_F(MonitorTest, NothingBindsOnceNoStepEnds) {
  tail = 300 * kMillisecond;  // a step takes 390 ms
  const auto steps = [this] {
    for (int i = 0; i < 10; ++i) round_of_all();
    now = before[0] - kSecond;
    tell();
  };
  for (int i = 0; i < 3; ++i) steps();
  tell();  // no step since
  tell();
  EXPECT_EQ(monitor.picture(now).binds, Picture::Binds::kNetwork);
  now -= kSecond / 2;
  tell();
  const Picture picture = monitor.picture(now);
  EXPECT_EQ(picture.binds, Picture::Binds::kNothing);
  EXPECT_TRUE(picture.stands);
  EXPECT_EQ(picture.step_ended, 5 * kSecond / 2);
  EXPECT_EQ(picture.rounds_per_second, 0);
  EXPECT_TRUE(picture.findings.empty());
  EXPECT_NE(as_text(picture, false).find("no step has ended for 2.5"), std::string::npos);
  EXPECT_NE(as_json(picture).find("\"last\":2.5,\"stands\":true"), std::string::npos);
  // The end of the job is about all of it.
  EXPECT_EQ(monitor.last_lines(now).size(), 1u);
  before = std::vector<Nanos>(kRanks, now);
  steps();
  EXPECT_EQ(monitor.picture(now).binds, Picture::Binds::kNetwork);
}

TEST_F(MonitorTest, SlowStepsDoNotStandStill) {
  for (int i = 0; i < 40; ++i) {
    for (Nanos& each : work) each = (i % 8 == 0 ? 12 : 4) * kSecond;
    round_of_all();
  }
  now = before[0] - kSecond;
  tell();
  EXPECT_EQ(monitor.picture(now + 12 * kSecond).binds, Picture::Binds::kCompute);
  EXPECT_FALSE(monitor.picture(now + 12 * kSecond).stands);
  EXPECT_TRUE(monitor.picture(now + 25 * kSecond).stands);
}

TEST(MoreServers, FollowsThePaper) {
  EXPECT_FALSE(more_servers(1, 0, 100, 90));
  EXPECT_FALSE(more_servers(4, 4, 100, 90));
  EXPECT_FALSE(more_servers(4, 0, 100, 5));  // it would not help
  const auto more = more_servers(8, 0, 100, 100);
  ASSERT_TRUE(more);
  EXPECT_EQ(more->more, 8u);
  EXPECT_NEAR(more->times, 14.0 / 8, 0.01);  // from 2(n-1)/n to 1
}

TEST_F(MonitorTest, AllFormatsHaveEveryRank) {
  work[2] += 31 * kMillisecond;
  for (int i = 0; i < 3; ++i) second();
  const Picture picture = monitor.picture(now);
  const std::string json = as_json(picture), metrics = as_metrics(picture);
  EXPECT_NE(json.find("\"schema\":\"herring-status-1\""), std::string::npos);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_NE(json.find(concat("{\"rank\":", rank, ",")), std::string::npos);
    EXPECT_NE(metrics.find(concat("rank=\"", rank, "\"")), std::string::npos);
  }
  const std::string text = as_text(picture, false);
  EXPECT_NE(text.find("3 ranks without anything to tell"), std::string::npos) << text;
  EXPECT_EQ(as_text(picture, true).find("without anything"), std::string::npos);
}

TEST(ServersToSpare, CountThoseWithoutWhichAJobGoesOn) {
  Roster roster = roster_of(2, 2);
  const auto spare = [](Monitor& monitor) {
    const std::string json = as_json(monitor.picture(kSecond));
    const size_t at = json.find("\"servers_to_spare\":") + 19;
    return json.substr(at, json.find(',', at) - at);
  };
  Monitor without(roster, {}, 0);
  EXPECT_EQ(spare(without), "null");
  roster.failover = true;
  Monitor monitor(roster, {}, 0);
  EXPECT_EQ(spare(monitor), "1");
  monitor.server_lost(1, kSecond);
  EXPECT_EQ(spare(monitor), "0");
  monitor.server_replaced(1, "server9", "10.0.1.9", 9, kSecond);
  EXPECT_EQ(spare(monitor), "1");
  roster.servers[0].dedicated = false;  // It stands in for the other, but nobody does for it.
  Monitor mixed(roster, {}, 0);
  EXPECT_EQ(spare(mixed), "1");
}

TEST(Json, EscapesAndReplaces) {
  Json json;
  json.begin_object().field("a", "x\"\\\n\x01").field("b", "\xc3\xa9\xff\xed\xa0\x80");
  json.field("c", 1.5).field("d", true).field("e", uint64_t{1} << 63).key("f").begin_array();
  json.value(1).value(2).end_array().key("g").null().end_object();
  EXPECT_EQ(json.take(),
            "{\"a\":\"x\\\"\\\\\\u000a\\u0001\",\"b\":\"\xc3\xa9\\ufffd\\ufffd\\ufffd\\ufffd\","
            "\"c\":1.5,\"d\":true,\"e\":9223372036854775808,\"f\":[1,2],\"g\":null}");
}

}  // namespace
}  // namespace herring::observe
