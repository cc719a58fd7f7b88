// The engine: what any thread may ask of the thread that moves a worker's bytes. The classes that
// run on that thread are in EngineCore.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "calls/operation.h"
#include "control/cluster.h"
#include "engine/options.h"
#include "node/local_bus.h"
#include "node/shared_memory.h"
#include "transport/transport.h"

namespace herring::rounds {
class Rounds;
class SeriesList;
}

namespace herring::worker {

// An authenticated connection to a server.
struct ServerFlow {
  uint32_t server;
  std::unique_ptr<transport::Connection> connection;
};

using calls::Call, calls::Operation, engine::EngineOptions, engine::Group;

class EngineCore;

class Engine {
 public:
  // `flows`: sorted by server.
  Engine(const control::Cluster& cluster, EngineOptions options, transport::Transport& transport,
         std::unique_ptr<LocalBus> bus, std::vector<ServerFlow> flows);
  ~Engine();

  // Submits a call. Returns kInvalidArgument for a name that is already in flight in that group.
  // Returns kPeerLost or another error if the job or the group has failed. `waits`: the caller will
  // wait for the result at once.
  Result<std::shared_ptr<Operation>> submit(Call call, bool waits = false);
  // Tells the other ranks that this rank was called to take part and cannot, for a local reason. On
  // every other rank, the call with the same number and name fails with that reason. A null `group`
  // means all ranks.
  void refuse(const std::shared_ptr<Group>& group, wire::Collective what, const std::string& name,
              const std::string& why);
  const std::shared_ptr<Group>& world() const;
  // Leaves a group that was formed with wire::FormGroup. Returns kInvalidArgument if something in
  // the group is in flight, if the group was already destroyed, or if it is the world. Must not run
  // on the engine's thread.
  Status destroy(const std::shared_ptr<Group>& group);

  // Fails all operations in flight and all later ones.
  void fail(const Status& status);
  // News of the rendezvous, in the order in which they come. If a process is gone, operations that
  // need it fail; if nothing can go on, all fail. To a server that comes as a replacement, the
  // engine connects; it says that it is ready when the server knows what it has to.
  void tell(const control::Loss& loss);
  void tell(const control::Replacement& news);
  Status failure() const;
  // Ends the thread; operations in flight fail with kShutdown.
  void stop();

  const std::shared_ptr<transport::EventLoop>& loop() const;
  SharedHeap& heap();
  // What planned operations and series of partial all-reduces are made with.
  rounds::Rounds& rounds();
  rounds::SeriesList& series();

  struct Counters {
    std::vector<transport::FlowCounters> servers;
    transport::FlowCounters workers;  // exchanged with other workers directly
    size_t credit_bytes = 0;
    size_t kept_bytes = 0;  // for others, who may lack it when a server dies
    // Sent to servers and received from them in messages that begin and end nothing.
    uint64_t notice_bytes = 0;
    // Nothing here goes on until another process sends something or the program makes a call.
    bool stands_still = false;
    uint64_t wakeups = 0;
    // All-reduces whose sums a device did, and those of them for which it read other devices.
    uint64_t device_sums = 0, neighbour_sums = 0;
    uint64_t retransmits = 0;  // of packets to servers
    // By server: retransmissions of all its flows, and the shortest and the longest of their latest
    // round trips. A time of 0 is unknown.
    std::vector<transport::PathInfo> paths;
    std::vector<std::string> names;  // of the servers, as messages call them
  };
  Counters counters();
  // What the program does, the entries of this worker, and what it knows of its groups.
  engine::Program& program();
  // Sets what messages say about ranks that hold others up, see observe::RankStates. Any thread.
  void tell_states(std::map<uint32_t, std::string> states);
  // Returns Counters::credit_bytes. Must run on the engine's own thread.
  size_t credit_bytes() const;

 private:
  void post(std::function<void(EngineCore&)> news);

  const std::unique_ptr<EngineCore> core_;
};

}  // namespace herring::worker
