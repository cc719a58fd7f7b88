// What all parts of a worker's engine stand on: its thread, the job as this worker sees it, and the
// parts that move bytes. Everyone who carries something out holds a reference to this, instead of
// one to the whole engine. Engine thread, unless stated otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collective/executor.h"
#include "control/cluster.h"
#include "engine/carrier.h"
#include "engine/ending.h"
#include "engine/groups.h"
#include "engine/options.h"
#include "engine/owners.h"
#include "engine/presence.h"
#include "engine/program.h"
#include "links/links.h"
#include "node/local_bus.h"
#include "node/node_stage.h"
#include "node/shared_memory.h"
#include "observe/rank_states.h"
#include "transport/transport.h"

namespace herring::engine {

struct Core {
  Core(const control::Cluster& cluster, EngineOptions options, transport::Transport& transport,
       std::unique_ptr<LocalBus> bus);
  ~Core();

  // Queues a task for the engine thread. Returns kShutdown if that thread has ended. Any thread.
  // `caller_waits`: the caller will wait at once for what the task starts
  // (EventLoop::post_before_drive).
  Status run(std::function<void()> task, bool caller_waits = false);
  observe::Recorder& recorder() { return program->recorder(); }  // any thread
  uint32_t timeout_ms(double seconds) const;
  // Returns the deadline of an operation with this timeout (0: the setting), which starts when all
  // ranks have called it. Bytes on their way cannot be withdrawn by one rank, so a missed deadline
  // ends the job.
  Deadline deadline(double seconds) const;
  uint32_t warn_ms() const { return static_cast<uint32_t>(options.warn_after * 1000); }
  // Returns who answers for a name in a group.
  Owner owner_of(const Group& group, const std::string& name) const {
    return owners.of(group.shards().owners, group.shards().owner_of(name));
  }

  control::Cluster cluster;  // addresses of servers change
  const EngineOptions options;
  const control::WorkerInfo me;
  // Shared with neighbours on the node, if there are any. Anyone who may use the heap after the
  // engine is gone must keep a share; likewise of the loop and of what the program does.
  const std::shared_ptr<SharedHeap> heap;
  const std::shared_ptr<transport::EventLoop> loop;
  const std::shared_ptr<Program> program;
  observe::RankStates states;  // what messages say about ranks that hold others up; any thread
  const std::unique_ptr<LocalBus> bus;
  // These three are made by the roof, which decides what happens when they fail.
  std::unique_ptr<links::Links> links;
  std::unique_ptr<NodeStage> node_stage;
  std::unique_ptr<collective::Executor> executor;
  std::vector<Carrier*> carriers;

  Owners owners;
  Presence presence;
  Ending ending;
  Groups groups;
};

}  // namespace herring::engine
