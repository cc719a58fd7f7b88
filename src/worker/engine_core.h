// The part of the engine that runs on the engine thread. It owns the connections to servers
// (Links), the node stage, schedules between workers, named operations, and group membership. It
// also tracks the rounds of planned and partial operations that are in progress.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "links/links.h"
#include "node/node_stage.h"
#include "observe/rank_states.h"
#include "worker/engine.h"
#include "worker/keeping.h"
#include "worker/membership.h"
#include "worker/named.h"
#include "worker/partial.h"

namespace herring::worker {

// All methods run on the engine thread, unless stated otherwise.
class EngineCore {
 public:
  EngineCore(const control::Cluster& cluster, EngineOptions options,
             transport::Transport& transport, std::unique_ptr<LocalBus> bus,
             std::vector<ServerFlow> flows);

  // Any thread, down to run(). Returns why nothing can complete any more; ok if something can.
  Status failure() const;
  // Returns failure(), or else why nothing new except partial all-reduces can complete in the
  // group.
  Status incomplete(const Group& group) const;
  const std::shared_ptr<Group>& world() const { return membership_.world(); }
  // Registers a series of partial all-reduces.
  Status enlist(const std::shared_ptr<Partial>& partial);
  void delist(uint64_t id);

  // Fails everything on every rank, for a reason that only this rank knows.
  void abort(const Status& status);
  // Queues a task for the engine thread. Returns kShutdown if that thread has ended.
  // `caller_waits`: the caller will wait at once for what the task starts
  // (EventLoop::post_before_drive).
  Status run(std::function<void()> task, bool caller_waits = false);
  const std::shared_ptr<transport::EventLoop>& loop() const { return loop_; }

  // Engine thread only, except for what never changes: the numbers of processes.
  const control::Cluster& cluster() const { return cluster_; }
  const EngineOptions& options() const { return options_; }
  // What the program does with this worker. Anyone who may outlive the engine keeps a share.
  const std::shared_ptr<Program>& program() const { return program_; }
  observe::Recorder& recorder() { return program_->recorder(); }
  // What messages say about ranks that hold others up. Any thread may set it.
  observe::RankStates& states() { return states_; }
  Activity activity(Nanos now) { return program_->activity(now); }
  SharedHeap& heap() { return *heap_; }
  // Anyone who may use the heap after the engine is gone must keep a share.
  const std::shared_ptr<SharedHeap>& shared_heap() const { return heap_; }
  uint32_t timeout_ms(double seconds) const;
  // Returns the deadline of an operation with this timeout (0: the setting), which starts when all
  // ranks have called it. Bytes on their way cannot be withdrawn by one rank, so a missed deadline
  // ends the job.
  Deadline deadline(double seconds) const;
  uint32_t warn_ms() const { return static_cast<uint32_t>(options_.warn_after * 1000); }

