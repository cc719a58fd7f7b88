// Ends waits early: a process that starts waits for others without an operation that could be
// waited for from outside, and Ctrl-C must get through all the same.
#pragma once

#include <poll.h>

#include <functional>

#include "base/clock.h"

namespace herring {

// While it lives, waits of this thread end when `asked()` says so; it is called every
// kInterruptInterval or sooner. May not be nested.
class Interruptible {
 public:
  explicit Interruptible(std::function<bool()> asked);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

inline constexpr Nanos kInterruptInterval = 100 * kMillisecond;

// Whether waits of this thread must end; once true, it stays so while the Interruptible lives.
bool interrupted();

// poll() that knows of the deadline, signals and interrupts: > 0 when something is ready, 0 when
// the time is up or the thread was interrupted, -1 with errno.
int poll_until(pollfd* fds, nfds_t count, Nanos deadline);

}  // namespace herring
