// All all-reduces of a worker that use messages between workers: their runs, the mesh that carries
// them, and deadlines. Loop thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/deadline.h"
#include "collective/mesh.h"
#include "collective/run.h"
#include "control/cluster.h"
#include "observe/rank_states.h"

namespace herring::collective {

class Executor : private transport::FlowHandler {
 public:
  // Called with an error that ends the job. Every rank has agreed to a task before it starts, so
  // any later error ends the job, except a member's death, which call_off() handles.
  using OnFailure = std::function<void(const Status&)>;
  // Called when the connection to a rank has ended that a schedule of this group still needs.
  using OnLost = std::function<void(uint32_t group, const Status&)>;
  // Returns whether this worker is in the group with that number, and the group is not called off.
  using GoesOn = std::function<bool(uint32_t group)>;
  // Returns whether the rank has left the job, and all ranks know it.
  using HasLeft = std::function<bool(uint32_t rank)>;
  // Called with a signal of `rank`, of what a group runs again and again. An error means that the
  // rank breaks the rules.
  using OnSignal = std::function<Status(uint32_t rank, const wire::FrameHeader& signal)>;
  // Called when nothing accesses the task's array any more. An error says why the task could not be
  // completed; the job or the group may have reported the reason before.
  using OnDone = std::function<void(const Status&)>;

  Executor(transport::Transport& transport, transport::EventLoop& loop,
           const control::Cluster& cluster, const observe::RankStates& states, MeshOptions options,
           OnFailure on_failure, OnLost on_lost, GoesOn goes_on, HasLeft has_left);
  ~Executor() override;

  // Returns the address at which other workers reach this one.
  Result<std::string> listen() { return mesh_.listen(); }
  // Sets the addresses of these ranks. Tasks among them that were started earlier wait for this.
  Status meet(const std::vector<uint32_t>& ranks, const std::vector<std::string>& addresses);

  // Starts an all-reduce in place. `on_done` is called once, unless the job fails before.
  void start(Task task, Deadline deadline, OnDone on_done);
  // Connects two ranks that know each other's addresses. Both call it.
  void connect(uint32_t rank) { mesh_.want(rank); }
  // Sends a signal to a rank with which this one is, or is being, connected.
  void signal(uint32_t rank, const wire::FrameHeader& signal);
  void on_signal(OnSignal call) { on_signal_ = std::move(call); }
  // Ends all tasks of a group that is called off. `on_done` of each task is called when nothing
  // accesses its array any more.
  void call_off(uint32_t group);
  // Handles the death of a rank. Its groups must have been called off.
  void rank_lost(uint32_t rank);
  // Handles a rank that has left. If there is a connection, data may still be on its way over it,
  // and its end is reported. Without a connection, nothing more comes.
  void rank_left(uint32_t rank);
  // Forgets every run and closes every flow. Afterwards nothing accesses callers' memory.
  void clear();
  // Does the same for a worker that leaves: data already handed to flows is still sent.
  void finish();
  // Returns the number of bytes that have not reached other workers; see transport::undelivered().
  size_t undelivered() const { return mesh_.undelivered(); }
  // Returns whether no task has been started that is not done.
  bool idle() const { return active_.empty(); }
  // Returns the number of tasks for which early grants wait.
  size_t kept() const { return early_.size(); }
  // Must be called periodically.
  void check_deadlines(Nanos now);

  transport::FlowCounters counters() const { return mesh_.counters(); }

 private:
  using Key = std::tuple<uint32_t, uint32_t, uint32_t>;  // group, stream, ticket
  class Active;
  // The rank at the other end of a flow.
  struct Peer {
    std::unique_ptr<char[]> scratch;          // for frames whose bytes are added to something
    Active* arriving = nullptr;               // the run whose frame is being received
    struct Sent {
      Key key;
      uint32_t operation;
      size_t bytes;
    };
    std::deque<Sent> on_the_way;              // frames handed to the flow
  };

  void begin(Active& active);
  void on_flow(uint32_t rank);
  bool can_begin(const Task& task) const;
  void on_progress(Key key);
  void settle(Key key);
  void settle_called_off();
  void forget_all();
  void let_go(uint32_t rank);
  Status on_small(uint32_t from, const wire::FrameHeader& header, std::string_view card);
  Status come_early(uint32_t from, const wire::FrameHeader& header, std::string_view card);
  void lost(uint32_t rank, const Status& why);

  Status on_header(transport::Flow&, const wire::FrameHeader&, transport::Destinations&) override;
  void on_payload(transport::Flow&, const wire::FrameHeader&, size_t received) override;
  Status on_frame(transport::Flow&, const wire::FrameHeader&) override;
  void on_sent(transport::Flow&, uint64_t token) override;
  void on_closed(transport::Flow&, const Status& why) override;

  transport::EventLoop& loop_;
  const control::Cluster& cluster_;
  const observe::RankStates& states_;
  const uint32_t rank_;
  const OnFailure on_failure_;
  const OnLost on_lost_;
  const GoesOn goes_on_;
  const HasLeft has_left_;
  OnSignal on_signal_;
  Mesh mesh_;
  std::map<Key, std::unique_ptr<Active>> active_;
  std::map<uint32_t, Peer> peers_;
  std::multimap<uint32_t, wire::FrameHeader> signals_;  // to ranks to which there is no flow yet
  // What came before its task started: grants (frames by sender and message), and cards by sender.
  struct Early {
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> grants;
    std::map<uint32_t, std::string> cards;
    size_t size() const { return grants.size() + cards.size(); }
  };
  std::map<Key, Early> early_;
  size_t early_count_ = 0;
  Nanos moved_ = 0;  // when bytes were last sent or received
};

}  // namespace herring::collective
