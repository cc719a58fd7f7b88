// Decides whether a job is deadlocked for certain: whether nothing but a timeout can end the waits
// of its ranks. Pure.
//
// Nobody compares who waits in what, because names tell too little: groups, messages and planned
// rounds all have their own. Instead every process says since when it stands still: nothing has
// changed in it, nothing can unless another process sends something, and all that it has sent has
// arrived (Report::still). If there is a moment at which all processes stood still, nothing can
// ever change again.
#pragma once

#include <span>
#include <string>

#include "base/clock.h"

namespace herring::observe {

// A time in which a process has stood still for sure.
struct Still {
  Nanos since = 0, until = 0;  // until = 0: it does not stand still

  friend bool operator==(const Still&, const Still&) = default;
};

// A rank or server, as its latest report tells.
struct Stillness {
  bool takes_part = true;  // it has neither left nor died
  Still still;             // in the clock of the rendezvous
  Nanos error = -1;        // bound of the error of these times; -1: its clock is not known
};

// All processes must have stood still for this long.
inline constexpr Nanos kCertain = 10 * kSecond;
// What is older says nothing of now: the process may be stopped, or its host unreachable.
inline constexpr Nanos kLatest = 2 * kSecond;

// `all`: every rank and every server of the job.
bool is_deadlocked(std::span<const Stillness> all, Nanos now);

// Where a rank waits, as Report::where has it, and for how long.
struct Waiting {
  std::string where;
  Nanos age = 0;
};
// Returns who waits where, and what to do about it. `ranks`: all of them.
std::string describe_deadlock(std::span<const Waiting> ranks);

}  // namespace herring::observe
