#include "base/program_stack.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/fork_guard.h"
#include "base/wake.h"

namespace herring {
namespace {

// Never destroyed: threads may ask while static objects are. The mutex is held inside a ForkSection
// only, so it is free in a forked child.
struct Requests {
  std::mutex mutex;
  bool open = false;        // guarded by mutex, as is all of the following
  uint32_t generation = 0;  // of the process that opened them
  bool taken = false;       // the thread that answers has the request
  ProgramStack stack;

  bool answered_here() const { return open && generation == fork_generation(); }
};

Requests& the_requests() {
  static auto* const requests = new Requests;
  return *requests;
}

std::atomic<Wake*> g_stack_wake{nullptr};  // the one of this process; never destroyed

}  // namespace

bool ProgramStack::overdue(Nanos now) const { return asked != 0 && now - asked > kStackPatience; }

std::string ProgramStack::say(Nanos now) const {
  if (!overdue(now)) return text;
  return "its Python does not answer: a call holds the interpreter's lock";
}

void ask_program_stack() {
  {
    ForkSection section;
    Requests& requests = the_requests();
    std::lock_guard lock(requests.mutex);
    if (!requests.answered_here() || requests.stack.asked != 0) return;
    requests.stack.asked = monotonic_now();
    requests.taken = false;
  }
  g_stack_wake.load()->ring();
}

ProgramStack latest_program_stack() {
  ForkSection section;
  Requests& requests = the_requests();
  std::lock_guard lock(requests.mutex);
  return requests.generation == fork_generation() ? requests.stack : ProgramStack();
}

void open_stack_requests() {
  ForkSection section;
  Requests& requests = the_requests();
  std::lock_guard lock(requests.mutex);
  if (g_stack_wake.load() == nullptr || requests.generation != fork_generation()) {
    g_stack_wake.store(new Wake);
    requests.stack = {};  // in a child: the parent's answer
  }
  requests.open = true;
  requests.generation = fork_generation();
}

bool wait_for_stack_request() {
  Wake* const wake = g_stack_wake.load();
  if (wake == nullptr) return false;
  for (;;) {
    const uint64_t seen = wake->count();
    {
      ForkSection section;
      Requests& requests = the_requests();
      std::lock_guard lock(requests.mutex);
      if (!requests.answered_here()) return false;
      if (requests.stack.asked != 0 && !std::exchange(requests.taken, true)) return true;
    }
    wake->wait(seen);
  }
}

void answer_stack_request(std::string text, std::string cause, uint64_t held) {
  ForkSection section;
  Requests& requests = the_requests();
  std::lock_guard lock(requests.mutex);
  if (requests.generation != fork_generation()) return;
  requests.stack = {std::move(text), std::move(cause), held, monotonic_now(), 0};
}

void close_stack_requests() {
  {
    ForkSection section;
    Requests& requests = the_requests();
    std::lock_guard lock(requests.mutex);
    if (!std::exchange(requests.open, false) || requests.generation != fork_generation()) return;
    requests.stack.asked = 0;  // nobody will answer any more
  }
  g_stack_wake.load()->ring();
}

}  // namespace herring
