// Measures what is still on its way to the other sides of flows, and waits until it has arrived.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "transport/event_loop.h"
#include "transport/transport.h"

namespace herring::transport {

// Returns the bytes that the flow has not written yet, plus the packets that the other side's
// system has not acknowledged. 0 means that everything has arrived, or that the flow is closed.
inline size_t undelivered(const Flow& flow, const PathInfo& path) {
  return flow.closed() ? 0 : flow.backlog() + path.unacknowledged;
}
inline size_t undelivered(const Flow& flow) { return undelivered(flow, flow.path_info()); }

// Waits until `left`, which is called on the loop's thread, returns 0. Gives up if the value has
// not changed for `standstill`, after `most`, or if no thread runs the loop. Passes on what `left`
// throws. Must not be called on the loop's thread.
inline void await_delivery(EventLoop& loop, const std::function<size_t()>& left, Nanos standstill,
                           Nanos most) {
  const Nanos start = monotonic_now();
  Nanos moved_at = start, pause = 100 * kMicrosecond;
  for (size_t before = SIZE_MAX;; pause = std::min(2 * pause, 5 * kMillisecond)) {
    const std::optional<size_t> now_left = loop.ask(left);
    const Nanos now = monotonic_now();
    if (now_left != before) moved_at = now;
    if (now_left.value_or(0) == 0 || now - moved_at > standstill || now - start > most) return;
    before = *now_left;
    std::this_thread::sleep_for(std::chrono::nanoseconds(pause));
  }
}

}  // namespace herring::transport
