// Tests that callers which wait for something run the loop meanwhile.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "transport/epoll_loop.h"

namespace herring::transport {
namespace {

constexpr Nanos kPatience = 600 * kSecond;

Nanos patience() { return monotonic_now() + kPatience; }

// A loop that waiting callers may drive, with its own thread.
class Lent : public ::testing::Test {
 protected:
  Lent() : thread_([this] { loop.run(); }) {
    std::promise<std::thread::id> runs;
    loop.post([&] { runs.set_value(std::this_thread::get_id()); });
    own = runs.get_future().get();
  }
  ~Lent() override {
    loop.stop();
    thread_.join();
  }

  EpollLoop loop{EpollLoop::Drivers::kWaitersToo};
  std::thread::id own;
  const std::thread::id here = std::this_thread::get_id();

 private:
  std::thread thread_;
};

struct Reader : DescriptorHandler {
  int fd = -1, calls = 0;
  std::thread::id by;
  std::atomic<bool> read{false};
  void on_ready(uint32_t) override {
    char byte;
    ++calls;
    by = std::this_thread::get_id();
    if (::read(fd, &byte, 1) == 1) read.store(true);
  }
};

TEST_F(Lent, WhoWaitsRunsTasksEventsAndTimers) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const UniqueFd owners[] = {UniqueFd(ends[0]), UniqueFd(ends[1])};
  Reader reader;
  reader.fd = ends[0];
  std::thread::id task_by, timer_by;
  bool in_loop = false, done = false;
  loop.post_before_drive([&] {
    task_by = std::this_thread::get_id();
    in_loop = loop.in_loop_thread();
    loop.add(ends[0], kForReading, &reader);
    loop.call_after(kMillisecond, [&] {
      timer_by = std::this_thread::get_id();
      ASSERT_EQ(write(ends[1], "x", 1), 1);
    });
  });
  ASSERT_TRUE(loop.drive(patience(), [&] { return done = reader.read.load(); }));
  EXPECT_TRUE(done);
  EXPECT_TRUE(in_loop);
  EXPECT_FALSE(loop.in_loop_thread());
  EXPECT_EQ(task_by, here);
  EXPECT_EQ(timer_by, here);
  EXPECT_EQ(reader.by, here);
  EXPECT_EQ(reader.calls, 1);

