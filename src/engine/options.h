// What the engine of a worker is made with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "base/clock.h"
#include "base/settings.h"
#include "base/status.h"
#include "collective/mesh.h"
#include "links/options.h"

namespace herring::engine {

struct EngineOptions {
  uint32_t rank = 0;
  links::LinksOptions links;
  collective::MeshOptions mesh;            // between workers
  size_t small_bytes = default_of("small_bytes").integer;
  size_t buffer_bytes = 0;                 // of planned operations; 0: chosen automatically
  std::string node_stage = "auto";         // value of the setting node_stage
  uint32_t node_threads = 1;               // for sums in the node, including the engine's
  bool failover = false;                   // the job may go on without a server that dies
  bool observe = true;                     // records entries (observe/recorder.h)
  double timeout = default_of("timeout").real, warn_after = default_of("warn_after").real;  // s
  // Called on any thread, and must not block: the engine or one of its operations has failed, for a
  // reason that its flight record may explain.
  std::function<void(const Status& why)> failed = [](const Status&) {};
  Nanos connect_timeout = 60 * kSecond;  // to a server that comes while the job runs
  // After twice this time without an acknowledgement, a server that others may stand in for is
  // reported as unreachable. After many times that, any other server ends the job. 0: never.
  Nanos server_timeout = 0;
  // Says whether this worker can reach a dedicated server, see control::ServerReport; any thread.
  std::function<void(uint32_t server, uint32_t number, bool reachable, const std::string& why)>
      report_server = [](uint32_t, uint32_t, bool, const std::string&) {};
  // Returns when this process sent the latest of what the rendezvous is known to have read, in the
  // loops' time; any thread. What it was told before then, it knows.
  std::function<Nanos()> rendezvous_read = [] { return std::numeric_limits<Nanos>::max(); };
  // Tells the other ranks that this worker's part of the job has ended; any thread.
  std::function<void(const Status& why)> end_part = [](const Status&) {};
  // Makes the whole job fail; any thread.
  std::function<void(const std::string& reason)> abort = [](const std::string&) {};
};

}  // namespace herring::engine
