// Tests what is known of a program: how long it waits, and where.
#include "engine/program.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transport/epoll_loop.h"
#include "engine/future.h"

namespace herring::engine {
namespace {

using observe::Entry;
using observe::Kind;
using observe::Moment;

Entry entry_of(Kind kind, const std::string& name, Nanos called = 1) {
  Entry entry;
  entry.kind = kind;
  entry.at[static_cast<size_t>(Moment::kCalled)] = called;
  entry.set_name(name);
  return entry;
}

class Place : public Awaited {
 public:
  explicit Place(const char* text) : text_(text) {}
  std::string where() const override { return text_; }

 private:
  const char* const text_;
};

class ProgramTest : public ::testing::Test {
 protected:
  Entry entry(uint64_t id) {
    for (const Entry& one : program.recorder().latest(100)) {
      if (one.id == id) return one;
    }
    ADD_FAILURE() << "entry " << id << " is not there";
    return {};
  }

  const Place one{"barrier 'a'"}, other{"b"};
  Program program{16, 100};
};

TEST_F(ProgramTest, RoundsAndCallsCountInTheirGroups) {
  const auto shared = std::make_shared<Program>(16, 100);
  shared->groups().add(3, "tp", {0, 1});
  Entry entry = entry_of(Kind::kCall, "a", 200);
  entry.group = 3;
  OpenEntry call(shared, entry);
  entry.kind = Kind::kRound;
  OpenEntry round;
  round = OpenEntry(shared, entry);
  call.end(300, Code::kOk);
  call.end(310, Code::kOk);
  const auto news = shared->groups().news(400);
  ASSERT_EQ(news.size(), 2u);
  EXPECT_EQ(news[1].rounds, 1u);
  EXPECT_EQ(news[1].calls, 1u);
  EXPECT_EQ(news[1].in_flight, 1u);
  EXPECT_EQ(news[1].age, 100);
}

TEST_F(ProgramTest, ThreadsThatWaitTogetherCountOnce) {
  const uint64_t a = program.begin(entry_of(Kind::kCall, "a"));
  const uint64_t b = program.begin(entry_of(Kind::kCall, "b"));
  ASSERT_TRUE(program.enter(one, a, 1000));
  ASSERT_TRUE(program.enter(one, a, 1010));
  ASSERT_TRUE(program.enter(other, b, 1020));
  program.leave(one, 1030, true);
  EXPECT_EQ(program.activity(1035).waited, 35);
  program.leave(one, 1040, true);
  program.leave(other, 1050, true);
  EXPECT_EQ(entry(a).waited, 40);
  EXPECT_EQ(entry(b).waited, 30);
  EXPECT_EQ(program.activity(9000).waited, 50);
}

TEST_F(ProgramTest, AWaitInSlicesIsOneWait) {
  const uint64_t a = program.begin(entry_of(Kind::kCall, "a"));
  program.enter(one, a, 1000);
  program.leave(one, 1100, false);
  // Between two slices the program still waits, but this time does not count.
  Activity activity = program.activity(1150);
  EXPECT_EQ(activity.where, "waits in barrier 'a'");
  EXPECT_EQ(activity.since, 1000);
  EXPECT_EQ(activity.waited, 100);
  program.enter(one, a, 1200);
  EXPECT_EQ(program.activity(1250).since, 1000);
  program.leave(one, 1300, true);
  activity = program.activity(1350);
  EXPECT_EQ(activity.where, "");
  EXPECT_EQ(activity.since, 1300);
  EXPECT_EQ(activity.waited, 200);
  EXPECT_EQ(entry(a).waited, 200);
}

TEST_F(ProgramTest, AWaitThatWasGivenUpIsForgotten) {
  program.enter(one, 0, 1000);
  program.leave(one, 1100, false);
  EXPECT_EQ(program.activity(1100 + 2 * kSecond).where, "");
  // A later wait for the same result is a new one.
  program.enter(one, 0, 5 * kSecond);
  EXPECT_EQ(program.activity(6 * kSecond).since, 5 * kSecond);
}

TEST_F(ProgramTest, SaysTheLongestWaitAndThoseBeforeATime) {
  program.enter(other, 0, 1005);
  program.enter(one, 0, 1000);
  EXPECT_EQ(program.activity(2000).where, "waits in barrier 'a'");
  std::vector<std::string> texts;
  program.held_up(2000, 1003, texts);
  EXPECT_EQ(texts, std::vector<std::string>{"barrier 'a'"});
}

TEST_F(ProgramTest, CountsWhatIsInFlight) {
  EXPECT_EQ(program.activity(150).since, 100);  // from its start on, it computes
  const uint64_t round = program.begin(entry_of(Kind::kRound, "r", 200));
  const uint64_t call = program.begin(entry_of(Kind::kCall, "c", 300));
  Activity activity = program.activity(400);
  EXPECT_EQ(activity.since, 300);
  EXPECT_EQ(activity.rounds, 1u);
  EXPECT_EQ(activity.calls, 1u);
  EXPECT_EQ(activity.in_flight, 2u);
  program.end(call, 500, Code::kOk);
  program.end(round, 600, Code::kTimeout);
  EXPECT_EQ(program.activity(700).in_flight, 0u);
  EXPECT_EQ(entry(round).outcome, Code::kTimeout);
}

TEST(Program, WithoutARecorderWaitsAreKnownAllTheSame) {
  Program program(0, 100);
  EXPECT_EQ(program.begin(entry_of(Kind::kCall, "a")), 0u);
  const Place key("a");
  program.enter(key, 0, 1000);
  EXPECT_EQ(program.activity(1500).where, "waits in a");
  program.leave(key, 2000, true);
  program.end(0, 2000, Code::kOk);
  EXPECT_EQ(program.activity(2500).waited, 1000);
  EXPECT_EQ(program.activity(2500).in_flight, 0u);
  EXPECT_TRUE(program.recorder().latest(10).empty());
}

class AskedFutureTest : public ::testing::Test {
 protected:
  AskedFutureTest() { loop->start("loop"); }
  ~AskedFutureTest() override { loop->join(); }

