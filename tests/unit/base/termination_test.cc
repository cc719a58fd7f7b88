#include "base/signal_handlers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace herring {
namespace {

// Returns how a child that runs `body` ends, as waitpid() tells it.
template <typename Body>
int end_of(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(Termination, WaitsForTheRelease) {
  const int status = end_of([] {
    hold_termination();
    raise(SIGTERM);
    raise(SIGTERM);
    release_termination();
    pause();
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

TEST(Termination, IsTheDefaultAgainAfterwards) {
  const int status = end_of([] {
    release_termination();
    hold_termination();
    hold_termination();
    release_termination();
    release_termination();
    raise(SIGTERM);
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

TEST(Termination, OfAProgramWithAHandlerIsItsOwn) {
  const int status = end_of([] {
    signal(SIGTERM, [](int) { _exit(3); });
    hold_termination();
    raise(SIGTERM);
  });
  EXPECT_EQ(WEXITSTATUS(status), 3);
  const int later = end_of([] {
    hold_termination();
    signal(SIGTERM, [](int) { _exit(4); });
    release_termination();
    raise(SIGTERM);
  });
  EXPECT_EQ(WEXITSTATUS(later), 4);
}

}  // namespace
}  // namespace herring
