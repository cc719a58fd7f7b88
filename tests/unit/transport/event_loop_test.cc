#include "transport/epoll_loop.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "transport/delivery.h"
#include "transport/epoll_loop.h"

namespace herring::transport {
namespace {

TEST(EventLoop, TasksOfManyThreadsAllRunAndStayInOrder) {
  constexpr int kThreads = 8, kTasks = 2000;
  EpollLoop thread;
  std::vector<int> next(kThreads, 0);  // used by the loop's thread only
  bool in_order = true;
  thread.start("test");
  std::vector<std::thread> posters;
  for (int t = 0; t < kThreads; ++t) {
    posters.emplace_back([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        thread.post([&, t, i] {
          in_order = in_order && next[t] == i;
          ++next[t];
        });
      }
    });
  }
  for (std::thread& poster : posters) poster.join();
  thread.join();  // returns after the queued tasks
  EXPECT_TRUE(in_order);
  for (int count : next) EXPECT_EQ(count, kTasks);
}

TEST(EventLoop, TasksPostedBeforeRunAndByTasksRun) {
  EpollLoop loop;
  int steps = 0;
  loop.post([&] {
    ++steps;
    loop.post([&] {
      ++steps;
      EXPECT_TRUE(loop.in_loop_thread());
      loop.stop();
      loop.post([&] { ++steps; });  // posted together with stop(), so it still runs
    });
  });
  EXPECT_FALSE(loop.in_loop_thread());
  loop.run();
  EXPECT_EQ(steps, 3);
  EXPECT_FALSE(loop.in_loop_thread());
}

// Two descriptors are ready at once. The first handler closes the other descriptor and opens a new
// one with the same number. The event of the old one must not reach the new one.
TEST(EventLoop, AnEventIsNotForWhoeverHasTheNumberNext) {
  EpollLoop loop;
  struct Replacer : DescriptorHandler {
    void on_ready(uint32_t) override {
      loop->remove(fd);
      loop->remove(other->fd);
      ::close(other->fd);
      fresh->fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
      EXPECT_EQ(fresh->fd, other->fd);
      loop->add(fresh->fd, kForReading, fresh);
      ::close(fd);
      loop->stop();
    }
    DescriptorLoop* loop = nullptr;
    Replacer* other = nullptr;
    struct Fresh : DescriptorHandler {
      void on_ready(uint32_t) override { ++events; }
      int fd = -1, events = 0;
    }* fresh = nullptr;
    int fd = -1;
  };
  Replacer first, second;
  Replacer::Fresh fresh;
  first.loop = second.loop = &loop;
  first.fresh = second.fresh = &fresh;
  first.other = &second;
  second.other = &first;
  for (Replacer* one : {&first, &second}) {
    one->fd = ::eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
    loop.add(one->fd, kForReading, one);
  }
  loop.run();
  EXPECT_EQ(fresh.events, 0);
  ::close(fresh.fd);
}

TEST(EventLoop, StopBeforeRunEndsItAtOnce) {
  EpollLoop loop;
  loop.stop();
  loop.run();
}

TEST(EventLoop, TimersFireInTheirOrderAndNotBeforeTheirTime) {
  EpollLoop loop;
  std::vector<int> fired;
  const Nanos start = monotonic_now();
  loop.call_at(start + 30 * kMillisecond, [&] {
    EXPECT_GE(monotonic_now(), start + 30 * kMillisecond);
    fired.push_back(3);
    loop.stop();
  });
  loop.call_at(start + 10 * kMillisecond, [&] { fired.push_back(1); });
  const auto cancelled = loop.call_at(start + 20 * kMillisecond, [&] { fired.push_back(99); });
  loop.call_at(start + 20 * kMillisecond, [&] { fired.push_back(2); });
  loop.call_at(start + 15 * kMillisecond, [&] { loop.cancel(cancelled); });
  loop.run();
  EXPECT_EQ(fired, (std::vector<int>{1, 2, 3}));
}

TEST(EventLoop, ATimerMayCancelItselfAndADueOne) {
  EpollLoop loop;
  int fired = 0;
  EventLoop::TimerId first = 0, second = 0;
  const Nanos now = monotonic_now();
  first = loop.call_at(now, [&] {
    ++fired;
    loop.cancel(first);
    loop.cancel(second);
    loop.call_after(0, [&] { loop.stop(); });
  });
  second = loop.call_at(now + 1, [&] { fired += 100; });
  loop.run();
  EXPECT_EQ(fired, 1);
  loop.cancel(12345);  // unknown: nothing happens
}

TEST(EventLoop, DeferredTasksRunOnceAtTheEndOfTheIteration) {
  EpollLoop loop;
  std::vector<std::string> order;
  EventLoop::Task second = [&] { order.push_back("deferred by deferred"); };
  EventLoop::Task forgotten = [&] { order.push_back("forgotten"); };
  EventLoop::Task first = [&] {
    order.push_back("deferred");
    loop.forget(&forgotten);  // removed while the list runs
    loop.at_iteration_end(&second);
    loop.stop();
  };
  loop.post([&] {
    loop.at_iteration_end(&first);
    loop.at_iteration_end(&forgotten);
    order.push_back("task");
  });
  loop.run();
  EXPECT_EQ(order, (std::vector<std::string>{"task", "deferred", "deferred by deferred"}));
}

// Both ends are readable in one batch. The first handler removes (and destroys) the other.
TEST(EventLoop, AHandlerRemovedInTheSameBatchIsNotCalled) {
  struct Handler : DescriptorHandler {
    DescriptorLoop* loop = nullptr;
    int own_fd = -1, other_fd = -1;
    std::unique_ptr<Handler>* other = nullptr;
    int* calls = nullptr;
    void on_ready(uint32_t) override {
      ++*calls;
      loop->remove(own_fd);
      loop->remove(other_fd);
      other->reset();
      loop->stop();
    }
  };
  EpollLoop loop;
  int calls = 0;
  int a[2], b[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, a), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, b), 0);
  const UniqueFd owners[] = {UniqueFd(a[0]), UniqueFd(a[1]), UniqueFd(b[0]), UniqueFd(b[1])};
  auto first = std::make_unique<Handler>(), second = std::make_unique<Handler>();
  first->loop = second->loop = &loop;
  first->calls = second->calls = &calls;
  first->own_fd = second->other_fd = a[0];
  second->own_fd = first->other_fd = b[0];
  first->other = &second;
  second->other = &first;
  loop.add(a[0], kForReading, first.get());
  loop.add(b[0], kForReading, second.get());
  ASSERT_EQ(write(a[1], "x", 1), 1);
  ASSERT_EQ(write(b[1], "x", 1), 1);
  loop.run();
  EXPECT_EQ(calls, 1);
}

