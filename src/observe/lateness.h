// How often, and for how long, others waited for one rank alone, as a server sees it. All numbers
// count from the start of the job.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace herring::observe {

struct Lateness {
  // Named calls that several ranks make: how many this rank made, in how many it was the last one,
  // and for how long the second last one then waited, in all.
  uint64_t calls = 0, last_calls = 0;
  Nanos calls_waited = 0;
  // Segments with several contributors, in the same way; a node counts as its rank that pushes.
  uint64_t segments = 0, last_segments = 0;
  Nanos segments_waited = 0;

  Lateness& operator+=(const Lateness& more) {
    calls += more.calls;
    last_calls += more.last_calls;
    calls_waited += more.calls_waited;
    segments += more.segments;
    last_segments += more.last_segments;
    segments_waited += more.segments_waited;
    return *this;
  }
};

}  // namespace herring::observe
