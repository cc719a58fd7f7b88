// The checks of a result's header, before memory is touched. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "links/route.h"

namespace herring::links {

// Where a result belongs.
struct ResultPlace {
  uint32_t run = 0;
  plan::Range range;    // of the contributions
  bool empty = false;   // no bytes follow
  bool unused = false;  // they are not used: another server has the run, or gives the result
};

// Returns kProtocol if `server` cannot honestly send this result. `transfer`: the one with that
// key; null if none waits. `outstanding`: the most segments that it can be about.
Result<ResultPlace> check_result(const Transfer* transfer, uint32_t server,
                                 const wire::FrameHeader& header, size_t segment_bytes,
                                 size_t outstanding);

}  // namespace herring::links
