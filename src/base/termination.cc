#include "base/termination.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace herring {
namespace {

std::atomic<bool> held{false}, came{false};  // SIGTERM
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler uses it");

void on_termination(int) { came.store(true); }

bool is(const struct sigaction& action, sighandler_t handler) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == handler;
}

}  // namespace

void hold_termination() {
  struct sigaction found {};
  if (sigaction(SIGTERM, nullptr, &found) != 0 || !is(found, SIG_DFL)) return;
  came.store(false);
  struct sigaction own {};
  own.sa_handler = on_termination;
  own.sa_flags = SA_RESTART;
  sigemptyset(&own.sa_mask);
  if (sigaction(SIGTERM, &own, nullptr) == 0) held.store(true);
}

void release_termination() {
  if (!held.exchange(false)) return;
  struct sigaction found {};
  // The program may have set a handler of its own meanwhile.
  const bool own = sigaction(SIGTERM, nullptr, &found) == 0 && is(found, on_termination);
  if (own) signal(SIGTERM, SIG_DFL);
  if (came.exchange(false)) kill(getpid(), SIGTERM);
}

}  // namespace herring
