#include "links/paths.h"

#include <algorithm>

namespace herring::links {
namespace {

// A path is slow if its round trip is more than this many times that of the fastest path.
constexpr Nanos kSlowPath = 2;
constexpr Nanos kFirstRest = kSecond, kLongestRest = 60 * kSecond;

Nanos answered_in(const Path& path) {
  return static_cast<Nanos>(path.outstanding + 1) * std::max<Nanos>(path.rtt, 1);
}

}  // namespace

void Path::report(Nanos round_trip) {
  if (carried) rtt = round_trip;
  carried = false;
}

size_t soonest(const std::vector<Path>& paths) {
  const auto best = std::min_element(
      paths.begin(), paths.end(),
      [](const Path& a, const Path& b) { return answered_in(a) < answered_in(b); });
  return static_cast<size_t>(best - paths.begin());
}

void retry_slow_paths(std::vector<Path>& paths, Nanos now) {
  Nanos fastest = 0;
  for (const Path& path : paths) {
    if (path.rtt > 0 && (fastest == 0 || path.rtt < fastest)) fastest = path.rtt;
  }
  for (Path& path : paths) {
    if (path.rtt <= kSlowPath * fastest) {
      path.rest = kFirstRest;
      path.rests_until = now + path.rest;
    } else if (now >= path.rests_until) {
      path.rtt = fastest;
      path.rest = std::min(2 * path.rest, kLongestRest);
      path.rests_until = now + path.rest;
    }
  }
}

}  // namespace herring::links
