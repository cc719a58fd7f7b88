// Credit: how much of what a worker has sent on one flow may be unanswered. Both sides apply the
// same rule, so a server can refuse what exceeds the credit, whatever the number of streams.
#pragma once

#include <cstddef>

namespace herring::wire {

// Returns whether `count` more segments of a stream may be sent. `outstanding` counts the segments
// sent on the flow and not answered yet; a lent result answers when the worker has taken it.
// `of_stream` counts those of this stream among them, and `window` is in segments. A stream with
// nothing on its way may always send one segment, so no stream ever waits for another.
constexpr bool within_credit(size_t outstanding, size_t of_stream, size_t count, size_t window) {
  return outstanding + count <= window || (of_stream == 0 && count == 1);
}

}  // namespace herring::wire
