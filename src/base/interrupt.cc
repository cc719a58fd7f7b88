#include "base/interrupt.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace herring {
namespace {

thread_local std::function<bool()> t_asked;
thread_local bool t_interrupted = false;

}  // namespace

Interruptible::Interruptible(std::function<bool()> asked) {
  t_asked = std::move(asked);
  t_interrupted = false;
}

Interruptible::~Interruptible() {
  t_asked = nullptr;
  t_interrupted = false;
}

bool interrupted() {
  if (!t_interrupted && t_asked) t_interrupted = t_asked();
  return t_interrupted;
}

int poll_until(pollfd* fds, nfds_t count, Nanos deadline) {
  for (;;) {
    const Nanos left = std::min(deadline - monotonic_now(), kInterruptInterval);
    if (left <= 0 || interrupted()) return 0;
    const int n = ::poll(fds, count, static_cast<int>(left / kMillisecond) + 1);
    if (n > 0 || (n < 0 && errno != EINTR)) return n;
  }
}

}  // namespace herring
