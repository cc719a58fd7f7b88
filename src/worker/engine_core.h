// What works on the engine thread of a worker: the connections to servers (Links), the node stage,
// the schedules between workers, named operations, and who is a member of what. It knows which
// rounds of planned and partial operations are in progress.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "node/node_stage.h"
#include "worker/engine.h"
#include "worker/links.h"
#include "worker/membership.h"
#include "worker/named.h"
#include "worker/partial.h"

namespace herring::worker {

// Engine thread, but for what says otherwise.
class EngineCore {
 public:
  EngineCore(const control::Cluster& cluster, EngineOptions options,
             transport::Transport& transport, std::unique_ptr<LocalBus> bus,
             std::vector<ServerFlow> flows);

  // Any thread, down to run(). Why nothing can complete any more.
  Status failure() const;
  // As failure(), or why nothing new but partial all-reduces can complete in the group.
  Status incomplete(const Group& group) const;
  const std::shared_ptr<Group>& world() const { return membership_.world(); }
  // Takes part in a series of partial all-reduces.
  Status enlist(const std::shared_ptr<Partial>& partial);
  void delist(uint64_t id);

  // Fails everything, on every rank: only this one knows.
  void abort(const Status& status);
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

  // For each other.
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
  // Likewise, or what is only announced, of which nobody here knows yet where it will go.
  bool may_need(const Group& group, uint32_t server) const;
  // Likewise, or something is announced.
  bool in_flight(const Group& group) const { return moves(group) || named_.any(group); }
  // First nothing touches callers' memory any more, then they are told. `leaves`: what was said to
  // the servers still goes out.
  void fail_now(const Status& status, bool leaves = false);

 private:
  friend class Engine;
  void fail(const Status& status);
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