constexpr std::chrono::seconds kLimit(30);

// Returns the result of `call`, which runs on a thread of its own. If it takes too long, fails the
// test and returns nothing. The thread then waits forever and is left behind.
template <typename Call>
auto in_time(Call call) -> std::optional<decltype(call())> {
  std::promise<decltype(call())> answer;
  auto result = answer.get_future();
  std::thread([call, answer = std::move(answer)]() mutable { answer.set_value(call()); }).detach();
  if (result.wait_for(kLimit) == std::future_status::ready) return result.get();
  ADD_FAILURE() << "somebody waits for a loop that nobody runs";
  return std::nullopt;
}

TEST(EventLoop, NobodyWaitsForALoopThatHasEnded) {
  const auto loop = std::make_shared<EpollLoop>();
  loop->start("test");
  EXPECT_EQ(loop->ask([] { return 7; }), 7);
  loop->join();
  EXPECT_EQ(in_time([loop] { return loop->ask([] { return 7; }).value_or(0); }), 0);
}

TEST(EventLoop, NobodyWaitsForALoopThatWasNotStarted) {
  const auto loop = std::make_shared<EpollLoop>();
  EXPECT_EQ(in_time([loop] { return loop->ask([] { return 7; }).value_or(0); }), 0);
  loop->join();
  EXPECT_EQ(in_time([loop] { return loop->ask([] { return 7; }).value_or(0); }), 0);
}

TEST(EventLoop, WhatTheLoopAsksItselfIsAnsweredAtOnce) {
  const auto loop = std::make_shared<EpollLoop>(EpollLoop::Drivers::kWaitersToo);
  loop->start("test");
  const auto twice = [loop] { return loop->ask([loop] { return *loop->ask([] { return 7; }); }); };
  EXPECT_EQ(in_time(twice), 7);
  // A caller that drives the loop counts as the loop's thread meanwhile.
  const auto driving = [loop] {
    std::optional<int> answer;
    loop->drive(monotonic_now() + kSecond, [&] {
      answer = loop->ask([] { return 8; });
      return true;
    });
    return answer;
  };
  EXPECT_EQ(in_time(driving), 8);
}

TEST(EventLoop, NobodyWaitsForALoopOfTheParentInAForkedChild) {
  EpollLoop loop;
  loop.start("test");
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(static_cast<unsigned>(kLimit.count()));
    ::_exit(loop.ask([] { return 7; }).has_value() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(loop.ask([] { return 7; }), 7) << "the parent's loop goes on";
}

TEST(EventLoop, WhatAnAnswerThrowsReachesTheCallerAndTheLoop) {
  EpollLoop loop;
  std::atomic<int> told{0};
  loop.on_exhausted([&](const Status&) { ++told; });
  loop.start("test");
  EXPECT_THROW(loop.ask([]() -> int { throw std::bad_alloc(); }), std::bad_alloc);
  EXPECT_EQ(loop.ask([] { return 7; }), 7);
  EXPECT_EQ(told.load(), 1);
}

TEST(Delivery, NobodyWaitsWhenItCannotBeSaidWhatIsLeft) {
  const auto loop = std::make_shared<EpollLoop>();
  loop->on_exhausted([](const Status&) {});
  loop->start("test");
  const auto wait = [loop](const std::function<size_t()>& left) {
    return in_time([loop, left] {
      return without_exceptions([&] {
        await_delivery(*loop, left, 60 * kSecond, 60 * kSecond);
        return Status();
      });
    });
  };
  const auto status = wait([]() -> size_t { throw std::bad_alloc(); });
  ASSERT_TRUE(status.has_value());
  EXPECT_NE(status->message().find("memory"), std::string::npos) << status->message();
  loop->join();
  EXPECT_TRUE(wait([] { return size_t{1}; })->ok()) << "the loop has ended: nothing arrives";
}

TEST(EventLoop, ManyPostsNeedFewWakeUps) {
  EpollLoop loop;
  int ran = 0;
  for (int i = 0; i < 1000; ++i) loop.post([&] { ++ran; });
  loop.stop();
  loop.run();
  EXPECT_EQ(ran, 1000);
  EXPECT_LE(loop.wakeups(), 2u);
}

}  // namespace
}  // namespace herring::transport
