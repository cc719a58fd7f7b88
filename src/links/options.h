// Options that say how a worker uses its connections to servers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/settings.h"

namespace herring::links {

struct LinksOptions {
  size_t segment_bytes = default_of("segment_bytes").integer;
  size_t frame_max = default_of("frame_max").integer;
  uint16_t credit_initial = 1, credit_max = 128;  // in segments
  uint16_t credit_ladder = UINT16_MAX;            // see CreditController
  bool credit_fixed = false;
  bool steers = false;          // rank 0: its controller steers the credit of the world group
  bool failover = false;        // others stand in for a server that dies
  bool even = true;             // all nodes have the same number of workers
  uint32_t flows = 1;           // connections of this worker to each server
  uint32_t first_server = 0;    // server at which pushing starts; differs from node to node
  std::vector<double> weights;  // one per server; empty means that all are equal
};

}  // namespace herring::links