  std::shared_ptr<Future> begin(const char* name) {
    auto future = std::make_shared<Future>(loop);
    future->begin(program, entry_of(Kind::kCall, name, loop->now()));
    return future;
  }
  Entry latest() { return program->recorder().latest(1).front(); }

  const std::shared_ptr<transport::EpollLoop> loop =
      std::make_shared<transport::EpollLoop>(transport::EpollLoop::Drivers::kWaitersToo);
  const std::shared_ptr<Program> program = std::make_shared<Program>(16, monotonic_now());
};

TEST_F(AskedFutureTest, TheEntryHasEndedBeforeTheWaitReturns) {
  for (int i = 0; i < 50; ++i) {
    const auto future = begin("x");
    std::thread other([&] { future->set({Code::kPeerLost, "it is gone"}); });
    while (!future->wait_for(100 * kMicrosecond)) {}
    EXPECT_TRUE(latest().ended);
    EXPECT_EQ(latest().outcome, Code::kPeerLost);
    other.join();
  }
  EXPECT_EQ(program->activity(loop->now()).where, "");
  EXPECT_EQ(program->activity(loop->now()).in_flight, 0u);
}

TEST_F(AskedFutureTest, SlicesOfTwoThreadsAddUpToTheTimeThatTheyWait) {
  const auto future = begin("x");
  const Nanos start = loop->now();
  std::vector<std::thread> waiters;
  for (int i = 0; i < 2; ++i) {
    waiters.emplace_back([&] { while (!future->wait_for(kMillisecond)) {} });
  }
  while (program->activity(loop->now()).waited < 20 * kMillisecond) std::this_thread::yield();
  future->set({});
  for (std::thread& waiter : waiters) waiter.join();
  const Nanos took = loop->now() - start;
  EXPECT_GE(latest().waited, 20 * kMillisecond);
  EXPECT_LE(latest().waited, took);
  EXPECT_EQ(latest().waited, program->activity(loop->now()).waited);
}

TEST_F(AskedFutureTest, AProgramThatWaitsElsewhereIsKnownToWait) {
  const auto future = begin("x");
  future->note_program_waits();
  future->note_program_waits();
  EXPECT_EQ(program->activity(loop->now()).where, "waits in ");
  while (program->activity(loop->now()).waited < kMillisecond) std::this_thread::yield();
  future->set({});
  EXPECT_EQ(program->activity(loop->now()).where, "");
  EXPECT_GE(latest().waited, kMillisecond);
  future->note_program_waits();  // too late
  EXPECT_EQ(program->activity(loop->now()).where, "");
}

TEST_F(AskedFutureTest, AProgramMayWaitElsewhereForWhatNeverComes) {
  auto future = begin("x");
  future->note_program_waits();
  EXPECT_FALSE(future->wait_for(kMillisecond));
  EXPECT_EQ(program->activity(loop->now()).where, "waits in ");
  future.reset();
  EXPECT_EQ(program->activity(loop->now()).where, "");
}

TEST_F(AskedFutureTest, AFutureThatNobodyCompletesEndsItsEntry) {
  auto future = begin("x");
  EXPECT_FALSE(future->wait_for(kMillisecond));
  future.reset();
  EXPECT_TRUE(latest().ended);
  EXPECT_EQ(latest().outcome, Code::kShutdown);
  EXPECT_EQ(program->activity(loop->now()).where, "");
}

TEST_F(AskedFutureTest, ALastStepCountsAsAWaitForTheCall) {
  const auto call = begin("x");
  const auto back = std::make_shared<Future>(loop);
  back->continue_from(*call);
  call->set({});
  EXPECT_FALSE(back->wait_for(2 * kMillisecond));
  back->set({});
  EXPECT_GE(latest().waited, kMillisecond);
  EXPECT_EQ(program->activity(loop->now()).in_flight, 0u);
}

}  // namespace
}  // namespace herring::engine
