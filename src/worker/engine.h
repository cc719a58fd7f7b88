// The engine: the thread of a worker that moves bytes, and what works on it. It owns the loop, the
// connections to servers (Links), the node stage, the schedules between workers, and the memory
// that neighbours share; it knows which rounds of planned and partial operations are in progress.
// Named operations and who is a member of what have classes of their own.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "collective/executor.h"
#include "control/cluster.h"
#include "node/local_bus.h"
#include "node/shared_memory.h"
#include "transport/transport.h"
#include "worker/links.h"
#include "worker/membership.h"
#include "worker/named.h"
#include "worker/node_stage.h"
#include "worker/operation.h"
#include "worker/partial.h"

namespace herring::worker {

struct EngineOptions {
  uint32_t rank = 0;
  LinksOptions links;
  collective::MeshOptions mesh;            // between workers
  size_t small_bytes = default_of("small_bytes").integer;
  size_t buffer_bytes = 0;                 // of planned operations; 0: chosen
  double timeout = default_of("timeout").real, warn_after = default_of("warn_after").real;  // s
  // Makes the whole job give up; any thread.
  std::function<void(const std::string& reason)> abort = [](const std::string&) {};
};

class Engine {
 public:
  // `flows`: proven connections to servers, server by server.
  struct ServerFlow {
    uint32_t server;
    std::unique_ptr<transport::Connection> connection;
  };
  Engine(const control::Cluster& cluster, EngineOptions options, transport::Transport& transport,
         std::unique_ptr<LocalBus> bus, std::vector<ServerFlow> flows);
  ~Engine();

  // Any thread. kInvalidArgument for a name that is in flight already in that group; kPeerLost and
  // others when the job or the group has failed.
  // `waits`: the caller waits for it at once.
  Result<std::shared_ptr<Operation>> submit(Call call, bool waits = false) {
    return named_.submit(std::move(call), waits);
  }
  // This rank was called to take part and cannot, for a reason of its own: every other rank's call
  // of that number and name fails with it. Any thread. `group` null: all ranks.
  void refuse(std::shared_ptr<Group> group, wire::Collective what, const std::string& name,
              const std::string& why) {
    named_.refuse(group ? group : world(), std::move(what), name, why);
  }
  const std::shared_ptr<Group>& world() const { return membership_.world(); }
  // Leaves a group that was formed (wire::FormGroup). kInvalidArgument: something in it is
  // in flight; it was destroyed already; it is the world. Any thread but the engine's.
  Status destroy(const std::shared_ptr<Group>& group);

  // Fails everything that is in flight and everything that comes later. Any thread.
  void fail(const Status& status);
  // Likewise on every rank: what only this one knows.
  void abort(const Status& status);
  // A process is gone. What needs it fails; if nothing can go on, everything does. Any thread.
  void peer_lost(const control::Loss& loss);
  // A rank has said goodbye: what still needs it fails. Any thread.
  void rank_left(uint32_t rank);
  Status failure() const;
  // As failure(), or why nothing new but partial all-reduces can complete in the group.
  Status incomplete(const Group& group) const;
  // Takes part in a series of partial all-reduces.
  Status enlist(const std::shared_ptr<Partial>& partial);
  void delist(uint64_t id);
  // Ends the thread; what is in flight fails with kShutdown.
  void stop();

  // Queues a task for the engine thread; kShutdown if that has ended. `caller_waits`:
  // at once, for what comes of it (EventLoop::post_before_drive).
  Status run(std::function<void()> task, bool caller_waits = false);
  const std::shared_ptr<transport::EventLoop>& loop() const { return loop_; }

  const control::Cluster& cluster() const { return cluster_; }
  const EngineOptions& options() const { return options_; }
  SharedHeap& heap() { return *heap_; }
  // Kept by whoever may use it after the engine.
  const std::shared_ptr<SharedHeap>& shared_heap() const { return heap_; }
  uint32_t timeout_ms(double seconds) const;
  // Of an operation with this time-out (0: the setting) once all ranks have called it. What moves
  // cannot be called back from one rank alone, so that its deadline ends the job.
  Deadline deadline(double seconds) const;
  uint32_t warn_ms() const { return static_cast<uint32_t>(options_.warn_after * 1000); }

  struct Counters {
    std::vector<Links::ServerCounters> servers;
    Links::ServerCounters workers;  // exchanged with other workers, not through servers
    size_t credit_bytes = 0;
    uint64_t wakeups = 0;
  };
  Counters counters();


  // On the engine thread, for what works there.
  Links& links() { return *links_; }
  NodeStage& node_stage() { return *node_stage_; }
  collective::Executor& executor() { return *executor_; }
  NamedOperations& named() { return named_; }
  Membership& membership() { return membership_; }
  // A round of a planned operation: `waiting` fails when the job does, or what moves in its group.
  // `what`: for messages.
  void track(const std::shared_ptr<Future>& waiting, const Group& group, std::string what) {
    waiting_.emplace(waiting, Tracked{group.id(), std::move(what)});
  }
  void untrack(const std::shared_ptr<Future>& waiting) { waiting_.erase(waiting); }
  void fail_waiting(const Group& group, const Status& status);
  void fail_partial(const Group& group, const Status& status);
  bool any_partial() const { return !partials_.empty(); }
  // Bytes are moving in the group, or a round of it has begun that is not over.
  bool moves(const Group& group) const;
  // What of that needs this server is not over.
  bool needs(const Group& group, uint32_t server) const;
  // Likewise, or something is announced.
  bool in_flight(const Group& group) const { return moves(group) || named_.any(group); }
  // First nothing touches callers' memory any more, then they are told. `leaves`: what was said to
  // the servers still goes out.
  void fail_now(const Status& status, bool leaves = false);

 private:
  void end_all(bool leaves = false);
  void on_control(uint32_t server, const wire::FrameHeader& header, std::string_view payload);
  Status on_series(const wire::FrameHeader& header, std::string_view payload);
  Status on_series_error(std::string_view payload);
  void check_deadlines(Nanos now);
  void tell_whereabouts(Nanos now);
  void tick();

  struct Tracked {
    uint32_t group;
    std::string what;
  };

  const control::Cluster cluster_;
  const EngineOptions options_;
  const control::WorkerInfo me_;
  const std::shared_ptr<SharedHeap> heap_;  // for neighbours on the node to map, if there are any
  // Of everybody who may still wait.
  const std::shared_ptr<transport::EventLoop> loop_;
  std::unique_ptr<LocalBus> bus_;
  Membership membership_;
  NamedOperations named_;
  std::unique_ptr<Links> links_;
  std::unique_ptr<NodeStage> node_stage_;
  std::unique_ptr<collective::Executor> executor_;

  std::map<std::shared_ptr<Future>, Tracked> waiting_;   // engine thread
  std::map<uint64_t, std::shared_ptr<Partial>> partials_;    // by id; engine thread

  std::string whereabouts_;      // as the servers know them
  Nanos whereabouts_due_ = 0;    // when they are looked at next

  mutable std::mutex mutex_;
  Status failure_;               // guarded by mutex_
  bool failing_ = false;         // engine thread: not everything has been told of it
  bool stopped_ = false;         // guarded by mutex_
};

}  // namespace herring::worker
