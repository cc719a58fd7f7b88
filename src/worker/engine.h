// The engine: what any thread may ask of the thread of a worker that moves bytes. What works there
// is in EngineCore.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/mesh.h"
#include "control/cluster.h"
#include "node/local_bus.h"
#include "node/shared_memory.h"
#include "transport/transport.h"
#include "worker/call.h"
#include "worker/links_options.h"
#include "worker/operation.h"

namespace herring::worker {

struct EngineOptions {
  uint32_t rank = 0;
  LinksOptions links;
  collective::MeshOptions mesh;            // between workers
  size_t small_bytes = default_of("small_bytes").integer;
  size_t buffer_bytes = 0;                 // of planned operations; 0: chosen
  std::string node_stage = "auto";         // the setting
  uint32_t node_threads = 1;               // of the node stage, the engine's included
  double timeout = default_of("timeout").real, warn_after = default_of("warn_after").real;  // s
  // Makes the whole job give up; any thread.
  std::function<void(const std::string& reason)> abort = [](const std::string&) {};
};

// A proven connection to a server.
struct ServerFlow {
  uint32_t server;
  std::unique_ptr<transport::Connection> connection;
};

class EngineCore;

class Engine {
 public:
  // `flows`: server by server.
  Engine(const control::Cluster& cluster, EngineOptions options, transport::Transport& transport,
         std::unique_ptr<LocalBus> bus, std::vector<ServerFlow> flows);
  ~Engine();

  // kInvalidArgument for a name that is in flight already in that group; kPeerLost and others when
  // the job or the group has failed. `waits`: the caller waits for it at once.
  Result<std::shared_ptr<Operation>> submit(Call call, bool waits = false);
  // This rank was called to take part and cannot, for a reason of its own: every other rank's call
  // of that number and name fails with it. `group` null: all ranks.
  void refuse(const std::shared_ptr<Group>& group, wire::Collective what, const std::string& name,
              const std::string& why);
  const std::shared_ptr<Group>& world() const;
  // Leaves a group that was formed (wire::FormGroup). kInvalidArgument: something in it is in
  // flight; it was destroyed already; it is the world. Not on the engine's thread.
  Status destroy(const std::shared_ptr<Group>& group);

  // Fails everything that is in flight and everything that comes later.
  void fail(const Status& status);
  // A process is gone. What needs it fails; if nothing can go on, everything does.
  void peer_lost(const control::Loss& loss);
  // A rank has said goodbye: what still needs it fails.
  void rank_left(uint32_t rank);
  Status failure() const;
  // Ends the thread; what is in flight fails with kShutdown.
  void stop();

  const std::shared_ptr<transport::EventLoop>& loop() const;
  SharedHeap& heap();

  struct Counters {
    std::vector<transport::FlowCounters> servers;
    transport::FlowCounters workers;  // exchanged with other workers, not through servers
    size_t credit_bytes = 0;
    uint64_t wakeups = 0;
    uint64_t device_sums = 0;  // all-reduces whose sums a device took
  };
  Counters counters();
  // Of them, on the engine's own thread.
  size_t credit_bytes() const;

 private:
  friend class Partial;
  friend class Planned;
  const std::unique_ptr<EngineCore> core_;
};

}  // namespace herring::worker
