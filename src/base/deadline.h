// Decides when an operation that moves bytes has taken too long.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace herring {

struct Deadline {
  uint32_t timeout_ms = 0;  // for the whole operation
  uint32_t stall_ms = 0;    // without any movement, in this operation or another
  uint32_t warn_ms = 0;     // until the side that waits logs a warning

  // `since` is when the operation began; `moved` is when its owner last saw bytes move.
  bool passed(Nanos now, Nanos since, Nanos moved) const {
    return now - since > timeout_ms * kMillisecond ||
           now - std::max(since, moved) > stall_ms * kMillisecond;
  }
  // `times`: how many times as long as usual this side waits before it does.
  bool warns(Nanos now, Nanos since, uint32_t times = 1) const {
    return (now - since) / times > warn_ms * kMillisecond;
  }
};

inline Deadline shorter(const Deadline& a, const Deadline& b) {
  return {std::min(a.timeout_ms, b.timeout_ms), std::min(a.stall_ms, b.stall_ms),
          std::min(a.warn_ms, b.warn_ms)};
}

}  // namespace herring
