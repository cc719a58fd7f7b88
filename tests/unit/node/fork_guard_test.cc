#include "base/fork_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace herring {
namespace {

// Runs `body` in a forked child, whose exit status is the return value of `body`.
int in_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

GuardedFd open_null() {
  return GuardedFd::open([] { return ::open("/dev/null", O_RDWR | O_CLOEXEC); });
}

TEST(UniqueFd, ClosesOnceAndKeepsErrno) {
  UniqueFd a(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const int number = a.get();
  UniqueFd b(std::move(a));
  EXPECT_FALSE(a.valid());
  ASSERT_TRUE(is_open(number));
  errno = EXDEV;
  b.reset();
  EXPECT_EQ(errno, EXDEV);
  EXPECT_FALSE(is_open(number));
  b.reset();
}

TEST(GuardedFd, IsClosedInAForkedChildOnly) {
  GuardedFd guarded = open_null();
  UniqueFd plain(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const int number = guarded.get();
  EXPECT_EQ(in_child([&] {
              if (is_open(number)) return 1;
              if (!is_open(plain.get())) return 2;
              return guarded.get() == -1 ? 0 : 3;
            }),
            0);
  EXPECT_TRUE(is_open(number));
  EXPECT_EQ(guarded.get(), number);
}

TEST(GuardedFd, ACopyInTheChildDoesNotCloseAReusedNumber) {
  GuardedFd guarded = open_null();
  const int number = guarded.get();
  EXPECT_EQ(in_child([&] {
              GuardedFd again = open_null();  // the lowest free number, which is the same one
              if (again.get() != number) return 1;
              guarded.reset();
              GuardedFd(std::move(guarded)).release();
              return is_open(number) && again.get() == number ? 0 : 2;
            }),
            0);
}

TEST(GuardedFd, ReleasedOrClosedNumbersAreNotClosedInTheChild) {
  GuardedFd guarded = open_null();
  UniqueFd released = guarded.release();
  EXPECT_FALSE(guarded.valid());
  GuardedFd closed = open_null();
  const int number = closed.get();
  closed.reset();
  UniqueFd reused(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ASSERT_EQ(reused.get(), number);
  EXPECT_EQ(in_child([&] { return is_open(released.get()) && is_open(number) ? 0 : 1; }), 0);
}

TEST(GuardedFd, HighNumbersAndGrandchildren) {
  GuardedFd high(UniqueFd(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 1000)));
  ASSERT_GE(high.get(), 1000);
  const int number = high.get();
  EXPECT_EQ(in_child([&] {
              if (is_open(number)) return 1;
              GuardedFd own = open_null();
              const int own_number = own.get();
              return in_child([&] { return is_open(own_number) ? 2 : 0; });
            }),
            0);
}

TEST(GuardedFd, FailureToCreateKeepsErrno) {
  GuardedFd fd = GuardedFd::open([] { return ::open("/nonexistent/herring", O_RDONLY); });
  EXPECT_EQ(errno, ENOENT);
  EXPECT_FALSE(fd.valid());
}

// While another thread constantly opens and closes sockets, a child must never see one of them.
TEST(GuardedFd, NoGapBetweenCreationAndRegistration) {
  std::vector<bool> ours;  // what is open before the test (a test runner's)
  for (int fd = 0; fd < 256; ++fd) {
    struct stat info;
    ours.push_back(::fstat(fd, &info) == 0);
  }
  std::atomic<bool> stop{false};
  std::thread opener([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      GuardedFd fd = GuardedFd::open(
          [] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); });
    }
  });
  for (int i = 0; i < 50; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      int found = 0;
      for (int fd = 3; fd < 256; ++fd) {
        struct stat info;
        if (!ours[static_cast<size_t>(fd)] && ::fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode)) {
          found = 1;
        }
      }
      ::_exit(found);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    ASSERT_EQ(status, 0) << "fork " << i;
  }
  stop = true;
  opener.join();
}

}  // namespace
}  // namespace herring
