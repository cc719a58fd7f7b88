// All all-reduces of a worker that go by messages between workers: their runs, the mesh that
// carries them, deadlines. Loop thread only.
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

namespace herring::collective {

class Executor : private transport::FlowHandler {
 public:
  // Every rank has agreed to a task before it starts, so what goes wrong afterwards ends the job,
  // but for a member's death, of which call_off() hears.
  using OnFailure = std::function<void(const Status&)>;
  // The connection to a rank has ended that a schedule of this group still needs.
  using OnLost = std::function<void(uint32_t group, const Status&)>;
  // This worker is in a group of that number, and it is not called off.
  using GoesOn = std::function<bool(uint32_t group)>;
  // The rank has left the job, and all know it.
  using HasLeft = std::function<bool(uint32_t rank)>;
  // Nothing touches the task's array any more; not ok: why it could not be completed. The job, or
  // the group, may have said why before.
  using OnDone = std::function<void(const Status&)>;

  Executor(transport::Transport& transport, transport::EventLoop& loop,
           const control::Cluster& cluster, MeshOptions options,
           OnFailure on_failure, OnLost on_lost, GoesOn goes_on, HasLeft has_left);
  ~Executor() override;

  // Where the others reach this worker.
  Result<std::string> listen() { return mesh_.listen(); }
  // Addresses of these ranks; tasks among them that were started before wait for them.
  Status meet(const std::vector<uint32_t>& ranks, const std::vector<std::string>& addresses);

  // Reduces in place. `on_done` is called once, unless the job fails before.
  void start(Task task, Deadline deadline, OnDone on_done);
  // Ends all tasks of a group that is called off: `on_done` of each is called when nothing touches
  // its array any more.
  void call_off(uint32_t group);
  // The rank is dead; the groups that it is in are called off.
  void rank_lost(uint32_t rank);
  // The rank has left. What it owes may be on its way over a connection, whose end tells; without
  // one nothing comes.
  void rank_left(uint32_t rank);
  // Forgets every run and closes every flow: afterwards nothing touches callers' memory.
  void clear();
  // Likewise, by a worker that leaves: what it has handed to flows still goes out.
  void finish();
  // What has not reached the other workers yet; see transport::undelivered().
  size_t undelivered() const { return mesh_.undelivered(); }
  // Grants that wait for their task.
  size_t kept() const { return early_.size(); }
  // Call it now and then.
  void check_deadlines(Nanos now);

  transport::FlowCounters counters() const { return mesh_.counters(); }

 private:
  using Key = std::tuple<uint32_t, uint32_t, uint32_t>;  // group, stream, ticket
  class Active;
  // The other end of a flow.
  struct Peer {
    std::unique_ptr<char[]> scratch;          // frames that are added to something
    Active* arriving = nullptr;               // whose frame is being received
    struct Sent {
      Key key;
      uint32_t step;
      size_t bytes;
    };
    std::deque<Sent> on_the_way;              // frames handed to the flow
  };

  void begin(Active& active);
  bool can_begin(const Task& task) const;
  void on_progress(Key key);
  void settle(Key key);
  void settle_called_off();
  void forget_all();
  void let_go(uint32_t rank);
  Status on_grant(uint32_t from, const wire::FrameHeader& header);
  void lost(uint32_t rank, const Status& why);

  Status on_header(transport::Flow&, const wire::FrameHeader&, transport::Destinations&) override;
  void on_payload(transport::Flow&, const wire::FrameHeader&, size_t received) override;
  Status on_frame(transport::Flow&, const wire::FrameHeader&) override;
  void on_sent(transport::Flow&, uint64_t token) override;
  void on_closed(transport::Flow&, const Status& why) override;

  transport::EventLoop& loop_;
  const control::Cluster& cluster_;
  const uint32_t rank_;
  const OnFailure on_failure_;
  const OnLost on_lost_;
  const GoesOn goes_on_;
  const HasLeft has_left_;
  Mesh mesh_;
  std::map<Key, std::unique_ptr<Active>> active_;
  std::map<uint32_t, Peer> peers_;
  // Grants that came before the task they are for: by task, sender and message, frames.
  std::map<Key, std::map<std::pair<uint32_t, uint32_t>, uint32_t>> early_;
  size_t early_count_ = 0;
  Nanos moved_ = 0;  // when bytes last went or came
};

}  // namespace herring::collective
