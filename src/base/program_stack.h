// Where the Python program of this process is. Whoever wants to say why a rank is late asks, a
// thread of the interpreter answers, and the asker reads the latest answer. Nobody waits for
// Python: an interpreter whose lock is held answers later, which the age of the request shows.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace herring {

struct ProgramStack {
  std::string text;   // "train.py:40 in load"; empty if there is no answer
  // What the program does: "compute", "input", "checkpoint", "compile" or "evaluation". Empty if it
  // waits for Herring, or if that is not known.
  std::string cause;
  // Not 0 if no thread of Python can go on before a result comes. The number is another one after
  // any of them has gone on.
  uint64_t held = 0;
  Nanos taken = 0;    // when the answer came, in monotonic_now()'s clock; 0: never
  Nanos asked = 0;    // since when a request waits for its answer; 0: none does

  // Returns whether the interpreter should have answered by now.
  bool overdue(Nanos now) const;
  // Returns what a line of the log says: the text, or that Python does not answer.
  std::string say(Nanos now) const;
};

inline constexpr Nanos kStackPatience = 200 * kMillisecond;

// Asks for the program's stack. It does nothing if nobody answers in this process, or if a request
// waits already. Any thread; it never waits.
void ask_program_stack();
// Returns the latest answer. Any thread; it never waits.
ProgramStack latest_program_stack();

// For the thread that answers. After open_stack_requests(), wait_for_stack_request() waits for a
// request; it returns false when requests are closed. In a forked child nobody answers until it
// opens requests itself.
void open_stack_requests();
bool wait_for_stack_request();
void answer_stack_request(std::string text, std::string cause, uint64_t held = 0);
void close_stack_requests();

}  // namespace herring
