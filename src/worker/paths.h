// Which of a link's flows the next frame takes. Each flow has a path of its own through the
// network; one of them may be congested or broken, and what is sent there holds up everybody's sum.
// Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "base/clock.h"

namespace herring::worker {

struct Path {
  size_t outstanding = 0;  // segments sent and not yet answered
  bool carried = false;    // a result since the last report: the round trip is fresh
  Nanos rtt = 0;           // as last reported; 0: not known
  Nanos rest = kSecond, rests_until = 0;  // once it is slow: for how long, and until when

  // What the transport says about the round trip. On an idle flow it is old, and tells nothing.
  void report(Nanos round_trip);
};

// The path on which one more frame would be answered first; `paths` is not empty. If that one is
// full, all others would be slower still.
size_t soonest(const std::vector<Path>& paths);

// Forgets after a while what a slow path was like, so that it is tried again: after a second, then
// after twice as long each time, a minute at most, until it keeps up again.
void retry_slow_paths(std::vector<Path>& paths, Nanos now);

}  // namespace herring::worker
