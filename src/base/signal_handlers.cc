#include "base/signal_handlers.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace herring {
namespace {

std::atomic<uint64_t> status_asked{0};              // how often SIGUSR1 has come
std::atomic<bool> held{false}, came{false};  // SIGTERM
static_assert(std::atomic<uint64_t>::is_always_lock_free, "a signal handler uses it");
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler uses it");

void on_status(int) { status_asked.fetch_add(1, std::memory_order_relaxed); }
void on_termination(int) { came.store(true); }

bool has(int number, sighandler_t handler) {
  struct sigaction found {};
  return sigaction(number, nullptr, &found) == 0 && (found.sa_flags & SA_SIGINFO) == 0 &&
         found.sa_handler == handler;
}

// Returns whether the signal had its default, and has this handler now.
bool take(int number, sighandler_t handler) {
  if (!has(number, SIG_DFL)) return false;
  struct sigaction own {};
  own.sa_handler = handler;
  own.sa_flags = SA_RESTART;
  sigemptyset(&own.sa_mask);
  return sigaction(number, &own, nullptr) == 0;
}

void give_back(int number, sighandler_t handler) {
  if (has(number, handler)) signal(number, SIG_DFL);
}

}  // namespace

void take_status_signal() { take(SIGUSR1, on_status); }
void give_back_status_signal() { give_back(SIGUSR1, on_status); }
uint64_t status_signals() { return status_asked.load(std::memory_order_relaxed); }

void hold_termination() {
  if (!held.load()) came.store(false);
  if (take(SIGTERM, on_termination)) held.store(true);
}

void release_termination() {
  if (!held.exchange(false)) return;
  give_back(SIGTERM, on_termination);
  if (came.exchange(false)) kill(getpid(), SIGTERM);
}

}  // namespace herring
