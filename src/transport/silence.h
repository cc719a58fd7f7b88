// For how long the system at the other end of a flow has acknowledged nothing of what waits for
// that. Pure.
#pragma once

#include <algorithm>

#include "transport/transport.h"

namespace herring::transport {

// The system says when the latest acknowledgement came, not when it began to wait for the next one.
// After a quiet hour that was an hour ago, although the first bytes have only just left. So the
// silence begins when a look at the flow first finds that something waits.
class Silence {
 public:
  // Looks at the flow. Looks must be less than kLongestPause apart; after a longer pause this
  // process stood still, and the silence begins anew.
  Nanos at(const PathInfo& path, Nanos now) {
    if (path.unacknowledged == 0 || now - looked_ > kLongestPause) clear_ = now;
    looked_ = now;
    return std::min(path.acknowledged_ago, now - clear_);
  }

  static constexpr Nanos kLongestPause = kSecond;

 private:
  Nanos looked_ = 0;
  Nanos clear_ = 0;  // when nothing waited last
};

}  // namespace herring::transport
