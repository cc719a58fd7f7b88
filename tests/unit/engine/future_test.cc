// Tests that a thread which waits for a future hears of it at once, whichever thread completes it.
#include "engine/future.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>

#include "transport/epoll_loop.h"

namespace herring::engine {
namespace {

// The loop's own thread has nothing to do and no timer, so nothing else wakes a thread that drives
// the loop.
class FutureTest : public ::testing::Test {
 protected:
  FutureTest() { loop->start("loop"); }
  ~FutureTest() override { loop->join(); }

  const std::shared_ptr<transport::EpollLoop> loop =
      std::make_shared<transport::EpollLoop>(transport::EpollLoop::Drivers::kWaitersToo);
};

// The other thread may be the one that watches devices.
TEST_F(FutureTest, AnotherThreadThanTheLoopsCompletesIt) {
  constexpr Nanos kPatience = 600 * kSecond;
  for (int i = 0; i < 300; ++i) {
    const Nanos start = monotonic_now();
    const auto future = std::make_shared<Future>(loop);
    std::promise<void> driven;
    loop->post_before_drive([&driven] { driven.set_value(); });
    std::thread other([&, i] {
      if (i % 3 > 0) driven.get_future().wait();
      for (int turn = 0; turn < 100 * (i % 7); ++turn) std::this_thread::yield();
      future->set({});
    });
    EXPECT_TRUE(future->wait_for(kPatience));
    other.join();
    loop->post([] {});  // runs what no waiting thread has driven
    if (i % 3 == 0) driven.get_future().wait();
    ASSERT_LT(monotonic_now() - start, kPatience) << "after " << i;
  }
}

TEST_F(FutureTest, AsManyWaitAsLike) {
  constexpr Nanos kPatience = 600 * kSecond;
  for (int i = 0; i < 50; ++i) {
    const Nanos start = monotonic_now();
    const auto future = std::make_shared<Future>(loop), later = std::make_shared<Future>(loop);
    std::vector<std::thread> waiters;
    for (const auto& one : {future, later, future, later}) {
      waiters.emplace_back([one] { EXPECT_TRUE(one->wait_for(kPatience)); });
    }
    std::thread([future] { future->set({}); }).join();
    waiters[0].join();
    waiters[2].join();
    later->set({Code::kShutdown, "it ends"});
    waiters[1].join();
    waiters[3].join();
    EXPECT_EQ(later->status().code(), Code::kShutdown);
    ASSERT_LT(monotonic_now() - start, kPatience) << "after " << i;
  }
}

}  // namespace
}  // namespace herring::engine
