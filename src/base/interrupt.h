// Ends waits early. While a process starts and waits for others, there is no operation yet whose
// wait a caller could interrupt, but Ctrl-C must still work.
#pragma once

#include <poll.h>

#include <functional>

#include "base/clock.h"

namespace herring {

// While this object exists, waits of the current thread end when `asked()` returns true. `asked` is
// called at least every kInterruptInterval. Must not be nested.
class Interruptible {
 public:
  explicit Interruptible(std::function<bool()> asked);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

inline constexpr Nanos kInterruptInterval = 100 * kMillisecond;

// Returns whether waits of this thread must end. Once true, it stays true while the Interruptible
// exists.
bool interrupted();

// poll() with a deadline, which also handles signals and interrupts. Returns > 0 if a descriptor is
// ready, 0 if the deadline has passed or the thread was interrupted, and -1 with errno on errors.
int poll_until(pollfd* fds, nfds_t count, Nanos deadline);

}  // namespace herring
