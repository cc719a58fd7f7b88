// How a worker uses its connections to servers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/settings.h"

namespace herring::worker {

struct LinksOptions {
  size_t segment_bytes = default_of("segment_bytes").integer;
  size_t frame_max = default_of("frame_max").integer;
  uint16_t credit_initial = 1, credit_max = 128;  // segments
  uint16_t credit_ladder = UINT16_MAX;            // see CreditController
  bool credit_fixed = false;
  bool steers = false;          // rank 0: its controller steers the credit of the world
  uint32_t first_server = 0;    // where pushing starts; differs from node to node
  std::vector<double> weights;  // of the servers; empty: all equal
};

}  // namespace herring::worker
