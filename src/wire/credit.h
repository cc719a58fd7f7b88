// Credit: how much of what a worker has sent on one flow may be unanswered. Both sides keep to one
// rule, so that a server can refuse what is beyond it, whatever the number of streams.
#pragma once

#include <cstddef>

namespace herring::wire {

// Whether `count` more segments of a stream may be sent. `outstanding`: segments sent on the flow
// and not answered yet (a lent result answers when it is taken), `of_stream`: those of this stream
// among them, `window`: segments. A stream with nothing on its way may always send one segment: no
// stream ever waits for another.
constexpr bool within_credit(size_t outstanding, size_t of_stream, size_t count, size_t window) {
  return outstanding + count <= window || (of_stream == 0 && count == 1);
}

}  // namespace herring::wire
