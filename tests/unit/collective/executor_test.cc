// Tests what the executor says of tasks that take too long. Nobody answers it.
#include "collective/executor.h"

#include <gtest/gtest.h>

#include "tests/unit/text.h"
#include "transport/epoll_loop.h"
#include "transport/tcp/transport.h"

namespace herring::collective {
namespace {

// A GPU that does nothing.
class Idle final : public DeviceSide {
 public:
  const std::vector<Piece>& pieces() const override { return pieces_; }
  uint32_t outs() const override { return 0; }
  uint32_t ins() const override { return 0; }
  bool through() const override { return false; }
  Status failure() const override { return {}; }
  void arrived(uint32_t) override {}
  void on_progress(std::function<void()>) override {}

 private:
  const std::vector<Piece> pieces_ = cut(make_schedule(Algorithm::kRing, 2, 3, 6, 4), 24, false);
};

// Rank 2 of 4. The lower of two ranks connects, so it waits for all but rank 3.
class ExecutorTest : public testing::Test {
 protected:
  ExecutorTest()
      : cluster(of(4)),
        executor(transport::tcp::transport(), loop, cluster, states, options(),
                 [this](const Status& why) { failures.push_back(why); },
                 [](uint32_t, const Status&) {}, [](uint32_t) { return true; },
                 [](uint32_t) { return false; }) {
    states.set({{0, "has been computing for 12 s (train.py:40 in load)"},
                {1, ": its process is stopped"},
                {3, "takes no part"}});
  }

  static control::Cluster of(uint32_t size) {
    control::Cluster cluster;
    cluster.size = cluster.nodes = size;
    for (uint32_t r = 0; r < size; ++r) {
      cluster.workers.push_back({r, r, 0, concat("host", r), 100 + r, ""});
    }
    return cluster;
  }
  static MeshOptions options() {
    MeshOptions options;
    options.rank = 2;
    options.size = 4;
    options.host = "127.0.0.1";
    return options;
  }

  Task task(const std::string& name, std::vector<uint32_t> ranks = {0, 1, 2}) {
    Task task;
    task.ranks = std::move(ranks);
    task.name = name;
    task.data = reinterpret_cast<char*>(array);
    task.count = 6;
    task.reduction.op = ReduceOp::kSum;
    return task;
  }
  void start(Task task) {
    executor.start(std::move(task), {60'000, 60'000, 5000}, [](const Status&) { FAIL(); });
  }
  void meet() {
    const Status met = executor.meet({0, 1}, {"127.0.0.1:9", "127.0.0.1:9"});
    ASSERT_TRUE(met.ok()) << met.message();
  }
  // Returns what the log says so long after the start.
  std::string after(Nanos time) {
    testing::internal::CaptureStderr();
    executor.check_deadlines(began + time);
    return testing::internal::GetCapturedStderr();
  }

  float array[6] = {};
  transport::EpollLoop loop;
  observe::RankStates states;
  const control::Cluster cluster;
  std::vector<Status> failures;
  const Nanos began = monotonic_now();
  Executor executor;
};

TEST_F(ExecutorTest, AWarningNamesTheMissingAndSaysWhatTheRanksOfTheTaskDo) {
  start(task("x"));
  meet();
  EXPECT_EQ(after(kSecond), "");
  const std::string warning = after(30 * kSecond);
  EXPECT_TRUE(contains(warning, "warning: allreduce 'x' (ring, 6 float32) has waited ")) << warning;
  EXPECT_TRUE(warning.ends_with(
      " for rank 0 (host0, pid 100); rank 0 has been computing for 12 s (train.py:40 in load); "
      "rank 1: its process is stopped\n")) << warning;
  EXPECT_EQ(after(40 * kSecond), "") << "once";
  EXPECT_TRUE(failures.empty());
}

TEST_F(ExecutorTest, ATimeOutSaysTheSame) {
  start(task("x"));
  meet();
  after(90 * kSecond);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].code(), Code::kTimeout);
  const std::string& error = failures[0].message();
  EXPECT_TRUE(contains(error, "allreduce 'x' (ring, 6 float32) waited ")) << error;
  EXPECT_TRUE(error.ends_with(
      " for rank 0 (host0, pid 100), or for a rank that this one waits for; if it is only slow, "
      "give it more time (timeout=, HERRING_TIMEOUT); rank 0 has been computing for 12 s "
      "(train.py:40 in load); rank 1: its process is stopped")) << error;
}

TEST_F(ExecutorTest, WithoutAddressesNobodyIsNamedButWhatIsKnownIsSaid) {
  states.set({{0, "has been computing for 12 s"}});
  start(task("x"));
  const std::string warning = after(30 * kSecond);
  EXPECT_TRUE(warning.ends_with(" for the addresses of the other ranks; rank 0 has been computing "
                                "for 12 s\n")) << warning;
}

TEST_F(ExecutorTest, NothingIsKnownOfMostRanks) {
  states.set({{3, "takes no part"}, {1, ""}});
  start(task("x"));
  meet();
  EXPECT_TRUE(after(30 * kSecond).ends_with(" for rank 0 (host0, pid 100)\n"));
}

TEST_F(ExecutorTest, AGpuOfThisRankIsNoFaultOfOthers) {
  Task one = task("x");
  one.elsewhere = std::make_shared<Idle>();
  start(std::move(one));
  meet();
  const std::string warning = after(30 * kSecond);
  EXPECT_TRUE(warning.ends_with(" for the GPU of this rank\n")) << warning;
}

}  // namespace
}  // namespace herring::collective
