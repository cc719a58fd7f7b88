#include "base/signal_handlers.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace herring {
namespace {

sighandler_t now() {
  struct sigaction found {};
  sigaction(SIGUSR1, nullptr, &found);
  return found.sa_handler;
}

TEST(StatusSignal, CountsWhatWouldEndTheProcess) {
  ASSERT_EQ(now(), SIG_DFL);
  take_status_signal();
  take_status_signal();
  const uint64_t before = status_signals();
  raise(SIGUSR1);
  raise(SIGUSR1);
  EXPECT_EQ(status_signals(), before + 2);
  give_back_status_signal();
  EXPECT_EQ(now(), SIG_DFL);
}

TEST(StatusSignal, LeavesTheProgramItsOwnHandler) {
  const sighandler_t own = [](int) {};
  signal(SIGUSR1, own);
  take_status_signal();
  give_back_status_signal();
  EXPECT_EQ(now(), own);
  signal(SIGUSR1, SIG_IGN);
  take_status_signal();
  EXPECT_EQ(now(), SIG_IGN);
  signal(SIGUSR1, SIG_DFL);
  take_status_signal();
  signal(SIGUSR1, own);  // it comes later
  give_back_status_signal();
  EXPECT_EQ(now(), own);
  signal(SIGUSR1, SIG_DFL);
}

}  // namespace
}  // namespace herring
