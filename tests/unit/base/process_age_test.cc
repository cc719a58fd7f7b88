#include "base/process_age.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace herring {
namespace {

TEST(ProcessAge, AProcessIsAsOldAsItsParentSaw) {
  const Nanos before = monotonic_now();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const Nanos age = process_age();
    _exit(write(ends[1], &age, sizeof age) == sizeof age ? 0 : 1);
  }
  Nanos age = -1;
  EXPECT_EQ(read(ends[0], &age, sizeof age), static_cast<ssize_t>(sizeof age));
  waitpid(child, nullptr, 0);
  for (const int end : ends) close(end);
  EXPECT_GE(age, 0);
  constexpr Nanos kTick = 20 * kMillisecond;  // of the system's start times
  EXPECT_LE(age, monotonic_now() - before + kTick);
  EXPECT_GE(process_age(), age);
}

}  // namespace
}  // namespace herring