  // Afterwards the loop's own thread hears of events again.
  std::promise<void> seen;
  loop.post([&] { reader.read.store(false); });
  ASSERT_EQ(write(ends[1], "y", 1), 1);
  loop.post([&] { loop.call_after(kMillisecond, [&] { seen.set_value(); }); });
  seen.get_future().wait();
  EXPECT_EQ(reader.by, own);
  EXPECT_EQ(reader.calls, 2);
  std::promise<void> removed;
  loop.post([&] {
    loop.remove(ends[0]);
    removed.set_value();
  });
  removed.get_future().wait();
}

TEST_F(Lent, ATaskOfADriverWhoNeverCameRunsWithTheNextEvent) {
  std::promise<std::thread::id> ran;
  loop.post_before_drive([&] { ran.set_value(std::this_thread::get_id()); });
  loop.post([] {});
  EXPECT_EQ(ran.get_future().get(), own);
}

TEST_F(Lent, ADriveEndsAtItsDeadline) {
  const Nanos end = monotonic_now() + 5 * kMillisecond;
  EXPECT_TRUE(loop.drive(end, [] { return false; }));
  EXPECT_GE(monotonic_now(), end);
}

TEST_F(Lent, OneDrivesAtATime) {
  std::promise<void> entered;
  std::atomic<bool> done{false};
  std::thread first([&] {
    EXPECT_TRUE(loop.drive(patience(), [&, once = false]() mutable {
      if (!std::exchange(once, true)) entered.set_value();
      return done.load();
    }));
  });
  entered.get_future().wait();
  EXPECT_FALSE(loop.drive(patience(), [] { return true; }));
  std::thread::id by;
  loop.post([&] {
    by = std::this_thread::get_id();
    EXPECT_FALSE(loop.drive(patience(), [] { return true; }));  // a task cannot drive its own loop
    done.store(true);
  });
  const std::thread::id driver = first.get_id();
  first.join();
  EXPECT_EQ(by, driver);
}

TEST_F(Lent, ATimerThatADriverLeavesRunsInTime) {
  std::promise<Nanos> fired;
  Nanos due = 0;
  loop.post_before_drive([&] {
    due = monotonic_now() + 20 * kMillisecond;
    loop.call_at(due, [&] {
      EXPECT_EQ(std::this_thread::get_id(), own);
      fired.set_value(monotonic_now());
    });
  });
  ASSERT_TRUE(loop.drive(patience(), [&] { return due != 0; }));
  EXPECT_GE(fired.get_future().get(), due);  // only the timer wakes the loop
}

TEST_F(Lent, StopEndsADrive) {
  std::promise<void> driven;
  std::thread stopper([&, entered = driven.get_future()]() mutable {
    entered.wait();
    loop.stop();
  });
  EXPECT_TRUE(loop.drive(patience(), [&, once = false]() mutable {
    if (!std::exchange(once, true)) driven.set_value();
    return false;
  }));
  stopper.join();
  EXPECT_FALSE(loop.drive(patience(), [] { return false; }));
}

TEST(Drive, NeedsALoopThatRuns) {
  EpollLoop plain, lent(EpollLoop::Drivers::kWaitersToo);
  EXPECT_FALSE(plain.drive(patience(), [] { return true; }));
  EXPECT_FALSE(lent.drive(patience(), [] { return true; }));  // run() has not been called
  bool ran = false;
  plain.post_before_drive([&] { ran = true; });
  plain.stop();
  plain.run();
  EXPECT_TRUE(ran);
}

// A task may own a share of the loop, so tasks that come after the end must be dropped.
TEST(Drive, TasksThatComeAfterTheEndAreDropped) {
  EpollLoop loop(EpollLoop::Drivers::kWaitersToo);
  bool ran = false;
  EXPECT_TRUE(loop.post([&] { ran = true; }));
  loop.stop();
  loop.run();
  EXPECT_TRUE(ran);
  auto held = std::make_shared<int>();
  EXPECT_FALSE(loop.post([held] { FAIL(); }));
  EXPECT_FALSE(loop.post_before_drive([held] { FAIL(); }));
  EXPECT_EQ(held.use_count(), 1);
}

void ignore_it(int) {}

TEST_F(Lent, ASignalEndsADrive) {
  struct sigaction action {}, before {};
  action.sa_handler = ignore_it;  // without SA_RESTART
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  std::promise<pthread_t> who;
  std::atomic<bool> left{false};
  std::thread waiter([&] {
    who.set_value(pthread_self());
    EXPECT_TRUE(loop.drive(patience(), [] { return false; }));
    left.store(true);
  });
  const pthread_t thread = who.get_future().get();
  while (!left.load()) {  // the first signal may come before it sleeps
    pthread_kill(thread, SIGUSR1);
    std::this_thread::yield();
  }
  waiter.join();
  sigaction(SIGUSR1, &before, nullptr);
}

// The default action of SIGPIPE would end the process.
TEST_F(Lent, ABrokenPipeIsNoSignalForADriver) {
  struct sigaction action {}, before {};
  action.sa_handler = SIG_DFL;
  ASSERT_EQ(sigaction(SIGPIPE, &action, &before), 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd writer(ends[1]);
  close(ends[0]);
  int error = 0;
  loop.post_before_drive([&] { error = write(writer.get(), "x", 1) < 0 ? errno : 0; });
  ASSERT_TRUE(loop.drive(patience(), [&] { return error != 0; }));
  EXPECT_EQ(error, EPIPE);
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  EXPECT_FALSE(sigismember(&mask, SIGPIPE));
  sigaction(SIGPIPE, &before, nullptr);
}

// Every task runs once, and no two run at the same time, whichever thread drives. Every waiting
// thread is woken.
TEST_F(Lent, ManyWaitersAndPostersShareALoop) {
  constexpr int kThreads = 6, kRounds = 400;
  int inside = 0, ran = 0;  // accessed by the thread that runs the loop
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        auto mine = std::make_shared<std::promise<void>>();
        auto done = std::make_shared<std::atomic<bool>>(false);
        auto task = [&, mine, done] {
          EXPECT_EQ(++inside, 1);
          ++ran;
          --inside;
          loop.call_after((t + i) % 3 == 0 ? 100 * kMicrosecond : 0, [mine, done] {
            done->store(true);
            mine->set_value();
          });
        };
        (t + i) % 2 == 0 ? loop.post(task) : loop.post_before_drive(task);
        // If this thread may not drive, the driving threads run the task.
        if (!loop.drive(patience(), [&] { return done->load(); })) mine->get_future().wait();
        EXPECT_TRUE(done->load());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, kThreads * kRounds);
}

}  // namespace
}  // namespace herring::transport
