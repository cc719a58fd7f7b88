// Chooses which of a link's flows carries the next frame. Each flow has its own path through the
// network. If one path is congested or broken, frames sent there delay the sum on all ranks. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "base/clock.h"

namespace herring::links {

struct Path {
  size_t outstanding = 0;  // segments sent and not yet answered
  bool carried = false;    // a result came since the last report, so the round trip is fresh
  Nanos rtt = 0;           // as last reported; 0 if unknown
  Nanos rest = kSecond, rests_until = 0;  // of a slow path: how long it rests, and until when

  // Records the round trip that the transport reports. On an idle flow that value is stale and is
  // ignored.
  void report(Nanos round_trip);
};

// Returns the index of the path on which one more frame would be answered first. `paths` must not
// be empty. If that path is full, every other path would be slower still.
size_t soonest(const std::vector<Path>& paths);

// Forgets after a while that a path was slow, so that it is tried again. The first rest is one
// second. Each further rest is twice as long, up to a minute, until the path keeps up again.
void retry_slow_paths(std::vector<Path>& paths, Nanos now);

}  // namespace herring::links
