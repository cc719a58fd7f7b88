// The engine: one thread per worker process that turns operations into transfers and messages.
// Operations may be submitted from any thread, in any order on any rank.
#pragma once

#include <algorithm>
#include <atomic>
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
#include "worker/node_stage.h"
#include "worker/operation.h"
#include "worker/partial.h"

namespace herring::worker {

struct EngineOptions {
  uint32_t rank = 0;
  LinksOptions links;
  collective::MeshOptions mesh;            // between workers
  size_t small_bytes = 65536;
  size_t buffer_bytes = 0;                 // of planned operations; 0: chosen
  double timeout = 1800, warn_after = 60;  // seconds
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

  // Any thread. kInvalidArgument for a name that is in flight already; kPeerLost and others when
  // the job has failed.
  // `waits`: the caller waits for it at once.
  Result<std::shared_ptr<Operation>> submit(Request request, bool waits = false);
  // This rank was called to take part and cannot, for a reason of its own: every other rank's call
  // of that number and name fails with it. Any thread.
  void refuse(wire::Collective kind, const std::string& name, const std::string& why);
  // Fails everything that is in flight and everything that comes later. Any thread.
  void fail(const Status& status);
  // Likewise on every rank: what only this one knows.
  void abort(const Status& status);
  // A process is gone. Where there is a partial all-reduce, the job goes on without a worker unless
  // something else that needs it has begun to move bytes; otherwise it fails.
  void peer_lost(const control::Loss& loss);
  // A rank has said goodbye: what still needs it fails.
  void rank_left(uint32_t rank);
  Status failure() const;
  // As failure(), or that a worker is gone or has left, without whom only partial all-reduces can
  // go on.
  Status incomplete() const;
  // Takes part in a series of partial all-reduces; `message` goes to all servers.
  Status enlist(const std::shared_ptr<Partial>& partial, std::string message);
  void delist(uint64_t id);
  // Ends the thread; what is in flight fails with kShutdown.
  void stop();

  // Queues a task for the engine thread; kShutdown if that has ended. `caller_waits`:
  // at once, for what comes of it (EventLoop::post_before_drive).
  Status run(std::function<void()> task, bool caller_waits = false);
  // On the engine thread, for planned operations: `waiting` fails when the job does.
  void track(const std::shared_ptr<Completion>& waiting) { waiting_.insert(waiting); }
  void untrack(const std::shared_ptr<Completion>& waiting) { waiting_.erase(waiting); }
  const std::shared_ptr<transport::EventLoop>& loop() const { return loop_; }
  NodeStage& node_stage() { return *node_stage_; }
  Links& links() { return *links_; }
  // Buffers go through the node stage when any node has several workers, or there is one node.
  bool uses_node_stage() const { return uses_node_stage_; }
  uint32_t next_stream() { return next_stream_++; }  // any thread; streams of plans

  const control::Cluster& cluster() const { return cluster_; }
  const EngineOptions& options() const { return options_; }
  std::vector<double> weights() const;
  SharedHeap& heap() { return heap_; }
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

 private:
  friend class Operation;

  void start(const std::shared_ptr<Operation>& operation);
  uint32_t owner_of(const std::string& name) const;
  void on_control(uint32_t server, const wire::FrameHeader& header, std::string_view payload);
  void on_reply(Operation& operation, wire::Go head, std::string_view result);
  void launch(Operation& operation, const wire::FrameHeader& header, wire::Go go);
  Transfer& add_transfer(Operation& operation, Key key, size_t bytes);
  void launch_allreduce(Operation& operation, Key key);
  void launch_exchange(Operation& operation, Key key);
  void launch_schedule(Operation& operation, Key key);
  void meet_workers();
  Status on_series(const wire::FrameHeader& header, std::string_view payload);
  bool survives(const control::Loss& loss) const;
  Status departure() const;
  void on_link_closed(uint32_t server, const Status& why);
  void fail_what_needs(uint32_t server);
  void check_departures(Nanos now);
  void check_deadlines(Nanos now);
  void part_done(Operation& operation);
  void finish(Operation& operation, const Status& status);
  void fail_now(const Status& status, bool leaves = false);
  bool push(Operation& operation, Transfer& transfer);  // false: the job has failed
  void tick();
  std::shared_ptr<Operation> find(uint64_t id);

  const control::Cluster cluster_;
  const EngineOptions options_;
  const control::WorkerInfo me_;
  bool uses_node_stage_ = false;
  SharedHeap heap_;  // for neighbours on the node to map, if there are any
  // Of everybody who may still wait.
  const std::shared_ptr<transport::EventLoop> loop_;
  std::unique_ptr<LocalBus> bus_;
  std::unique_ptr<Links> links_;
  std::unique_ptr<NodeStage> node_stage_;
  std::unique_ptr<collective::Executor> executor_;
  bool meeting_ = false;                   // the workers' addresses are known, or asked for

  std::map<uint64_t, std::shared_ptr<Operation>> operations_;  // engine thread
  std::set<std::shared_ptr<Completion>> waiting_;              // engine thread
  std::map<uint64_t, std::shared_ptr<Partial>> partials_;      // by id; engine thread
  std::vector<uint32_t> left_;                                 // in that order; engine thread
  Nanos left_since_ = 0;
  uint64_t next_id_ = 1;
  std::atomic<uint32_t> next_stream_;

  mutable std::mutex mutex_;
  std::set<std::string> names_;  // in flight; guarded by mutex_
  Status failure_;               // guarded by mutex_
  Status incomplete_;            // guarded by mutex_
  bool stopped_ = false;         // guarded by mutex_
};

}  // namespace herring::worker
