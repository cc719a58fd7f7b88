#include "base/status_signal.h"

#include <signal.h>

#include <atomic>

namespace herring {
namespace {

std::atomic<uint64_t> count{0};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "a signal handler uses it");

void on_signal(int) { count.fetch_add(1, std::memory_order_relaxed); }

bool is_default(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

}  // namespace

void take_status_signal() {
  struct sigaction found {};
  if (sigaction(SIGUSR1, nullptr, &found) != 0 || !is_default(found)) return;
  struct sigaction own {};
  own.sa_handler = on_signal;
  own.sa_flags = SA_RESTART;
  sigemptyset(&own.sa_mask);
  sigaction(SIGUSR1, &own, nullptr);
}

void give_back_status_signal() {
  struct sigaction found {};
  if (sigaction(SIGUSR1, nullptr, &found) != 0 || (found.sa_flags & SA_SIGINFO) != 0 ||
      found.sa_handler != on_signal) {
    return;
  }
  signal(SIGUSR1, SIG_DFL);
}

uint64_t status_signals() { return count.load(std::memory_order_relaxed); }

}  // namespace herring
