// Tests when a deadlock is certain, and what is said of it.
#include "observe/deadlock.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "monitored_job.h"

namespace herring::observe {
namespace {

constexpr Nanos kNow = 100 * kSecond;

// Three ranks and a server that have stood still for twelve seconds.
std::vector<Stillness> job() {
  return {4, Stillness{true, {kNow - 12 * kSecond, kNow - kSecond / 2}, kMillisecond}};
}

TEST(Deadlock, IsCertainOnceAllHaveStoodStill) {
  EXPECT_TRUE(is_deadlocked(job(), kNow));
  EXPECT_TRUE(is_deadlocked(std::vector<Stillness>(1, job()[0]), kNow));
}

TEST(Deadlock, IsNotCertainWithoutProcesses) { EXPECT_FALSE(is_deadlocked({}, kNow)); }

TEST(Deadlock, IsNotCertainIfOneOfThemMayGoOn) {
  const auto with = [](auto change) {
    std::vector<Stillness> all = job();
    change(all[2]);
    return is_deadlocked(all, kNow);
  };
  EXPECT_TRUE(with([](Stillness&) {}));
  EXPECT_FALSE(with([](Stillness& one) { one.takes_part = false; })) << "has left, or is lost";
  EXPECT_FALSE(with([](Stillness& one) { one.still = {}; })) << "computes, or has not reported";
  EXPECT_FALSE(with([](Stillness& one) { one.still.since += 3 * kSecond; })) << "has just computed";
  EXPECT_FALSE(with([](Stillness& one) { one.error = -1; })) << "its clock is not known";
  EXPECT_FALSE(with([](Stillness& one) {
    one.still.since = kEndless, one.error = kEndless;
  })) << "no sum of these may overflow";
  EXPECT_FALSE(with([](Stillness& one) { one.error = 2 * kSecond; })) << "it is badly known";
  EXPECT_FALSE(with([](Stillness& one) {
    one.still.since -= 3 * kSecond;
    one.still.until -= 3 * kSecond;
  })) << "is stopped";
}

// Each has stood still for long, but for all that their clocks tell, not all at once.
TEST(Deadlock, IsNotCertainIfTheyHaveNotStoodStillAtTheSameTime) {
  std::vector<Stillness> all = job();
  all[1].still = {kNow, kNow + kCertain};
  EXPECT_FALSE(is_deadlocked(all, kNow));
  all[1].still.since -= kSecond;
  EXPECT_TRUE(is_deadlocked(all, kNow));
  all[1].error = kSecond / 2;
  EXPECT_FALSE(is_deadlocked(all, kNow));
}

TEST(Deadlock, IsToldWithWhoWaitsWhere) {
  const std::vector<Waiting> ranks{{"waits in allreduce 'a'", 16 * kSecond},
                                   {"waits in barrier 'b'", 12 * kSecond},
                                   {"waits in allreduce 'a'", 15 * kSecond}};
  EXPECT_EQ(describe_deadlock(ranks),
            "all 3 ranks wait, and no thread is left that could end a wait: ranks 0, 2 wait in "
            "allreduce 'a' (16 s); rank 1 waits in barrier 'b' (12 s); make the same calls on all "
            "ranks of a group, and give each message its other side");
}

TEST(Deadlock, OfManyCallsCountsTheOthers) {
  std::vector<Waiting> ranks;
  for (int i = 10; i < 20; ++i) ranks.push_back({concat("waits in barrier '", i, "'"), kSecond});
  const std::string text = describe_deadlock(ranks);
  EXPECT_NE(text.find("rank 7 waits in barrier '17' (1 s); others in 2 more calls;"),
            std::string::npos) << text;
}

// The monitor takes what reports tell, in the clock of each process.
class DeadlockInJob : public MonitorTest {
 protected:
  void stand(Nanos still) {
    now += kSecond / 4;
    for (uint32_t index = 0; index < kRanks + 2; ++index) {
      Report report;
      report.sent = now - kHour;
      report.offset = kHour;
      report.offset_error = kMillisecond;
      report.still = {report.sent - still, report.sent};
      const bool is_server = index >= kRanks;
      if (!is_server) report.where = "waits in barrier 'x'";
      monitor.report({is_server, is_server ? index - kRanks : index}, report, now);
    }
  }
  static constexpr Nanos kHour = 3600 * kSecond;
};

TEST_F(DeadlockInJob, IsFoundInReports) {
  EXPECT_FALSE(monitor.deadlock(now)) << "nobody has reported";
  stand(kCertain - kSecond);
  EXPECT_FALSE(monitor.deadlock(now));
  stand(kCertain + kSecond);
  const auto found = monitor.deadlock(now);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->starts_with("all 4 ranks wait, ")) << *found;
  EXPECT_NE(found->find("ranks 0-3 wait in barrier 'x'"), std::string::npos) << *found;
  EXPECT_FALSE(monitor.deadlock(now + 3 * kSecond)) << "nobody has reported since";
}

TEST_F(DeadlockInJob, IsNotCertainWithoutAServerOrARank) {
  stand(kCertain + kSecond);
  ASSERT_TRUE(monitor.deadlock(now));
  monitor.server_lost(1, now);
  EXPECT_FALSE(monitor.deadlock(now)) << "others may stand in for it";
  monitor.server_replaced(1, "other", "10.0.1.9", 9, now);
  EXPECT_FALSE(monitor.deadlock(now)) << "the replacement has not reported";
  stand(kCertain + kSecond);
  EXPECT_TRUE(monitor.deadlock(now));
  monitor.gone({false, 3}, true);
  EXPECT_FALSE(monitor.deadlock(now)) << "a rank has left";
}

}  // namespace
}  // namespace herring::observe