  // For the classes that run on the engine thread.
  links::Links& links() { return *links_; }
  NodeStage& node_stage() { return *node_stage_; }
  collective::Executor& executor() { return *executor_; }
  NamedOperations& named() { return named_; }
  Membership& membership() { return membership_; }
  Keeping& keeping() { return keeping_; }
  // Registers a round of a planned operation. `waiting` fails when the job fails, or when its group
  // is called off and nothing of the round is on its way any more.
  void track(const std::shared_ptr<Future>& waiting, const Group& group) {
    waiting_.emplace(waiting, Waiting{group.id()});
  }
  void untrack(const std::shared_ptr<Future>& waiting) { waiting_.erase(waiting); }
  // A part of the round is on its way from part_begins() until part_ended().
  void part_begins(const std::shared_ptr<Future>& waiting);
  void part_ended(const std::shared_ptr<Future>& waiting);
  void fail_waiting(const Group& group, const Status& status);
  void fail_partial(const Group& group, const Status& status);
  bool any_partial() const { return !partials_.empty(); }
  bool any_partial(const Group& group) const;
  // Returns whether no series of partial all-reduces needs a server that is not in the set.
  bool can_move_partial(const control::ServerSet& set) const;
  // Tells a server that has come later of the series.
  void tell_partial_to(uint32_t server);
  // Tells a server that becomes the owner of names what this rank knows of series with these.
  void move_partial(const Group& group, const Owner& owner);
  void forget_partial(uint32_t group);
  // The series that have ended here and not everywhere, for all that this rank knows.
  const std::deque<std::shared_ptr<SeriesMemory>>& ended_series() const { return ended_series_; }
  // No rank lacks the end of the series.
  void forget_series(uint64_t id);
  // Returns how many bytes this rank keeps of partial all-reduces for the next owner.
  size_t bytes_of_series() const;
  // Returns whether bytes are moving in the group, or a round of it has begun and is not over.
  bool moves(const Group& group) const;
  // Returns whether any of these operations still needs this server.
  bool needs(const Group& group, uint32_t server) const;
  // Returns whether needs() holds, or an operation is only announced, so that its servers are
  // unknown.
  bool may_need(const Group& group, uint32_t server) const;
  // Returns whether something moves in the group or is announced.
  bool in_flight(const Group& group) const { return moves(group) || named_.any(group); }
  // Returns whether nothing goes on here until something comes from another process, or the program
  // makes a call.
  bool stands_still() const;
  // Tells a server that has come later in which calls this rank is held up.
  void tell_whereabouts_to(uint32_t server);
  // Fails everything, soon: when no server or neighbour reads callers' memory any more, which takes
  // a moment if something is on its way. Then detaches that memory, and tells the callers. Until
  // then all is as if the servers were slow. `leaves`: data queued for the servers is still sent.
  void fail_now(const Status& status, bool leaves = false);
  // Returns whether fail_now() was called. Then nothing else may tell callers anything. Engine
  // thread.
  bool ends() const { return !ending_.ok(); }

 private:
  friend class Engine;
  void fail(const Status& status);
  void end_when_read(Nanos until);
  void end();
  void end_all();
  void on_control(uint32_t server, const wire::FrameHeader& header, std::string_view payload);
  Status on_series(uint32_t server, const wire::FrameHeader& header, std::string_view payload);
  Status on_series_error(std::string_view payload);
  void check_deadlines(Nanos now);
  void tell_whereabouts(Nanos now);
  void tick();

  control::Cluster cluster_;  // engine thread, once that runs: addresses of servers change
  const EngineOptions options_;
  const control::WorkerInfo me_;
  const std::shared_ptr<SharedHeap> heap_;  // shared with neighbours on the node, if there are any
  // Anyone who may still wait keeps a share of the loop.
  const std::shared_ptr<transport::EventLoop> loop_;
  const std::shared_ptr<Program> program_;
  observe::RankStates states_;
  std::unique_ptr<LocalBus> bus_;
  Membership membership_;
  NamedOperations named_;
  Keeping keeping_;
  std::unique_ptr<links::Links> links_;
  std::unique_ptr<NodeStage> node_stage_;
  std::unique_ptr<collective::Executor> executor_;

  struct Waiting {
    uint32_t group = 0;
    uint32_t parts = 0;  // on their way
    Status failed;       // set when its group is called off
  };
  std::map<std::shared_ptr<Future>, Waiting> waiting_;  // engine thread
  std::map<uint64_t, std::shared_ptr<Partial>> partials_;    // by id; engine thread
  std::deque<std::shared_ptr<SeriesMemory>> ended_series_;   // the latest; engine thread

  std::string whereabouts_;      // text that the servers have
  Nanos whereabouts_due_ = 0;    // when to check it next
  uint64_t notice_bytes_ = 0;    // see Engine::Counters

  mutable std::mutex mutex_;
  Status failure_;               // guarded by mutex_
  // Engine thread: why everything is to fail, whether this worker leaves, and whether callers are
  // being told.
  Status ending_;
  bool leaves_ = false, failing_ = false;
  bool stopped_ = false;         // guarded by mutex_
};

}  // namespace herring::worker
